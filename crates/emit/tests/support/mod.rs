//! A second opinion on emitted versions, for tests: decodes the bytes and compares them with the original
//! code through the address map, instruction by instruction.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod small;

use restitch_address::Svma;
use restitch_cfi::{Bytes, Cfa, Lsda, Register, Row, UnwindForm, UnwindInfo};
use restitch_emit::{Counted, CounterWidth, MapPiece, PieceKind, Request, Version};
use restitch_image::Image;
use restitch_program::{BlockAttrs, BlockId, EdgeKind, Program, TableEncoding, Terminator};
use restitch_x86::{ALL_FLAGS, Flow, Insn, RipField, encode, relocate_field};
use std::collections::{HashMap, HashSet};

/// What a comparison has seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub instructions: usize,
    pub branches: usize,
    pub table_entries: usize,
    pub covered_calls: usize,
    pub counters: usize,
    pub by_slot: usize,
}

pub struct Comparison<'a> {
    pub image: &'a Image,
    pub program: &'a Program,
    pub unwind: &'a dyn UnwindForm,
    pub version: &'a Version,
    copies: HashMap<Svma, Svma>,
    /// Starts of copies.
    entered: HashSet<Svma>,
    /// The counter of each counted thing.
    numbers: HashMap<Counted, u32>,
}

type Decoded = (Insn, Option<RipField>);

impl<'a> Comparison<'a> {
    pub fn new(request: &Request<'a>, version: &'a Version) -> Self {
        let copies =
            version.blocks.iter().map(|b| (request.program.block(b.block).start, b.version.start)).collect();
        let entered = version.blocks.iter().map(|b| b.version.start).collect();
        let counted = version.counters.iter().flat_map(|c| c.counted.iter());
        let numbers = counted.enumerate().map(|(i, c)| (*c, i as u32)).collect();
        Self {
            entered,
            numbers,
            image: request.image,
            program: request.program,
            unwind: request.unwind,
            version,
            copies,
        }
    }

    fn original(&self, at: Svma) -> Decoded {
        let bytes = self.image.read_tail(at).expect("original bytes");
        relocate_field(&bytes[..bytes.len().min(15)], at).expect("original instruction")
    }

    fn moved_bytes(&self, at: Svma) -> &'a [u8] {
        assert!(self.version.text.contains(at), "{at} is outside the version's text");
        let offset = at.offset_from(self.version.range.start) as usize;
        &self.version.bytes[offset..self.version.text.end.offset_from(self.version.range.start) as usize]
    }

    fn moved(&self, at: Svma) -> Decoded {
        let bytes = self.moved_bytes(at);
        relocate_field(&bytes[..bytes.len().min(15)], at).unwrap_or_else(|| panic!("no instruction at {at}"))
    }

    /// The piece that starts at or holds `at`.
    fn piece(&self, at: Svma) -> &MapPiece {
        let pieces = &self.version.map.pieces;
        let i = pieces.partition_point(|p| p.version <= at) - 1;
        let piece = &pieces[i];
        assert!(at.offset_from(piece.version) < i64::from(piece.len), "{at} is filler");
        piece
    }

    /// The original address that standing at `at`, anywhere, is equal to, after what restitch added there.
    fn follow(&self, mut at: Svma) -> Svma {
        for _ in 0..100 {
            if !self.version.text.contains(at) {
                return at;
            }
            let piece = self.piece(at);
            match piece.kind {
                PieceKind::Linear => return self.version.map.to_original(at).expect("linear"),
                PieceKind::Branch => {
                    assert_eq!(piece.version, at);
                    // A kept jump and its target are different places, but the same thing.
                    return piece.original;
                }
                // Looked at on its own: see `added`.
                PieceKind::Added => return self.skip(piece.original),
                PieceKind::Inserted if self.is_call_by_slot(piece) => {
                    assert_eq!(piece.version, at);
                    return piece.original;
                }
                PieceKind::Inserted => {
                    at = self.behind_counter(at);
                }
                PieceKind::Opaque => panic!("control comes to {at}, inside an opaque piece"),
            }
        }
        panic!("endless at {at}");
    }

    /// Whether a stub's slot is called here in place of the stub: all but the last byte.
    fn is_call_by_slot(&self, piece: &MapPiece) -> bool {
        piece.kind == PieceKind::Inserted && self.moved_bytes(piece.version).starts_with(&[0xff, 0x15])
    }

    /// Whether the instruction at `version` goes through the slot of the stub at `stub`.
    fn by_slot(&self, version: Svma, stub: Svma) -> bool {
        let (insn, rip) = self.moved(version);
        let stub = self.image.plt_slot_at(stub).filter(|s| s.stub.start == stub).expect("a stub");
        insn.len == 6 && rip.expect("a slot").target == stub.slot
    }

    fn call_by_slot(&self, piece: &MapPiece, unwind: &dyn UnwindForm, rows: &mut Cache, seen: &mut Seen) {
        let ((a, _), (b, _)) = (self.original(piece.original), self.moved(piece.version));
        let Flow::Call(stub) = a.flow else { panic!("called at {}: {a:?}", piece.original) };
        assert!(b.flow == Flow::IndirectCall && self.by_slot(piece.version, stub), "{}", piece.version);
        assert_eq!((piece.len, a.len), (5, 5));
        assert_eq!(self.version.map.to_original(b.end() - 1), Some(a.end() - 1), "{}", piece.version);
        self.same_frame(a.at, b.at, unwind, rows);
        self.same_frame(a.end() - 1, b.end() - 1, unwind, rows);
        self.same_exceptions(a, b, unwind, rows, seen);
        seen.instructions += 1;
        seen.by_slot += 1;
    }

    fn added(&self, piece: &MapPiece) {
        let (insn, _) = self.moved(piece.version);
        if insn.flow == Flow::IndirectJump {
            assert!(self.by_slot(piece.version, piece.original), "{}", piece.version);
            return;
        }
        let Flow::Jump(to) = insn.flow else { panic!("added at {}: {insn:?}", piece.version) };
        assert_eq!(u32::from(insn.len), piece.len);
        self.same_place(to, piece.original, "added jump");
    }

    fn behind_counter(&self, at: Svma) -> Svma {
        let piece = self.piece(at);
        let next = self.piece(piece.version + u64::from(piece.len) - 1);
        let bytes = self.moved_bytes(at);
        let width = self.version.counters.as_ref().expect("counters").width;
        let plain = plain_count(width);
        if bytes.starts_with(plain) {
            assert_eq!(next.len as usize, plain.len() + 4);
            return at + u64::from(next.len);
        }
        let keeping = match width {
            CounterWidth::Bits64 => encode::keeping_count(),
            CounterWidth::Bits32 => encode::keeping_count().narrow(),
        };
        assert!(bytes.starts_with(&keeping.bytes[..13]), "counter at {at}");
        at + u64::from(encode::KEEPING_COUNT)
    }

    /// Where control really goes on from the original `at`: past the jumps that copies may leave out.
    fn skip(&self, mut at: Svma) -> Svma {
        for _ in 0..100 {
            let Some(block) = self.program.block_at(at) else { return at };
            let block = self.program.block(block);
            match block.terminator {
                Terminator::Jump(to)
                    if block.terminator_at() == at && self.copies.contains_key(&block.start) =>
                {
                    at = to;
                }
                _ => return at,
            }
        }
        at
    }

    fn same_place(&self, version: Svma, original: Svma, what: &str) {
        let there = self.skip(self.follow(version));
        assert_eq!(there, self.skip(original), "{what} leads to {version}");
    }

    /// Compares everything; panics at the first difference.
    pub fn run(&self) -> Seen {
        let mut seen = Seen::default();
        let unwind = self.moved_unwind();
        let mut rows = Cache::default();
        for piece in &self.version.map.pieces {
            match piece.kind {
                PieceKind::Linear | PieceKind::Opaque if !self.is_keeping(piece) => {
                    self.linear(piece, &unwind, &mut rows, &mut seen);
                }
                PieceKind::Branch => self.branch(piece, &mut seen),
                PieceKind::Added => self.added(piece),
                PieceKind::Inserted if self.is_call_by_slot(piece) => {
                    self.call_by_slot(piece, &unwind, &mut rows, &mut seen);
                }
                PieceKind::Inserted => {
                    seen.counters += 1;
                    self.counter(piece, &unwind);
                }
                PieceKind::Linear | PieceKind::Opaque => {}
            }
        }
        for block in &self.version.blocks {
            self.ends(block.block, &mut seen);
        }
        for redirect in &self.version.redirects {
            // The marker before it does nothing, so it may run again where it is a block of its own.
            let again = self.follow(redirect.to) == redirect.at.offset(-4)
                && self.image.read(redirect.at.offset(-4), 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa])
                && self.program.block_starting_at(redirect.at).is_some();
            let at = if again { redirect.at.offset(-4) } else { redirect.at };
            self.same_place(redirect.to, at, "redirect");
        }
        seen
    }

    fn is_keeping(&self, piece: &MapPiece) -> bool {
        piece.kind == PieceKind::Opaque && {
            let (insn, _) = self.moved(piece.version);
            let (first, _) = self.original(piece.original);
            insn.len == 1 && self.moved_bytes(piece.version)[..2] == [0x50, 0x9f] && first.len > 0
        }
    }

    fn moved_unwind(&self) -> UnwindInfo {
        let v = self.version;
        let offset = |at: Svma| at.offset_from(v.range.start) as usize;
        UnwindInfo::parse(&v.bytes[offset(v.eh_frame.start)..offset(v.eh_frame.end)], v.eh_frame.start)
            .unwrap()
    }

    fn linear(&self, piece: &MapPiece, unwind: &dyn UnwindForm, rows: &mut Cache, seen: &mut Seen) {
        // The last byte of a call through a slot may stand in front.
        let pieces = &self.version.map.pieces;
        let before = pieces.partition_point(|p| p.version < piece.version).checked_sub(1).map(|i| &pieces[i]);
        let before = before.filter(|p| p.version + u64::from(p.len) == piece.version);
        let mut done = u64::from(before.is_some_and(|p| self.is_call_by_slot(p)));
        while done < u64::from(piece.len) {
            let (from, to) = (piece.original + done, piece.version + done);
            let ((a, a_rip), (b, b_rip)) = (self.original(from), self.moved(to));
            assert_eq!(a.len, b.len, "{from} {to}");
            assert_eq!(a_rip.map(|r| r.target), b_rip.map(|r| r.target), "{from} {to}");
            match (a.flow, b.flow) {
                (Flow::Call(x), Flow::Call(y)) => self.same_place(y, x, "call"),
                (x, y) => assert_eq!(x, y, "{from} {to}"),
            }
            let (x, y) =
                (self.image.read(from, a.len.into()).unwrap(), &self.moved_bytes(to)[..a.len.into()]);
            let differ = x.iter().zip(y).enumerate().filter(|(_, (x, y))| x != y).map(|(i, _)| i);
            let field = a_rip.map(|r| usize::from(r.offset)).unwrap_or(usize::from(a.len).saturating_sub(4));
            let may_differ = a_rip.is_some() || matches!(a.flow, Flow::Call(_));
            assert!(differ.clone().all(|i| may_differ && (field..field + 4).contains(&i)), "{from} {to}");
            self.same_frame(from, to, unwind, rows);
            if matches!(a.flow, Flow::Call(_) | Flow::IndirectCall) {
                self.same_exceptions(a, b, unwind, rows, seen);
            }
            seen.instructions += 1;
            done += u64::from(a.len);
        }
        assert_eq!(done, u64::from(piece.len), "piece at {}", piece.version);
    }

    fn same_frame(&self, from: Svma, to: Svma, unwind: &dyn UnwindForm, rows: &mut Cache) {
        let a = rows.at(self.unwind, from, false).expect("original row");
        let b = rows.at(unwind, to, true).unwrap_or_else(|| panic!("no unwind entry for {to}"));
        assert_eq!(a.state, b.state, "{from} {to}");
    }

    /// A call is covered as it was.
    fn same_exceptions(&self, a: Insn, b: Insn, unwind: &dyn UnwindForm, rows: &mut Cache, seen: &mut Seen) {
        let entry = self.unwind.piece_at(a.at).unwrap();
        let moved = unwind.piece_at(b.at).unwrap();
        assert_eq!(entry.personality, moved.personality);
        assert_eq!(entry.lsda.is_some() && entry.personality.is_some(), moved.lsda.is_some());
        let (Some(x), Some(y)) = (entry.lsda, moved.lsda) else { return };
        let image = self.image;
        let x = rows
            .lsdas
            .entry((false, x))
            .or_insert_with(|| Lsda::parse(&|at| image.read_tail(at), x, entry.range).unwrap());
        let x_site = x.call_site_at(a.end() - 1).copied();
        let bytes = Bytes { at: self.version.range.start, bytes: &self.version.bytes };
        let y = rows.lsdas.entry((true, y)).or_insert_with(|| Lsda::parse(&bytes, y, moved.range).unwrap());
        let y_site = y.call_site_at(b.end() - 1).copied();
        assert_eq!(x_site.is_some(), y_site.is_some(), "call at {} {}", a.at, b.at);
        let (Some(x_site), Some(y_site)) = (x_site, y_site) else { return };
        assert_eq!(x_site.action, y_site.action);
        if x_site.action > 0 {
            // Reading stops behind the last one in use.
            let (x, y) =
                (&rows.lsdas[&(false, entry.lsda.unwrap())], &rows.lsdas[&(true, moved.lsda.unwrap())]);
            assert!(x.actions.starts_with(&y.actions) && y.actions.len() as u64 >= x_site.action, "{}", b.at);
            assert!(x.types.starts_with(&y.types) && x.filters.starts_with(&y.filters), "{}", b.at);
            assert!(x.indirect_types == y.indirect_types || y.types.is_empty(), "{}", b.at);
        }
        assert_eq!(x_site.landing_pad, y_site.landing_pad, "pad of {}", b.at);
        seen.covered_calls += 1;
    }

    fn branch(&self, piece: &MapPiece, seen: &mut Seen) {
        let (a, _) = self.original(piece.original);
        let (b, _) = self.moved(piece.version);
        assert_eq!(u32::from(b.len), piece.len);
        let fall = piece.version + u64::from(piece.len);
        seen.branches += 1;
        match (a.flow, b.flow) {
            (Flow::Jump(x), Flow::Jump(y)) => self.same_place(y, x, "jump"),
            (Flow::Conditional(p, x), Flow::Conditional(q, y)) if p == q => {
                self.same_place(y, x, "taken");
                self.same_place(fall, a.end(), "fall-through");
            }
            (Flow::Conditional(p, x), Flow::Conditional(q, y)) => {
                assert_eq!(p, q.inverted());
                self.same_place(y, a.end(), "inverted");
                self.same_place(fall, x, "inverted fall-through");
            }
            (Flow::ShortConditional(x), Flow::ShortConditional(y)) => {
                self.same_place(y, x, "short");
                self.same_place(fall, a.end(), "short fall-through");
            }
            (Flow::Jump(stub), Flow::IndirectJump) => {
                assert!(self.by_slot(piece.version, stub), "{}", piece.version);
                seen.by_slot += 1;
            }
            // The load of a table's entry, or the jump through it.
            (Flow::Next, Flow::Next) | (Flow::IndirectJump, Flow::IndirectJump) => {}
            other => panic!("{}: {other:?}", piece.version),
        }
    }

    /// What stands behind the last original instruction of a block.
    fn ends(&self, id: BlockId, seen: &mut Seen) {
        let block = self.program.block(id);
        let at =
            |original| self.version.to_version(original).unwrap_or_else(|| panic!("{original} is nowhere"));
        self.same_place(at(block.start), block.start, "start");
        assert_eq!(at(block.start), self.copies[&block.start], "{}", block.start);
        if block.terminator_len > 0 && !matches!(block.terminator, Terminator::Table(_)) {
            self.same_place(at(block.terminator_at()), block.terminator_at(), "terminator");
        }
        self.edge_counters(id);
        if let Terminator::Table(table) = block.terminator {
            self.table(self.program.table(table), seen);
        }
    }

    fn table(&self, table: &restitch_program::JumpTable, seen: &mut Seen) {
        let mut load = self.version.to_version(table.load_at).expect("load");
        if self.piece(load).kind == PieceKind::Inserted {
            load = load + u64::from(self.counted(load).1);
        }
        let offset = |at: Svma| at.offset_from(self.version.range.start) as usize;
        if self.piece(load).kind != PieceKind::Branch {
            return;
        }
        let bytes = self.moved_bytes(load);
        let (old, _) = self.original(table.load_at);
        let original = self.image.read(table.load_at, old.len.into()).unwrap();
        let disp = |bytes: &[u8]| {
            let decoded = restitch_x86::decode_one(&bytes[..bytes.len().min(15)], load).unwrap();
            match decoded.op {
                restitch_x86::Op::Load { mem, .. } | restitch_x86::Op::JumpMemory(mem) => mem.disp,
                other => panic!("{other:?}"),
            }
        };
        let copy = table.table.offset(disp(bytes) - disp(original));
        assert!(self.version.tables.contains(copy), "{copy}");
        for (i, target) in table.targets.iter().chain(&table.tail).enumerate() {
            let entry = |size: u64| {
                let at = offset(copy + size * i as u64);
                &self.version.bytes[at..at + size as usize]
            };
            let to = match table.encoding {
                TableEncoding::Relative4 => {
                    table.base.offset(i32::from_le_bytes(entry(4).try_into().unwrap()).into())
                }
                TableEncoding::Absolute8 => Svma::new(u64::from_le_bytes(entry(8).try_into().unwrap())),
            };
            self.same_place(to, *target, "table entry");
            seen.table_entries += 1;
        }
    }
}

/// The plain increment up to its field.
fn plain_count(width: CounterWidth) -> &'static [u8] {
    match width {
        CounterWidth::Bits64 => &[0x48, 0xff, 0x05],
        CounterWidth::Bits32 => &[0xff, 0x05],
    }
}

/// Counters.
impl Comparison<'_> {
    /// What the counter at `at` counts, and its length.
    fn counted(&self, at: Svma) -> (Counted, u32) {
        let table = self.version.counters.as_ref().expect("counters");
        let bytes = self.moved_bytes(at);
        let keeping = encode::keeping_count();
        let (field, end, len) = match (bytes.starts_with(plain_count(table.width)), table.width) {
            (true, CounterWidth::Bits64) => (3, 7, encode::COUNT),
            (true, CounterWidth::Bits32) => (2, 6, encode::COUNT_NARROW),
            (false, _) => (keeping.field, keeping.field_end, encode::KEEPING_COUNT),
        };
        let displacement = i32::from_le_bytes(bytes[field as usize..][..4].try_into().unwrap());
        let word = (at + u64::from(end)).offset(displacement.into());
        assert!(table.area.contains(word));
        let number = word.offset_from(table.area.start) as usize / table.width.bytes() as usize;
        assert!(!table.missing.contains(&(number as u32)));
        (table.counted[number], len)
    }

    fn counter(&self, piece: &MapPiece, unwind: &dyn UnwindForm) {
        let (counted, len) = self.counted(piece.version);
        let frame = |at| match unwind.state_at(at).unwrap().unwrap().state.cfa {
            Cfa::RegisterOffset { register: Register::RSP, offset } => Some(offset),
            _ => None,
        };
        let live = match counted {
            Counted::Block(id) => {
                let block = self.program.block(id);
                let start = self.copies[&block.start];
                let i = self.version.blocks.partition_point(|b| b.version.start < start);
                let mut placed = self.version.blocks[i..].iter().take_while(|b| b.version.start == start);
                let placed = placed.find(|b| b.block == id).unwrap();
                assert!(placed.version.contains(piece.version));
                assert!(piece.original >= block.start && piece.original <= block.terminator_at());
                self.flags_live(id, piece.original)
            }
            Counted::Edge(id) => {
                let to = self.program.block(self.program.edges[id.index()].to);
                assert_eq!(piece.original, to.start);
                to.attrs.contains(BlockAttrs::FLAGS_LIVE_IN)
            }
        };
        assert!(len == encode::KEEPING_COUNT || !live, "counter at {}", piece.version);
        if len == encode::KEEPING_COUNT
            && let Some(before) = frame(piece.version)
        {
            for (offset, bytes) in encode::keeping_count().stack {
                assert_eq!(frame(piece.version + u64::from(*offset)), Some(before + i64::from(*bytes)));
            }
        }
    }

    /// Whether something may read the flags that hold at `at`, in the block, before they are written.
    fn flags_live(&self, id: BlockId, mut at: Svma) -> bool {
        let block = self.program.block(id);
        if at == block.start {
            return block.attrs.contains(BlockAttrs::FLAGS_LIVE_IN);
        }
        let live_in = |b: BlockId| self.program.block(b).attrs.contains(BlockAttrs::FLAGS_LIVE_IN);
        // What nobody reads from the start on is dead until something is written.
        let mut written = 0;
        let mut before = block.start;
        while before < at {
            let (insn, _) = self.original(before);
            written |= insn.flags_written;
            before = before + u64::from(insn.len);
        }
        if written == 0 && !live_in(id) {
            return false;
        }
        let mut open = ALL_FLAGS;
        while at < block.end() {
            let (insn, _) = self.original(at);
            if insn.flags_read & open != 0 {
                return true;
            }
            open &= !insn.flags_written;
            match insn.flow {
                _ if open == 0 => return false,
                Flow::Call(to) => {
                    let opaque = self.program.function_at(to).is_some();
                    return self.program.block_starting_at(to).map_or(opaque, live_in);
                }
                _ => at = insn.end(),
            }
        }
        self.program.out_edges(id).count() == 0 || self.program.out_edges(id).any(|(_, e)| live_in(e.to))
    }

    /// The edge counters that control passes from `at` until it enters a block or the original code.
    fn passed(&self, mut at: Svma, entered: &HashSet<Svma>) -> Vec<Counted> {
        let mut out = Vec::new();
        while self.version.text.contains(at) && !entered.contains(&at) {
            let piece = self.piece(at);
            match piece.kind {
                PieceKind::Inserted => {
                    let (counted, len) = self.counted(at);
                    if matches!(counted, Counted::Edge(_)) {
                        out.push(counted);
                    }
                    at = at + u64::from(len);
                }
                PieceKind::Added | PieceKind::Branch => match self.moved(at).0.flow {
                    Flow::Jump(to) => at = to,
                    // To a stub's slot.
                    Flow::IndirectJump => break,
                    other => panic!("{at}: {other:?}"),
                },
                other => panic!("{at}: {other:?}"),
            }
        }
        out
    }

    fn edge_counters(&self, id: BlockId) {
        let Some(table) = &self.version.counters else { return };
        let block = self.program.block(id);
        let entered = &self.entered;
        let expect = |kind, at: Svma| {
            let edges = self.program.out_edges(id).filter(|(_, e)| e.kind == kind);
            let counters = edges.map(|(e, _)| (e, self.numbers.get(&Counted::Edge(e)).copied()));
            let expected: Vec<Counted> = counters
                .filter(|(_, n)| n.is_some_and(|n| table.missing.binary_search(&n).is_err()))
                .map(|(e, _)| Counted::Edge(e))
                .collect();
            assert_eq!(self.passed(at, entered), expected, "{kind:?} edge of {} at {at}", block.start);
        };
        let exit = || self.version.to_version(block.terminator_at()).unwrap();
        match block.terminator {
            Terminator::Jump(_) => {
                // Where nothing but the jump is left of the block, its start is not where the edge ends.
                let at = exit();
                let empty = block.terminator_at() == block.start && self.piece(at).version == at;
                match empty && self.piece(at).kind == PieceKind::Branch {
                    true => match self.moved(at).0.flow {
                        Flow::Jump(to) => expect(EdgeKind::Taken, to),
                        Flow::IndirectJump => expect(EdgeKind::Taken, at),
                        other => panic!("{at}: {other:?}"),
                    },
                    false if empty && self.piece(at).kind == PieceKind::Inserted => {
                        let (counted, len) = self.counted(at);
                        if counted == Counted::Block(id) {
                            expect(EdgeKind::Taken, at + u64::from(len));
                        }
                    }
                    false => expect(EdgeKind::Taken, at),
                }
            }
            Terminator::Conditional(condition, _) => {
                let mut at = exit();
                while self.piece(at).kind == PieceKind::Inserted {
                    at = at + u64::from(self.counted(at).1);
                }
                let (insn, _) = self.moved(at);
                let Flow::Conditional(now, to) = insn.flow else { panic!("{at}: {insn:?}") };
                let (away, on) = match now == condition {
                    true => (EdgeKind::Taken, EdgeKind::FallThrough),
                    false => (EdgeKind::FallThrough, EdgeKind::Taken),
                };
                expect(away, to);
                expect(on, insn.end());
            }
            Terminator::FallThrough => {
                let mut last = block.start;
                while self.original(last).0.end() < block.end() {
                    last = self.original(last).0.end();
                }
                let at = self.version.to_version(last).unwrap();
                let piece = self.piece(at);
                let at = if piece.kind == PieceKind::Inserted && !self.is_call_by_slot(piece) {
                    at + u64::from(self.counted(at).1)
                } else {
                    at
                };
                expect(EdgeKind::FallThrough, at + u64::from(self.moved(at).0.len));
            }
            _ => {}
        }
    }
}

/// Rows of the entries that were looked at, and exception tables.
#[derive(Default)]
struct Cache {
    rows: HashMap<(bool, Svma), Vec<Row>>,
    lsdas: HashMap<(bool, Svma), Lsda>,
}

impl Cache {
    fn at(&mut self, unwind: &dyn UnwindForm, at: Svma, moved: bool) -> Option<Row> {
        let entry = unwind.piece_at(at)?;
        let rows =
            self.rows.entry((moved, entry.range.start)).or_insert_with(|| unwind.rows_of(&entry).unwrap());
        let i = rows.partition_point(|row| row.start <= at);
        Some(rows[i.checked_sub(1)?].clone())
    }
}
