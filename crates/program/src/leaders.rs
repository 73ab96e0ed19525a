//! Leaders: the addresses at which basic blocks begin, and how control can get there.

use crate::address_set::AddressSet;
use crate::looks::pinned_calls;
use crate::model::JumpTable;
use crate::return_address::Code;
use crate::sweep::{Kind, Sweep};
use crate::words::TableWords;
use restitch_address::Svma;
use restitch_cfi::Lsda;
use restitch_image::{Image, ImageKind, RelocationKind};
use restitch_x86::Naming;

/// All leaders, by the way that control can arrive.
pub(crate) struct Leaders {
    /// Every block start.
    pub all: AddressSet,
    /// Targets of direct branches and calls, and of recognised tables.
    pub branch: AddressSet,
    /// Reached in ways that the analysis does not see: computed gotos, addresses taken, returns of pinned
    /// calls.
    pub indirect: AddressSet,
    /// Those of them that are addresses for certain: made relative to the program counter, or by a
    /// relocation.
    pub made: AddressSet,
    /// Exception landing pads.
    pub pads: AddressSet,
    /// Calls that stay in the original code; each is a block of its own.
    pub pinned: AddressSet,
    /// Calls behind which there may be no code: their functions stay whole.
    pub elsewhere: Vec<Svma>,
    /// Direct branches into the middle of an instruction: their targets.
    pub misaligned: Vec<Svma>,
}

/// Collects all leaders. Function starts and the instructions behind terminators are in `all` only.
pub(crate) fn collect(code: Code<'_>) -> Leaders {
    let Code { image, sweep, tables, .. } = code;
    let set = || AddressSet::new(sweep.text);
    let mut leaders = Leaders {
        all: set(),
        branch: set(),
        indirect: set(),
        made: set(),
        pads: set(),
        pinned: set(),
        elsewhere: Vec::new(),
        misaligned: Vec::new(),
    };
    leaders.add_branches(sweep);
    leaders.add_tables(sweep, tables);
    leaders.add_landing_pads(image, sweep);
    leaders.add_taken_addresses(image, sweep, tables);
    leaders.add_terminators(sweep);
    leaders.add_pinned_calls(code);
    leaders
}

impl Leaders {
    fn add_branches(&mut self, sweep: &Sweep) {
        for &(_, to) in &sweep.targets {
            if sweep.starts.contains(to) {
                self.all.insert(to);
                self.branch.insert(to);
            } else if sweep.text.contains(to) {
                self.misaligned.push(to);
            }
        }
    }

    fn add_tables(&mut self, sweep: &Sweep, tables: &[JumpTable]) {
        for &to in tables.iter().flat_map(|t| t.targets.iter().chain(&t.tail)) {
            if sweep.starts.contains(to) {
                self.all.insert(to);
                self.branch.insert(to);
            }
        }
    }

    fn add_landing_pads(&mut self, image: &Image, sweep: &Sweep) {
        let memory = |at: Svma| image.read_tail(at);
        for span in &sweep.spans {
            let Some(lsda) = span.unwind.and_then(|piece| piece.lsda) else { continue };
            let Ok(lsda) = Lsda::parse(&memory, lsda, span.range) else { continue };
            for pad in lsda.landing_pads() {
                if sweep.starts.contains(pad) {
                    self.all.insert(pad);
                    self.pads.insert(pad);
                }
            }
        }
    }

    /// Text addresses that data or operands name. In a file without relocations every aligned word of data
    /// and every immediate that equals an instruction boundary counts: too many leaders do no harm.
    fn add_taken_addresses(&mut self, image: &Image, sweep: &Sweep, tables: &[JumpTable]) {
        let in_table = TableWords::of(tables);
        let mut take = |at: Svma, for_certain: bool| {
            if sweep.starts.contains(at) {
                self.all.insert(at);
                if !sweep.is_head(at) {
                    self.indirect.insert(at);
                }
            }
            if for_certain {
                self.made.insert(at);
            }
        };
        // What is only read is data, and no place where control goes.
        for named in sweep.named.iter().filter(|n| matches!(n.naming, Naming::Address | Naming::Number)) {
            take(named.to, named.naming == Naming::Address);
        }
        for r in image.relocations() {
            match r.kind {
                RelocationKind::Relative { target }
                | RelocationKind::IRelative { resolver: target }
                | RelocationKind::JumpSlot { definition: Some(target), .. } => take(target, true),
                RelocationKind::Symbolic { definition: Some(symbol), addend, .. } => {
                    take(symbol.offset(addend), true);
                }
                _ => {}
            }
        }
        if image.kind() == ImageKind::Executable {
            for segment in image.segments() {
                let Some(bytes) = image.read(segment.range.start, segment.file_len as usize) else {
                    continue;
                };
                if segment.executable {
                    continue;
                }
                for (i, word) in bytes.chunks_exact(8).enumerate() {
                    if !in_table.contains(segment.range.start + 8 * i as u64) {
                        let number = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                        take(Svma::new(number), false);
                    }
                }
            }
        }
    }

    fn add_terminators(&mut self, sweep: &Sweep) {
        for span in &sweep.spans {
            self.all.insert(span.range.start);
            let minis = sweep.minis_of(span);
            for pair in minis.windows(2) {
                // Filler behind a block that control leaves is a block of its own, so that it is never
                // copied.
                let filler_begins = pair[1].kind == Kind::Padding && pair[0].kind.ends_block();
                let filler_ends = pair[0].kind == Kind::Padding && self.all.contains(sweep.address(&pair[0]));
                if pair[0].kind.ends_block() || filler_begins || filler_ends && pair[1].kind != Kind::Padding
                {
                    self.all.insert(sweep.address(&pair[1]));
                }
            }
        }
    }

    fn add_pinned_calls(&mut self, code: Code<'_>) {
        let sweep = code.sweep;
        let pinned = pinned_calls(code);
        (self.pinned, self.elsewhere) = (pinned.calls, pinned.elsewhere);
        for at in pinned.resumed.into_iter().filter(|at| sweep.starts.contains(*at)) {
            self.all.insert(at);
            self.indirect.insert(at);
        }
        for mini in &sweep.minis {
            let at = sweep.address(mini);
            if matches!(mini.kind, Kind::Call | Kind::IndirectCall) && self.pinned.contains(at) {
                let behind = at + u64::from(mini.len);
                self.all.insert(at);
                if sweep.starts.contains(behind) {
                    self.all.insert(behind);
                    self.indirect.insert(behind);
                }
            }
        }
    }
}
