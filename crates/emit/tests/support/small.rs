//! Modules made by hand from a few bytes of code.

use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{FrameState, Row, Run, UnwindInfo, write_eh_frame};
use restitch_emit::Request;
use restitch_image::Image;
use restitch_layout::{Fragment, Layout};
use restitch_program::{BlockId, Program};
use std::sync::Arc;

/// Where the code of these modules is.
pub const BASE: u64 = 0x40_1000;
/// Where their versions go.
pub const START: u64 = 0x48_0000;

pub struct Small {
    pub image: Image,
    pub program: Program,
    pub unwind: UnwindInfo,
}

impl Small {
    /// `code` stands at [`BASE`]; `text` is the program. Every function has the unwind state of an entry
    /// throughout.
    pub fn new(code: &[u8], text: &str) -> Self {
        Self::of_type(2, code, text)
    }

    /// With an `e_type` of its own (2: fixed address, 3: position-independent).
    pub fn of_type(elf_type: u16, code: &[u8], text: &str) -> Self {
        let image = Image::parse(elf(elf_type, code)).unwrap();
        let program = Program::from_text(text).unwrap();
        assert_eq!(program.validate(), Ok(()));
        let runs: Vec<Run> = program.functions.iter().map(|f| run(f.range)).collect();
        let at = Svma::new(0x50_0000);
        let unwind = UnwindInfo::parse(&write_eh_frame(at, &runs).unwrap().bytes, at).unwrap();
        Self { image, program, unwind }
    }

    pub fn request<'a>(&'a self, layout: &'a Layout) -> Request<'a> {
        Request {
            image: &self.image,
            program: &self.program,
            unwind: &self.unwind,
            layout,
            start: Svma::new(START),
            bias: None,
            number: 1,
            bound_slots: &[],
            by_slots: true,
            promote: &[],
            pointers: None,
            large_pages: false,
            counters: None,
        }
    }
}

/// One hot fragment of these blocks.
pub fn order(blocks: &[u32]) -> Layout {
    let blocks = blocks.iter().map(|b| BlockId(*b)).collect();
    Layout { hot: vec![Fragment { blocks, align: 1 }], ..Layout::default() }
}

fn run(range: SvmaRange) -> Run {
    let rows = vec![Row { start: range.start, state: Arc::new(FrameState::at_entry()) }];
    Run { range, rows, personality: None, lsda: None, signal_frame: false }
}

/// An ELF file with one segment and no sections.
fn elf(elf_type: u16, code: &[u8]) -> Vec<u8> {
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    out.resize(16, 0);
    out.extend(elf_type.to_le_bytes());
    out.extend(62u16.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    for value in [BASE, 64, 0] {
        out.extend(value.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for value in [64u16, 56, 1, 64, 0, 0] {
        out.extend(value.to_le_bytes());
    }
    out.extend(1u32.to_le_bytes());
    out.extend(5u32.to_le_bytes());
    let len = code.len() as u64;
    for value in [0x1000, BASE, BASE, len, len, 0x1000] {
        out.extend(u64::to_le_bytes(value));
    }
    out.resize(0x1000, 0);
    out.extend(code);
    out
}
