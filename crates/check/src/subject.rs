//! What is checked, with the indices that make it quick: read-only while the checks run.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use restitch_address::{LoadBias, Svma, SvmaRange};
use restitch_emit::{PlacedBlock, Version};
use restitch_image::{Image, ImageKind, RelocationKind};
use restitch_layout::Layout;
use restitch_program::{BlockId, Program};
use std::collections::HashMap;

/// "Not placed" in [`Subject::place_of`].
const NOWHERE: u32 = u32::MAX;

/// The inputs of a check.
pub(crate) struct Subject<'a> {
    pub image: &'a Image,
    pub program: &'a Program,
    pub layout: &'a Layout,
    pub version: &'a Version,
    /// What turns the copies' absolute entries into addresses of the module; `None` if they cannot be known.
    pub bias: Option<LoadBias>,
    /// Retargeted functions: where their copy is, by original entry.
    pub retargeted: HashMap<Svma, Svma>,
    /// By block, the place that is no duplicate.
    place_of: Vec<u32>,
    /// Duplicates: block and place, sorted.
    duplicates: Vec<(BlockId, usize)>,
}

impl<'a> Subject<'a> {
    pub fn new(
        image: &'a Image,
        program: &'a Program,
        layout: &'a Layout,
        version: &'a Version,
        bias: Option<LoadBias>,
    ) -> Self {
        let mut place_of = vec![NOWHERE; program.blocks.len()];
        let placed = || version.blocks.iter().enumerate();
        for (i, p) in placed().filter(|(_, p)| !p.duplicate) {
            if let Some(place) = place_of.get_mut(p.block.index()) {
                *place = i as u32;
            }
        }
        let mut duplicates: Vec<(BlockId, usize)> =
            placed().filter(|(_, p)| p.duplicate).map(|(i, p)| (p.block, i)).collect();
        duplicates.sort_unstable();
        let fixed = image.kind() == ImageKind::Executable;
        let bias = bias.or(fixed.then(LoadBias::default));
        let retargeted = version.retargeted.iter().map(|l| (l.original, l.to)).collect();
        Self { image, program, layout, version, bias, retargeted, place_of, duplicates }
    }

    /// Bytes of the version.
    pub fn bytes(&self, range: SvmaRange) -> Option<&'a [u8]> {
        if !self.version.range.covers(&range) {
            return None;
        }
        let from = range.start.offset_from(self.version.range.start) as usize;
        self.version.bytes.get(from..from.checked_add(range.len() as usize)?)
    }
    /// `len` bytes of text from `at` on, if the text is that long.
    pub fn text(&self, at: Svma, len: usize) -> Option<&'a [u8]> {
        let left = self.text_left(at)?;
        self.bytes(SvmaRange::new(at, len as u64)).filter(|_| len <= left)
    }
    /// Bytes of text from `at` on.
    pub fn text_left(&self, at: Svma) -> Option<usize> {
        let text = self.version.text;
        text.contains(at).then(|| text.end.offset_from(at) as usize)
    }
    /// The instruction of the version at `at`, if it decodes and lies in the text.
    pub fn decode(&self, at: Svma) -> Option<Instruction> {
        let len = self.text_left(at)?.min(15);
        let bytes = self.text(at, len)?;
        let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Where `block` was placed, as an index of the version's blocks: not as a duplicate.
    pub fn place(&self, block: BlockId) -> Option<usize> {
        self.place_of.get(block.index()).copied().filter(|p| *p != NOWHERE).map(|p| p as usize)
    }
    /// Whether the copy of the block at `want` starts at `at`, not as a duplicate; gives its index in the
    /// version's blocks.
    pub fn copy_at(&self, at: Svma, want: Svma) -> Option<usize> {
        let place = self.place(self.program.block_starting_at(want)?)?;
        (self.version.blocks[place].version.start == at).then_some(place)
    }
    /// Whether a copy of the block at `want`, be it a duplicate, starts at `at` and stands behind block
    /// number `index` of the version.
    pub fn copy_behind(&self, index: usize, at: Svma, want: Svma) -> bool {
        let Some(block) = self.program.block_starting_at(want) else { return false };
        let first = self.duplicates.partition_point(|d| d.0 < block);
        let duplicates = self.duplicates[first..].iter().take_while(|d| d.0 == block).map(|d| d.1);
        let starts = |place: usize| self.version.blocks[place].version.start == at;
        duplicates.chain(self.place(block)).any(|place| place > index && starts(place))
    }
    fn key(&self, at: Svma) -> u64 {
        at.get().wrapping_sub(self.version.range.start.get())
    }
    /// The index of the placed block whose bytes hold `at`.
    pub fn placed_around(&self, at: Svma) -> Option<usize> {
        let blocks: &[PlacedBlock] = &self.version.blocks;
        let key = self.key(at);
        let i = blocks.partition_point(|p| self.key(p.version.start) <= key).checked_sub(1)?;
        blocks[i].version.contains(at).then_some(i)
    }

    /// The function whose address `at` is: the retargeted one whose copy is there, else the one at `at`.
    pub fn function_of_address(&self, at: Svma) -> Svma {
        self.version.retargeted.iter().find(|l| l.to == at).map_or(at, |l| l.original)
    }
    /// The address that the 8 bytes at `at` of the module hold once it is loaded, in canonical coordinates.
    pub fn original_pointer(&self, at: Svma) -> Option<Svma> {
        match self.image.relocation_at(at).map(|r| &r.kind) {
            Some(RelocationKind::Relative { target }) => Some(*target),
            Some(_) => None,
            None => self.image.read_u64(at).map(Svma::new),
        }
    }
}
