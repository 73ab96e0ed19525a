//! Writes the group module of functions as they are in a folder of copies of a kernel's files, in their own
//! order of blocks or in the reverse one: for tries in a guest.
//!
//! `copy FOLDER CONTROL_MODULE OUTPUT NAME kept|reversed FUNCTION...`. Calls of the first function are led to
//! the copies. It knows what it needs to, and stops at anything else.

use restitch_address::Svma;
use restitch_kernel_group::{
    Anchor, Block, Chunk, End, Exception, Fixup, Function, Group, Heat, KernelPlaces, ModuleFacts, Target,
    ThunkRegister, UnwindRow, Warning, write_module,
};
use restitch_x86::{Flow, Insn, relocate_field, scan};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

struct View {
    core: Vec<u8>,
    /// Address, length, offset in the core.
    loads: Vec<(u64, u64, u64)>,
    symbols: HashMap<String, u64>,
    names: BTreeMap<u64, Vec<String>>,
}

impl View {
    fn read(folder: &str) -> Self {
        let core = fs::read(format!("{folder}/proc/kcore")).expect("a core");
        let word = |at: usize| u64::from_le_bytes(*core[at..].first_chunk().expect("a header"));
        let headers = u16::from_le_bytes([core[56], core[57]]);
        let header = |i: u16| word(32) as usize + 56 * usize::from(i);
        let is_load = |at: &usize| core[*at] == 1;
        let load = |at: usize| (word(at + 16), word(at + 32), word(at + 8));
        let loads = (0..headers).map(header).filter(is_load).map(load).collect();
        let (mut symbols, mut names) = (HashMap::new(), BTreeMap::<u64, Vec<String>>::new());
        for line in fs::read_to_string(format!("{folder}/proc/kallsyms")).expect("symbols").lines() {
            let mut words = line.split_whitespace();
            let (Some(at), Some(_), Some(name), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let at = u64::from_str_radix(at, 16).expect("an address");
            symbols.insert(name.to_owned(), at);
            names.entry(at).or_default().push(name.to_owned());
        }
        Self { core, loads, symbols, names }
    }
    fn bytes(&self, at: u64, len: u64) -> &[u8] {
        let holds = |load: &&(u64, u64, u64)| load.0 <= at && at + len <= load.0 + load.1;
        let load = self.loads.iter().find(holds).unwrap_or_else(|| panic!("{at:#x} is not in the core"));
        let from = (load.2 + at - load.0) as usize;
        &self.core[from..from + len as usize]
    }
    fn symbol(&self, name: &str) -> u64 {
        *self.symbols.get(name).unwrap_or_else(|| panic!("no symbol {name}"))
    }
    /// Entries between two symbols, with their addresses.
    fn table(&self, from: &str, to: &str, len: u64) -> Vec<(u64, &[u8])> {
        let (from, to) = (self.symbol(from), self.symbol(to));
        let entries = self.bytes(from, to - from).chunks(len as usize);
        entries.enumerate().map(|(i, entry)| (from + i as u64 * len, entry)).collect()
    }
    /// The thunk at an address: `return`, or a register.
    fn thunk(&self, at: u64) -> Option<&str> {
        let names = self.names.get(&at)?;
        names.iter().find_map(|name| match name.strip_prefix("__x86_indirect_thunk_") {
            Some("array") => None,
            Some(register) => Some(register),
            None => (name == "__x86_return_thunk").then_some("return"),
        })
    }
}

fn pointer(entry: (u64, &[u8]), at: usize) -> u64 {
    let word = i32::from_le_bytes(*entry.1[at..].first_chunk().expect("a word"));
    (entry.0 + at as u64).wrapping_add(i64::from(word) as u64)
}

struct Tables {
    exceptions: BTreeMap<u64, (u64, u32)>,
    keys: BTreeMap<u64, (u64, u64)>,
    calls: BTreeMap<u64, u64>,
    warnings: BTreeMap<u64, (u64, Vec<u8>)>,
    unwind: BTreeMap<u64, [u8; 6]>,
}

impl Tables {
    fn read(view: &View, warning_len: u64) -> Self {
        let exceptions = view.table("__start___ex_table", "__stop___ex_table", 12);
        let exception = |e: &(u64, &[u8])| {
            (pointer(*e, 0), (pointer(*e, 4), u32::from_le_bytes(*e.1[8..].first_chunk().expect("a word"))))
        };
        let key = |e: &(u64, &[u8])| {
            let word = u64::from_le_bytes(*e.1[8..].first_chunk().expect("a word"));
            (pointer(*e, 0), (pointer(*e, 4), (e.0 + 8).wrapping_add(word)))
        };
        let places = view.table("__start_orc_unwind_ip", "__stop_orc_unwind_ip", 4);
        let rows = view.table("__start_orc_unwind", "__stop_orc_unwind", 6);
        Self {
            exceptions: exceptions.iter().map(exception).collect(),
            keys: view.table("__start___jump_table", "__stop___jump_table", 16).iter().map(key).collect(),
            calls: view
                .table("__start_static_call_sites", "__stop_static_call_sites", 8)
                .iter()
                .map(|e| (pointer(*e, 0), pointer(*e, 4)))
                .collect(),
            warnings: view
                .table("__start___bug_table", "__stop___bug_table", warning_len)
                .iter()
                .map(|e| (pointer(*e, 0), (e.0, e.1.to_vec())))
                .collect(),
            unwind: places
                .iter()
                .zip(&rows)
                .map(|(place, row)| (pointer(*place, 0), *row.1.first_chunk().expect("a row")))
                .collect(),
        }
    }
}

/// The register of `call *%reg` or `jmp *%reg` at the start of the bytes, `lfence` in front or not.
fn plain_register(bytes: &[u8]) -> Option<ThunkRegister> {
    let bytes = bytes.strip_prefix(&[0x0f, 0xae, 0xe8]).unwrap_or(bytes);
    let (high, bytes) = match bytes {
        [0x41, rest @ ..] => (8, rest),
        rest => (0, rest),
    };
    match bytes {
        [0xff, modrm @ (0xd0..=0xd7 | 0xe0..=0xe7), ..] => ThunkRegister::new((modrm & 7) + high),
        _ => None,
    }
}

struct Copier<'a> {
    view: &'a View,
    tables: &'a Tables,
}

impl Copier<'_> {
    fn function(&self, name: &str) -> (Function, Vec<Block>) {
        let start = self.view.symbol(name);
        let end = *self.view.names.range(start + 1..).next().expect("something behind").0;
        let bytes = self.view.bytes(start, end - start);
        let insns = self.insns(bytes, start);
        let blocks = self.blocks(&insns, bytes, start, end);
        (Function { name: name.into(), address: Svma::new(start), is_redirected: false }, blocks)
    }

    /// The instructions, with the places that the kernel rewrites as one each.
    fn insns(&self, bytes: &[u8], start: u64) -> Vec<Insn> {
        let mut insns = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let mut one = None;
            let _ = scan(&bytes[at..], Svma::new(start + at as u64), |insn| one = one.or(Some(insn)));
            let mut insn = one.unwrap_or_else(|| panic!("no instruction at {:#x}", start + at as u64));
            let here = insn.at.get();
            match insn.flow {
                Flow::Jump(to) if self.view.thunk(to.get()) == Some("return") => insn.flow = Flow::Return,
                Flow::Jump(to) if self.view.thunk(to.get()).is_some() => insn.flow = Flow::IndirectJump,
                Flow::Call(to) if self.view.thunk(to.get()).is_some() => insn.flow = Flow::IndirectCall,
                _ => {}
            }
            if insn.flow == Flow::Stop && self.tables.warnings.contains_key(&here) {
                let goes_on = self.tables.warnings[&here].1.last_chunk::<2>().expect("flags")[0] & 1 != 0;
                insn.flow = if goes_on { Flow::Next } else { Flow::Stop };
            }
            if let Some(register) = plain_register(&bytes[at..]) {
                let is_call = bytes[at..at + 6]
                    .iter()
                    .zip(&bytes[at + 1..])
                    .any(|(a, b)| *a == 0xff && b & 0xf8 == 0xd0);
                insn.flow = if is_call { Flow::IndirectCall } else { Flow::IndirectJump };
                insn.len = restitch_x86::module_code::through_thunk_len(register) as u8;
            }
            at += usize::from(insn.len);
            insns.push(insn);
        }
        insns
    }

    fn blocks(&self, insns: &[Insn], bytes: &[u8], start: u64, end: u64) -> Vec<Block> {
        let mut leaders = BTreeSet::from([start]);
        let mut lead = |at: u64| (start..end).contains(&at).then(|| leaders.insert(at));
        for insn in insns {
            if bytes[(insn.at.get() - start) as usize] == 0xcc {
                lead(insn.at.get());
            }
            let key = self.tables.keys.get(&insn.at.get()).map(|(target, _)| *target);
            let target = match insn.flow {
                Flow::Jump(to) | Flow::Conditional(_, to) => Some(to.get()),
                Flow::ShortConditional(_) | Flow::Unsupported => panic!("{insn:?}"),
                _ => None,
            };
            for at in [key, target].into_iter().flatten() {
                lead(at);
            }
            if key.is_some() || !matches!(insn.flow, Flow::Next | Flow::Call(_) | Flow::IndirectCall) {
                lead(insn.end().get());
            }
        }
        for (fixup, _) in self.tables.exceptions.range(start..end).map(|(_, e)| e) {
            lead(*fixup);
        }
        let starts: Vec<u64> = leaders.iter().copied().collect();
        assert!(starts.iter().all(|at| insns.iter().any(|insn| insn.at.get() == *at)), "into an instruction");
        let ends = starts[1..].iter().copied().chain([end]);
        let within =
            |from: u64, to: u64| insns.iter().filter(move |insn| (from..to).contains(&insn.at.get()));
        let blocks = starts.iter().zip(ends).map(|(from, to)| {
            let insns: Vec<Insn> = within(*from, to).copied().collect();
            self.block(&insns, &bytes[(from - start) as usize..(to - start) as usize], *from)
        });
        // Filler, which nothing leads to. (A block without code is one of a branch alone.)
        let is_filler = |code: &[u8]| !code.is_empty() && code.iter().all(|byte| *byte == 0xcc);
        blocks.filter(|block| !is_filler(&block.code)).collect()
    }

    fn block(&self, insns: &[Insn], bytes: &[u8], start: u64) -> Block {
        let last = insns[insns.len() - 1];
        let site = self.tables.keys.get(&last.at.get());
        let call = self.tables.calls.get(&last.at.get()).filter(|key| **key & 1 != 0);
        let (end, own) = match last.flow {
            _ if site.is_some() => {
                let (taken, key) = *site.expect("it is some");
                let made = u64::from_le_bytes(*self.view.bytes((key & !3) + 8, 8).first_chunk().expect("8"));
                let (taken, next) = (Svma::new(taken), last.end());
                let (is_inverted, is_initially_on) = (key & 1 != 0, made & 1 != 0);
                (
                    End::StaticKey { key: Svma::new(key & !3), taken, next, is_inverted, is_initially_on },
                    false,
                )
            }
            _ if call.is_some() => {
                let key = Svma::new(call.expect("it is some") & !3);
                (End::StaticJump { key, target: self.trampoline(key) }, false)
            }
            Flow::Jump(to) => (End::Jump(to), false),
            Flow::Conditional(condition, taken) => {
                (End::Conditional { condition, taken, next: last.end() }, false)
            }
            Flow::Return => (End::Return, false),
            Flow::IndirectJump => (End::IndirectJump(self.register(&last)), false),
            Flow::Stop => (End::Stop, true),
            _ => (End::Next(last.end()), true),
        };
        let code_len = if own { bytes.len() } else { (last.at.get() - start) as usize };
        let code = &bytes[..code_len];
        let mut block = Block {
            address: Svma::new(start),
            code: code.to_vec(),
            fixups: Vec::new(),
            end,
            unwind: self.unwind(start, code_len as u64),
            exceptions: Vec::new(),
            warnings: Vec::new(),
        };
        for insn in insns.iter().filter(|insn| insn.at.get() < start + code_len as u64) {
            self.insn(insn, &mut block, code);
        }
        block
    }

    fn insn(&self, insn: &Insn, block: &mut Block, code: &[u8]) {
        let here = insn.at.get();
        let at = (here - block.address.get()) as u32;
        if let Some((fixup, data)) = self.tables.exceptions.get(&here) {
            block.exceptions.push(Exception { offset: at, fixup: Svma::new(*fixup), data: *data });
        }
        if let Some((entry, bytes)) = self.tables.warnings.get(&here) {
            assert_eq!(bytes.len(), 12, "the form of 6.1");
            let file = Svma::new(pointer((*entry, bytes), 4));
            block.warnings.push(Warning { offset: at, entry: bytes.clone(), pointers: vec![(4, file)] });
        }
        if let Some(key) = self.tables.calls.get(&here) {
            let key = Svma::new(key & !3);
            return block.fixups.push(Fixup::StaticCall { at, key, target: self.trampoline(key) });
        }
        match insn.flow {
            Flow::Call(to) if to.get() == self.view.symbol("__fentry__") => {
                block.fixups.push(Fixup::Trace { at })
            }
            Flow::Call(target) => block.fixups.push(Fixup::Call { at, target }),
            Flow::IndirectCall => {
                block.fixups.push(Fixup::IndirectCall { at, register: self.register(insn) });
            }
            _ => {
                // The tracer's site: the first `nop` of five bytes, at the start or behind the marker.
                let is_first =
                    self.view.names.contains_key(&here) || self.view.names.contains_key(&(here - 4));
                if is_first && insn.len == 5 && insn.padding && at <= 4 {
                    return block.fixups.push(Fixup::Trace { at });
                }
                let (_, field) = relocate_field(&code[at as usize..], insn.at).expect("it was decoded");
                if let Some(field) = field {
                    let end = at + u32::from(insn.len);
                    let target = Target::Data(field.target);
                    block.fixups.push(Fixup::Relative { field: at + u32::from(field.offset), end, target });
                }
            }
        }
    }

    fn register(&self, insn: &Insn) -> ThunkRegister {
        let bytes = self.view.bytes(insn.at.get(), 6);
        let bytes = if bytes[0] == 0x2e { &bytes[1..] } else { bytes };
        plain_register(bytes).unwrap_or_else(|| {
            let word = i32::from_le_bytes(*bytes[1..].first_chunk().expect("a word"));
            let to = insn.end().offset(word.into()).get();
            let name = self.view.thunk(to).unwrap_or_else(|| panic!("{insn:?} goes to {to:#x}"));
            ThunkRegister::named(name).expect("a register")
        })
    }

    fn trampoline(&self, key: Svma) -> Svma {
        let names = &self.view.names[&key.get()];
        let name = names.iter().find_map(|name| name.strip_prefix("__SCK__")).expect("a static call's key");
        Svma::new(self.view.symbol(&format!("__SCT__{name}")))
    }

    fn unwind(&self, start: u64, len: u64) -> Vec<UnwindRow> {
        let first = *self.tables.unwind.range(..=start).next_back().expect("a row").1;
        let more = self.tables.unwind.range(start + 1..start + len.max(1) + u64::from(len > 0));
        let more = more.map(|(at, row)| UnwindRow { offset: (at - start) as u32, row: *row });
        [UnwindRow { offset: 0, row: first }].into_iter().chain(more).collect()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, control, output, name, order, functions @ ..] = &arguments[..] else {
        panic!("see the source")
    };
    let view = View::read(folder);
    let tables = Tables::read(&view, 12);
    let facts = ModuleFacts::read(control, &fs::read(control).expect("a module file")).expect("facts");
    let copier = Copier { view: &view, tables: &tables };
    let mut group = Group { name: name.clone(), ..Group::default() };
    for function in functions {
        let (function, mut blocks) = copier.function(function);
        if order == "reversed" {
            blocks[1..].reverse();
        }
        let (index, heat) = (group.functions.len(), Heat::Hot);
        group.functions.push(function);
        group.chunks.push(Chunk { function: index, heat, align: 16, blocks });
    }
    group.functions[0].is_redirected = true;
    let optional = |name: &str| view.symbols.get(name).copied().map(Svma::new);
    let thunk = |r: ThunkRegister| Some((r, optional(&format!("__x86_indirect_thunk_{}", r.name()))?));
    group.kernel = KernelPlaces {
        trace: optional("__fentry__"),
        return_thunk: optional("__x86_return_thunk"),
        thunks: ThunkRegister::all().filter_map(thunk).collect(),
    };
    group.anchors = ["_printk", "stop_machine"]
        .map(|symbol| Anchor { symbol: symbol.into(), address: Svma::new(view.symbol(symbol)) })
        .into();
    let written = write_module(&group, &facts).expect("a module");
    println!(
        "{} functions, {} blocks, {} bytes",
        group.functions.len(),
        written.places.len(),
        written.hot_len
    );
    fs::write(output, written.file).expect("written");
}
