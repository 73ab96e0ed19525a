//! Modules and versions to check.
#![allow(dead_code, reason = "each test program uses a part")]

use restitch_address::{LoadBias, Svma};
use restitch_cfi::UnwindInfo;
use restitch_emit::{Counted, CounterRequest, CounterWidth, Executions, Request, Version, emit_for};
use restitch_image::{Image, ImageKind};
use restitch_layout::Layout;
use restitch_program::{BlockId, CallId, CallTarget, Edge, EdgeId, EdgeKind, Program, analyze};

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

    /// What is asked for a version for a file, at `start`, with nothing special.
    pub fn request<'a>(&'a self, layout: &'a Layout, start: Svma) -> Request<'a> {
        Request {
            image: &self.image,
            program: &self.program,
            unwind: &self.unwind,
            layout,
            start,
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

    pub fn bias(&self) -> Option<LoadBias> {
        Some(LoadBias::default())
    }

    pub fn version(&self, layout: &Layout, counted: &[Counted]) -> Version {
        let below = self.image.span().start.align_down(4096).offset(-0x1000_0000);
        let above = self.image.span().end.align_up(4096) + 0x20_0000;
        let start = if self.image.kind() == ImageKind::Executable { above } else { below };
        // Both widths take their turns.
        let width = if counted.len().is_multiple_of(2) { CounterWidth::Bits32 } else { CounterWidth::Bits64 };
        // Whatever can vote does.
        let calls = self.program.calls.iter().enumerate();
        let calls = calls.filter(|(_, call)| call.target == CallTarget::Indirect);
        let votes: Vec<CallId> = calls.map(|(i, _)| CallId(i as u32)).collect();
        let counters =
            CounterRequest { area_start: start.offset(-0x400_0000), width, counted, votes: &votes };
        // Branches that lead away both ways are turned, every other one.
        let edges: Vec<u64> = (0..self.program.edges.len() as u64).map(|i| i * 7919 % 1009).collect();
        let request = Request {
            bias: self.bias(),
            counters: (!counted.is_empty()).then_some(counters),
            ..self.request(layout, start)
        };
        emit_for(&request, Executions { blocks: &[], edges: &edges }).unwrap()
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
