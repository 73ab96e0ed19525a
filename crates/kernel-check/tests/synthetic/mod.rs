//! A kernel in memory that holds the originals of a group: what a writer of modules must have seen when it
//! made the group. Its code is in one of the forms that running kernels have it in.

use restitch_address::Svma;
use restitch_kernel_check::{Kernel, KernelFacts, ModuleForm, Symbols, WarningForm};
use restitch_kernel_group::{
    Anchor, Block, Chunk, Condition, CounterMemory, Counters, End, Exception, Fixup, Function, Group, Heat,
    KernelPlaces, ModuleFacts, Target, ThunkRegister, UnwindRow, Warning, write_module,
};
use std::collections::BTreeSet;

pub const TEXT: u64 = 0xffff_ffff_8100_0000;
pub const DATA: u64 = 0xffff_ffff_8280_0000;
/// Where the kernel makes thunks at its start.
const MADE: u64 = 0xffff_ffff_a000_0000;
const LEN: usize = 0x10000;
/// Offsets in the text.
pub const FENTRY: u64 = 0x9000;
pub const RETURN_THUNK: u64 = 0x9100;
const THUNKS: u64 = 0x9200;
const OTHER_RETURN_THUNK: u64 = 0x9800;
const TRAMPOLINE: u64 = 0x5000;
/// Offsets in the data.
pub const KEY: u64 = 0x100;
pub const STATIC_CALL: u64 = 0x200;
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const ROW: [u8; 6] = [8, 0, 0, 0, 5, 2];

pub fn at(offset: u64) -> Svma {
    Svma::new(TEXT + offset)
}

pub fn data(offset: u64) -> Svma {
    Svma::new(DATA + offset)
}

pub fn register(name: &str) -> ThunkRegister {
    ThunkRegister::named(name).unwrap()
}

/// The form of a branch through a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    Plain,
    Barrier,
    Thunk,
    Made,
}

/// The form of a return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    Plain,
    Thunk,
    OtherThunk,
}

/// What the kernel has made of its code.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    pub through: Through,
    pub returns: Returns,
    /// The key's branch is taken now, and its place is short.
    pub key: bool,
    /// The static call is one of nothing now.
    pub no_call: bool,
}

pub const LIVE: Live = Live { through: Through::Plain, returns: Returns::Plain, key: false, no_call: false };

fn block(offset: u64, code: &[u8], end: End) -> Block {
    Block {
        address: at(offset),
        code: code.to_vec(),
        fixups: Vec::new(),
        end,
        unwind: vec![UnwindRow { offset: 0, row: ROW }],
        exceptions: Vec::new(),
        warnings: Vec::new(),
    }
}

/// `root` with calls of `leaf`; one of everything that groups can have.
pub fn group() -> Group {
    const CALL: [u8; 5] = [0xe8, 1, 2, 3, 4];
    let mut entry = block(
        0x1000,
        &[&[0xf3, 0x0f, 0x1e, 0xfa][..], &NOP, &[0x50], &CALL, &[0x48, 0x8b, 0x05, 9, 9, 9, 9, 0x85, 0xc0]]
            .concat(),
        End::Conditional { condition: Condition::Equal, taken: at(0x1080), next: at(0x101e) },
    );
    entry.fixups = vec![
        Fixup::Trace { at: 4 },
        Fixup::Call { at: 10, target: at(0x2000) },
        Fixup::Relative { field: 18, end: 22, target: Target::Data(data(8)) },
    ];
    entry.exceptions = vec![Exception { offset: 15, fixup: at(0x1080), data: 3 }];
    entry.unwind.push(UnwindRow { offset: 10, row: [16, 0, 0, 0, 5, 2] });
    let pushed = vec![UnwindRow { offset: 0, row: [16, 0, 0, 0, 5, 2] }];
    let mut hot = block(
        0x101e,
        &[&[0xff, 0xd0, 0x0f, 0x1f, 0x00][..], &[0x41, 0xff, 0xd0, 0x0f, 0x1f, 0x00], &CALL, &CALL].concat(),
        End::StaticKey {
            key: data(KEY),
            taken: at(0x1080),
            next: at(0x1038),
            is_inverted: false,
            is_initially_on: false,
        },
    );
    hot.fixups = vec![
        Fixup::IndirectCall { at: 0, register: register("rax") },
        Fixup::IndirectCall { at: 5, register: register("r8") },
        Fixup::StaticCall { at: 11, key: data(STATIC_CALL), target: at(TRAMPOLINE) },
        Fixup::Call { at: 16, target: at(0x3000) },
    ];
    hot.unwind = pushed.clone();
    // `test %rbx,%rbx`, and a way to code that is not copied.
    let mut test = block(
        0x1038,
        &[0x48, 0x85, 0xdb],
        End::Conditional { condition: Condition::Sign, taken: at(0x1100), next: at(0x1041) },
    );
    test.unwind = pushed.clone();
    let mut tail = block(0x1041, &[0x90, 0x58], End::Return);
    tail.unwind = vec![pushed[0], UnwindRow { offset: 2, row: ROW }];
    let mut cold = block(0x1080, &[0x48, 0x8d, 0x3d, 5, 5, 5, 5, 0x0f, 0x0b], End::Jump(at(0x1038)));
    cold.unwind = pushed;
    cold.fixups = vec![Fixup::Relative { field: 3, end: 7, target: Target::Warning(at(0x1087)) }];
    cold.warnings = vec![Warning {
        offset: 7,
        entry: vec![7, 7, 7, 7, 8, 8, 8, 8, 0x2a, 0, 1, 9],
        pointers: vec![(4, data(0x300))],
    }];
    let leaf = block(0x2000, &[0x48, 0x89, 0xf8], End::IndirectJump(register("rdx")));
    let function = |name: &str, offset, is_redirected| Function {
        name: name.into(),
        address: at(offset),
        is_redirected,
    };
    let chunk = |function, heat, blocks| Chunk { function, heat, align: 16, blocks };
    Group {
        name: "group_a".into(),
        functions: vec![function("root", 0x1000, true), function("leaf", 0x2000, false)],
        chunks: vec![
            chunk(0, Heat::Cold, vec![cold]),
            chunk(0, Heat::Hot, vec![entry, hot, tail, test]),
            chunk(1, Heat::Hot, vec![leaf]),
        ],
        kernel: KernelPlaces {
            trace: Some(at(FENTRY)),
            return_thunk: Some(at(RETURN_THUNK)),
            thunks: ThunkRegister::all().zip(0..).map(|(r, i)| (r, at(THUNKS + 32 * i))).collect(),
        },
        anchors: vec![Anchor { symbol: "_printk".into(), address: at(0xa000) }],
        counters: None,
    }
}

/// The same with four counters: in front of the call, in `leaf`, on the way from the entry to what follows
/// it, and, with the flags kept, between a comparison and its branch.
pub fn counting(memory: CounterMemory) -> Group {
    let mut group = group();
    group.counters = Some(Counters { memory, number: 4 });
    let count = |at, number, keeps_flags| Fixup::Count { at, number, keeps_flags };
    let pushed = [16, 0, 0, 0, 5, 2];
    let row = |offset, row| UnwindRow { offset, row };
    let blocks = &mut group.chunks[1].blocks;
    let entry = &mut blocks[0];
    entry.code.splice(10..10, [0; 8]);
    entry.fixups = vec![
        Fixup::Trace { at: 4 },
        count(10, 0, false),
        Fixup::Call { at: 18, target: at(0x2000) },
        Fixup::Relative { field: 26, end: 30, target: Target::Data(data(8)) },
    ];
    entry.exceptions[0].offset = 23;
    entry.end = End::Conditional { condition: Condition::Equal, taken: at(0x1080), next: Block::on_edge(0) };
    let mut edge = block(0, &[0; 8], End::Jump(at(0x101e)));
    edge.address = Block::on_edge(0);
    edge.fixups = vec![count(0, 2, false)];
    edge.unwind = vec![row(0, pushed)];
    let test = &mut blocks[3];
    test.code.extend([0; 10]);
    test.fixups = vec![count(3, 3, true)];
    test.unwind.extend([row(4, UnwindRow::lowered(pushed)), row(13, pushed)]);
    blocks.insert(1, edge);
    let leaf = &mut group.chunks[2].blocks[0];
    leaf.code.splice(0..0, [0; 8]);
    leaf.fixups = vec![count(0, 1, false)];
    group
}

pub fn module_facts() -> ModuleFacts {
    ModuleFacts {
        vermagic: "6.1.0 SMP preempt mod_unload modversions ".into(),
        name: "restitch_kernel".into(),
        structure_len: 0x380,
        structure_align: 64,
        name_at: 24,
        init_at: 0x138,
        exit_at: 0x350,
        traces_are_calls: true,
        lists_calls: true,
        has_retpolines: true,
        versions: [
            ("module_layout", 1),
            ("restitch_kernel_register", 2),
            ("restitch_kernel_unregister", 3),
            ("_printk", 4),
        ]
        .map(|(name, sum)| (name.to_owned(), sum))
        .into(),
    }
}

pub fn facts() -> KernelFacts {
    let facts = module_facts();
    KernelFacts {
        module: ModuleForm {
            vermagic: facts.vermagic,
            structure_len: facts.structure_len,
            name_at: facts.name_at,
            init_at: facts.init_at,
            exit_at: facts.exit_at,
            traces_are_calls: facts.traces_are_calls,
            lists_calls: facts.lists_calls,
        },
        warning: WarningForm { len: 12, flags_at: 10, pointers: vec![4] },
        traces: None,
    }
}

pub fn asked() -> BTreeSet<Svma> {
    BTreeSet::from([at(0x1000)])
}

/// The file of a group.
pub fn file(group: &Group) -> Vec<u8> {
    write_module(group, &module_facts()).unwrap().file
}

/// A kernel.
#[derive(Clone)]
pub struct Synthetic {
    areas: Vec<(u64, Vec<u8>)>,
    symbols: Vec<(Svma, String)>,
    all: Symbols,
}

impl Kernel for Synthetic {
    fn read(&self, at: Svma, into: &mut [u8]) -> bool {
        let found = self.areas.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(at.get().checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(into.len())?)
        });
        found.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
    fn symbols(&self) -> &Symbols {
        &self.all
    }
}

/// Entries of one table while they are made: bytes, and the addresses that they lead to.
#[derive(Default)]
struct Table {
    entries: Vec<(u64, Vec<u8>)>,
}

impl Synthetic {
    /// The kernel that a group is of.
    pub fn of(group: &Group, live: Live) -> Self {
        let areas = vec![(TEXT, vec![0xcc; LEN]), (DATA, vec![0; LEN]), (MADE, vec![0xcc; 0x1000])];
        let mut kernel = Self { areas, symbols: Vec::new(), all: Symbols::default() };
        for (number, thunk) in ThunkRegister::all().enumerate() {
            let name = format!("__x86_indirect_thunk_{}", thunk.name());
            kernel.name(TEXT + THUNKS + 32 * number as u64, &name);
            kernel.write(MADE + 32 * number as u64, &through(thunk, 0xe0));
        }
        let named = [
            (TEXT, "_stext"),
            (TEXT + FENTRY, "__fentry__"),
            (TEXT + RETURN_THUNK, "__x86_return_thunk"),
            (TEXT + OTHER_RETURN_THUNK, "its_return_thunk"),
            (TEXT + 0xa000, "_printk"),
            (TEXT + 0x3000, "callee"),
            (TEXT + 0x4000, "other"),
            (TEXT + TRAMPOLINE, "__SCT__call"),
            (TEXT + 0xb000, "__sched_text_start"),
            (TEXT + 0xc000, "__sched_text_end"),
            (TEXT + LEN as u64, "_etext"),
            (DATA + STATIC_CALL, "__SCK__call"),
        ];
        named.iter().for_each(|(at, name)| kernel.name(*at, name));
        group.functions.iter().for_each(|function| kernel.name(function.address.get(), &function.name));
        let blocks: Vec<&Block> = group.chunks.iter().flat_map(|chunk| &chunk.blocks).collect();
        blocks.iter().for_each(|block| kernel.code(block, live));
        kernel.tables(&blocks);
        kernel.all = kernel.symbols.iter().cloned().collect();
        kernel
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let area =
            self.areas.iter_mut().find(|(start, area)| (*start..start + area.len() as u64).contains(&at));
        let (start, area) = area.expect("memory");
        area[(at - *start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Gives a place a name.
    pub fn name(&mut self, at: u64, name: &str) {
        self.symbols.push((Svma::new(at), name.into()));
        self.all = self.symbols.iter().cloned().collect();
    }
    fn lead(&mut self, field: u64, end: u64, to: u64) {
        let displacement = to.wrapping_sub(end) as u32;
        self.write(field, &displacement.to_le_bytes());
    }

    fn branch(&mut self, at: u64, opcode: &[u8], to: u64) -> u64 {
        self.write(at, opcode);
        let field = at + opcode.len() as u64;
        self.lead(field, field + 4, to);
        field + 4
    }

    fn code(&mut self, block: &Block, live: Live) {
        let start = block.address.get();
        self.write(start, &block.code);
        for fixup in &block.fixups {
            self.fixup(start, *fixup, live);
        }
        let warning = block.warnings.first().map(|warning| warning.offset);
        for fixup in &block.fixups {
            if let (Fixup::Relative { field, end, target: Target::Warning(_) }, Some(_)) = (fixup, warning) {
                self.lead(start + u64::from(*field), start + u64::from(*end), DATA + TABLES[3].1);
            }
        }
        self.end(start + block.code.len() as u64, block.end, live);
    }

    fn fixup(&mut self, start: u64, fixup: Fixup, live: Live) {
        let place = |offset: u32| start + u64::from(offset);
        match fixup {
            Fixup::Relative { field, end, target: Target::Data(to) | Target::Code(to) } => {
                self.lead(place(field), place(end), to.get())
            }
            Fixup::Relative { .. } | Fixup::Count { .. } => {}
            Fixup::Call { at, target } => drop(self.branch(place(at), &[0xe8], target.get())),
            Fixup::Trace { at } => self.write(place(at), &NOP),
            Fixup::IndirectCall { at, register } => self.through(place(at), register, true, live),
            Fixup::StaticCall { at, .. } if live.no_call => self.write(place(at), &NOP),
            Fixup::StaticCall { at, .. } => drop(self.branch(place(at), &[0xe8], TEXT + 0x4000)),
        }
    }

    fn through(&mut self, place: u64, register: ThunkRegister, is_call: bool, live: Live) {
        let number = ThunkRegister::all().position(|own| own == register).unwrap() as u64;
        let plain = through(register, if is_call { 0xd0 } else { 0xe0 });
        let prefix: &[u8] = if plain.len() == 3 { &[0x2e] } else { &[] };
        let near = [prefix, &[if is_call { 0xe8 } else { 0xe9 }]].concat();
        match live.through {
            Through::Plain => self.write(place, &[&plain[..], &[0x0f, 0x1f, 0x00]].concat()),
            Through::Barrier => self.write(place, &[&[0x0f, 0xae, 0xe8], &plain[..]].concat()),
            Through::Thunk => drop(self.branch(place, &near, TEXT + THUNKS + 32 * number)),
            Through::Made => drop(self.branch(place, &near, MADE + 32 * number)),
        }
    }

    fn end(&mut self, end: u64, how: End, live: Live) {
        match how {
            End::Next(to) => assert_eq!(to.get(), end),
            End::Jump(to) => drop(self.branch(end, &[0xe9], to.get())),
            End::Conditional { condition, taken, next } => {
                let end = self.branch(end, &[0x0f, 0x80 | condition as u8], taken.get());
                assert_eq!(next.get(), end, "what follows it");
            }
            End::StaticKey { taken, .. } if live.key => drop(self.branch(end, &[0xe9], taken.get())),
            End::StaticKey { .. } => self.write(end, &NOP),
            End::Return => match live.returns {
                Returns::Plain => self.write(end, &[0xc3]),
                Returns::Thunk => drop(self.branch(end, &[0xe9], TEXT + RETURN_THUNK)),
                Returns::OtherThunk => drop(self.branch(end, &[0xe9], TEXT + OTHER_RETURN_THUNK)),
            },
            End::IndirectJump(register) => self.through(end, register, false, live),
            End::StaticJump { .. } => drop(self.branch(end, &[0xe9], TEXT + 0x4000)),
            End::Stop => {}
        }
    }

    fn tables(&mut self, blocks: &[&Block]) {
        let mut tables: [Table; 6] = Default::default();
        let mut blocks = blocks.to_vec();
        blocks.sort_by_key(|block| block.address);
        for block in blocks {
            let start = block.address.get();
            let end = start + block.code.len() as u64;
            for own in &block.exceptions {
                tables[0]
                    .push(start + u64::from(own.offset), &[&word(own.fixup.get()), &own.data.to_le_bytes()]);
            }
            if let End::StaticKey { key, taken, is_inverted, is_initially_on, .. } = block.end {
                let key = key.get() | u64::from(is_inverted);
                tables[1].push(end, &[&word(taken.get()), &key.to_le_bytes()]);
                self.write((key & !1) + 8, &[u8::from(is_initially_on)]);
            }
            for fixup in &block.fixups {
                if let Fixup::StaticCall { at, key, .. } = fixup {
                    tables[2].push(start + u64::from(*at), &[&word(key.get())]);
                }
            }
            if let End::StaticJump { key, .. } = block.end {
                tables[2].push(end, &[&word(key.get() | 1)]);
            }
            for own in &block.warnings {
                let file = word(own.pointers[0].1.get());
                tables[3].push(start + u64::from(own.offset), &[&file, &own.entry[8..]]);
            }
            for own in &block.unwind {
                tables[4].push(start + u64::from(own.offset), &[]);
                tables[5].entries.push((0, own.row.to_vec()));
            }
        }
        for (table, (name, offset, pointers)) in tables.into_iter().zip(TABLES) {
            self.table(table, name, DATA + offset, pointers);
        }
    }

    fn table(&mut self, table: Table, name: &str, start: u64, pointers: &[usize]) {
        self.name(start, &format!("__start_{name}"));
        let mut at = start;
        for (_, mut bytes) in table.entries {
            for field in pointers {
                let len = if bytes.len() == 16 && *field == 8 { 8 } else { 4 };
                let mut target = [0; 8];
                target[..len].copy_from_slice(&bytes[*field..field + len]);
                // A word of 4 bytes stands for an address of the kernel.
                let sign = if len == 4 { 0xffff_ffff_0000_0000 } else { 0 };
                let distance = (u64::from_le_bytes(target) | sign).wrapping_sub(at + *field as u64);
                bytes[*field..field + len].copy_from_slice(&distance.to_le_bytes()[..len]);
            }
            self.write(at, &bytes);
            at += bytes.len() as u64;
        }
        self.name(at, &format!("__stop_{name}"));
    }
}

/// Tables of the kernel: name, where they are in the data, and which words of their entries are distances.
const TABLES: [(&str, u64, &[usize]); 6] = [
    ("__ex_table", 0x8000, &[0, 4]),
    ("__jump_table", 0x9000, &[0, 4, 8]),
    ("static_call_sites", 0xa000, &[0, 4]),
    ("__bug_table", 0xb000, &[0, 4]),
    ("orc_unwind_ip", 0xc000, &[0]),
    ("orc_unwind", 0xe000, &[]),
];

impl Table {
    fn push(&mut self, place: u64, rest: &[&[u8]]) {
        self.entries.push((place, [&word(place)[..], &rest.concat()].concat()));
    }
}

/// An address of the kernel as a word of 4 bytes.
fn word(address: u64) -> [u8; 4] {
    (address as u32).to_le_bytes()
}

/// `call *%reg` or `jmp *%reg`.
fn through(register: ThunkRegister, opcode: u8) -> Vec<u8> {
    const NUMBERS: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    let number = NUMBERS.iter().position(|name| *name == register.name()).unwrap() as u8;
    let prefix: &[u8] = if number < 8 { &[] } else { &[0x41] };
    [prefix, &[0xff, opcode | (number & 7)]].concat()
}
