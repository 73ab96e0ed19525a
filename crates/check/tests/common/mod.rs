//! Modules and versions to check.
#![allow(dead_code, reason = "each test program uses a part")]

use restitch_address::LoadBias;
use restitch_cfi::UnwindInfo;
use restitch_emit::{Counted, CounterRequest, Request, Version, emit};
use restitch_image::{Image, ImageKind};
use restitch_layout::{Fragment, Layout, Tail};
use restitch_program::{BlockId, Edge, EdgeId, EdgeKind, Program, Terminator, analyze};
use std::collections::HashSet;

pub struct Module {
    pub image: Image,
    pub unwind: UnwindInfo,
    pub program: Program,
}

impl Module {
    pub fn parse(file: Vec<u8>) -> Self {
        let image = Image::parse(file).unwrap();
        let range = image.eh_frame().unwrap();
        let bytes = image.read(range.start, range.len() as usize).unwrap();
        let unwind = UnwindInfo::parse(bytes, range.start).unwrap();
        let program = analyze(&image, &unwind).unwrap();
        Self { image, unwind, program }
    }

    pub fn bias(&self) -> Option<LoadBias> {
        Some(LoadBias::default())
    }

    pub fn version(&self, layout: &Layout, counted: &[Counted]) -> Version {
        let below = self.image.span().start.align_down(4096).offset(-0x1000_0000);
        let above = self.image.span().end.align_up(4096) + 0x20_0000;
        let start = if self.image.kind() == ImageKind::Executable { above } else { below };
        let counters = CounterRequest { area_start: start.offset(-0x400_0000), counted };
        emit(&Request {
            image: &self.image,
            program: &self.program,
            unwind: &self.unwind,
            layout,
            start,
            bias: self.bias(),
            number: 1,
            bound: &[],
            promote: &[],
            large_pages: false,
            counters: (!counted.is_empty()).then_some(counters),
        })
        .unwrap()
    }

    /// Every block of the layout and both edges of every conditional branch.
    pub fn everything(&self, layout: &Layout) -> Vec<Counted> {
        let mut out: Vec<Counted> = layout.blocks().map(Counted::Block).collect();
        let several = |id: BlockId| self.program.block(id).edge_count > 1;
        let wanted = |e: &Edge| e.kind != EdgeKind::Table && several(e.from);
        let edges = self.program.edges.iter().enumerate().filter(|(_, e)| wanted(e));
        out.extend(edges.map(|(i, _)| Counted::Edge(EdgeId(i as u32))));
        out
    }
}

/// All blocks in the original order.
pub fn whole(program: &Program) -> Layout {
    let fragment = |f| Fragment { blocks: program.blocks_of(f).collect(), align: 16 };
    let hot = program.function_ids().map(fragment).filter(|f| !f.blocks.is_empty()).collect();
    Layout { hot, cold: Vec::new(), tails: Vec::new() }
}

/// All blocks in a random order, cut into fragments, a third of them cold.
pub fn shuffled(program: &Program, mut seed: u64) -> Layout {
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let mut blocks: Vec<BlockId> = program.block_ids().collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random(i + 1));
    }
    let mut layout = Layout::default();
    let mut rest = &blocks[..];
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(rest.len().min(1 + random(20)));
        let fragment = Fragment { blocks: head.to_vec(), align: 1 << random(6) };
        if random(3) == 0 {
            layout.cold.push(fragment)
        } else {
            layout.hot.push(fragment)
        }
        rest = tail;
    }
    layout
}

/// Random duplicates behind half of the blocks: ways from block to block, of up to five.
pub fn duplicated(program: &Program, mut layout: Layout, mut seed: u64) -> Layout {
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let placed: HashSet<BlockId> = layout.blocks().collect();
    let mut behind: Vec<BlockId> = layout.blocks().filter(|_| random(2) == 0).collect();
    behind.sort_unstable();
    for block in behind {
        let (mut at, mut blocks) = (block, Vec::new());
        for _ in 0..1 + random(5) {
            let falls = |e: &Edge| e.kind != EdgeKind::Table && placed.contains(&e.to);
            let ways: Vec<BlockId> =
                program.out_edges(at).map(|(_, e)| e).filter(|e| falls(e)).map(|e| e.to).collect();
            if ways.is_empty() || matches!(program.block(at).terminator, Terminator::ShortConditional(_)) {
                break;
            }
            at = ways[random(ways.len())];
            blocks.push(at);
        }
        let conditional = matches!(program.block(at).terminator, Terminator::Conditional(..));
        if !blocks.is_empty() {
            layout.tails.push(Tail { behind: block, blocks, turned: conditional && random(2) == 0 });
        }
    }
    layout
}

/// Half of the blocks of [`shuffled`]: control goes back to the original code all the time.
pub fn half(program: &Program, seed: u64) -> Layout {
    let mut layout = shuffled(program, seed);
    for fragment in layout.hot.iter_mut().chain(&mut layout.cold) {
        fragment.blocks.retain(|b| (b.0 ^ b.0 >> 3 ^ seed as u32) & 1 == 0);
    }
    layout.hot.retain(|f| !f.blocks.is_empty());
    layout.cold.retain(|f| !f.blocks.is_empty());
    layout
}
