//! A made-up Linux kernel of a few functions, as `/proc` shows a real one: a list of symbols, a core file,
//! tables. Nothing executes it.

use std::fs;
use std::path::Path;

/// Where its image is.
pub const BASE: u64 = 0xffff_ffff_8100_0000;
/// Bytes of the image.
const IMAGE: usize = 0x4000;
/// Bytes that each function has.
const SLOT: u64 = 0x40;
/// Where its text ends, its constants and its data begin.
const RODATA: u64 = BASE + 0x2000;
const DATA: u64 = BASE + 0x3000;
/// A static key that is off, and one that is on.
const KEY: u64 = DATA;
/// The key of a static call.
const CALL_KEY: u64 = DATA + 0x20;
/// Offset in the core file of the image: behind the headers.
const OFFSET: usize = 0x1000;

/// The kernel.
#[derive(Debug, Clone)]
pub struct SmallKernel {
    /// What `/proc/kallsyms` would say.
    pub symbols: String,
    /// What `available_filter_functions` would say.
    pub traceable: String,
    image: Vec<u8>,
}

/// The functions by name, in order.
const FUNCTIONS: [&str; 14] = [
    "work",
    "work.cold",
    "fail",
    "reads_user",
    "warns",
    "jumps_by_table",
    "undecodable",
    "knows_itself",
    "calls_by_register",
    "same",
    "same",
    "runs_on",
    "hushed",
    "waits",
];

impl Default for SmallKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl SmallKernel {
    /// Makes it.
    pub fn new() -> Self {
        let mut kernel = Self { symbols: String::new(), traceable: String::new(), image: vec![0xcc; IMAGE] };
        kernel.functions();
        kernel.thunks();
        kernel.tables();
        kernel
    }

    /// Where the function is that has this place in the list.
    pub fn place(&self, index: usize) -> u64 {
        BASE + index as u64 * SLOT
    }

    /// Where the function of that name is.
    ///
    /// # Panics
    /// If there is none.
    pub fn function(&self, name: &str) -> u64 {
        let index = FUNCTIONS.iter().position(|other| *other == name);
        self.place(index.unwrap_or_else(|| panic!("no function {name}")))
    }

    /// Writes bytes over others.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let from = (at - BASE) as usize;
        self.image[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn symbol(&mut self, at: u64, kind: char, name: &str) {
        self.symbols.push_str(&format!("{at:016x} {kind} {name}\n"));
    }

    fn code(&mut self, name: &str, parts: &[&[u8]]) {
        let at = self.function(name);
        self.put(at, &parts.concat());
    }

    /// `opcode` and the distance from the end of the instruction at `at`.
    fn near(&self, opcode: &[u8], at: u64, to: u64) -> Vec<u8> {
        let end = at + opcode.len() as u64 + 4;
        [opcode, &(to.wrapping_sub(end) as u32).to_le_bytes()].concat()
    }

    fn functions(&mut self) {
        self.symbol(BASE, 'T', "_text");
        self.symbol(BASE, 'T', "_stext");
        for (index, name) in FUNCTIONS.iter().enumerate() {
            let at = self.place(index);
            if *name == "waits" {
                self.symbol(at, 'T', "__sched_text_start");
            }
            if *name == "hushed" {
                self.symbol(at, 'T', "__noinstr_text_start");
                self.symbol(at + SLOT, 'T', "__noinstr_text_end");
            }
            self.symbol(at, 't', name);
        }
        let end = self.place(FUNCTIONS.len());
        self.symbol(end, 'T', "__sched_text_end");
        self.symbol(self.function("work"), 'T', "__work_alias");
        self.symbol(self.function("fail") - 0x10, 't', "__pfx_fail");
        self.traceable = "work\nwarns\nsame\n".into();
        self.first_functions();
        self.other_functions();
    }

    fn first_functions(&mut self) {
        let (work, cold, fail) = (self.function("work"), self.function("work.cold"), self.function("fail"));
        // nopl 0(%rax,%rax,1); test %edi,%edi; je +3 (to the key); mov %edi,%eax; nop
        let head = [&NOP5[..], &[0x85, 0xff, 0x74, 0x03, 0x89, 0xf8, 0x90]].concat();
        // The static key's branch, to the return; the static call; jne to the cold part; the return.
        let key = [0x66, 0x90];
        let call = self.near(&[0xe8], work + 14, self.function("warns"));
        let jump = self.near(&[0x0f, 0x85], work + 19, cold);
        let back = self.near(&[0xe9], work + 25, self.return_thunk());
        self.code("work", &[&head, &key, &call, &jump, &back]);
        let call = self.near(&[0xe8], cold, fail);
        self.code("work.cold", &[&call]);
        self.code("fail", &[&[0x0f, 0x0b]]);
        // mov (%rdi),%rax; ret; (fix-up:) xor %eax,%eax; ret
        self.code("reads_user", &[&[0x48, 0x8b, 0x07, 0xc3, 0x31, 0xc0, 0xc3]]);
        // nopl; lea of the bug entry; ud1 (%edx),%rdi; ret
        let lea = self.near(&[0x48, 0x8d, 0x3d], self.function("warns") + 5, BUGS + 12);
        self.code("warns", &[&NOP5, &lea, &[0x67, 0x48, 0x0f, 0xb9, 0x3a, 0xc3]]);
    }

    fn other_functions(&mut self) {
        // jmp *(,%rax,8)
        self.code("jumps_by_table", &[&[0xff, 0x24, 0xc5, 0, 0, 0, 0]]);
        self.code("undecodable", &[&[0x31, 0xc0, 0x06, 0xc3]]);
        let itself = self.function("knows_itself");
        let lea = self.near(&[0x48, 0x8d, 0x05], itself, itself + 8);
        self.code("knows_itself", &[&lea, &[0x90, 0xc3]]);
        // lfence; call *%rax; ret
        self.code("calls_by_register", &[&[0x0f, 0xae, 0xe8, 0xff, 0xd0, 0xc3]]);
        for index in [9, 10] {
            self.put(self.place(index), &[&NOP5[..], &[0xc3]].concat());
        }
        self.put(self.function("runs_on"), &[0x31; SLOT as usize]);
        self.put(self.function("runs_on"), &[0x90; SLOT as usize - 2]);
        self.put(self.function("runs_on") + SLOT - 2, &[0x31, 0xc0]);
        self.code("hushed", &[&[0xc3]]);
        self.code("waits", &[&[0xc3]]);
    }

    fn return_thunk(&self) -> u64 {
        self.place(FUNCTIONS.len())
    }

    fn thunks(&mut self) {
        let at = self.return_thunk();
        self.symbol(at, 'T', "__x86_return_thunk");
        self.put(at, &[0xc3]);
        self.symbol(at + SLOT, 'T', "__x86_indirect_thunk_rax");
        self.put(at + SLOT, &[0xff, 0xe0, 0xcc]);
        self.symbol(at + 2 * SLOT, 'T', "__SCT__called");
        self.put(at + 2 * SLOT, &[0xc3, 0xcc, 0xcc, 0xcc, 0xcc]);
        self.symbol(at + 3 * SLOT, 'T', "_etext");
        self.symbol(RODATA, 'D', "__start_rodata");
        // An exported symbol.
        self.symbol(RODATA + 0x700, 'r', "__ksymtab_work");
        self.symbol(DATA, 'D', "__end_rodata");
        self.symbol(KEY, 'd', "key");
        self.symbol(CALL_KEY, 'D', "__SCK__called");
        self.symbol(BASE + IMAGE as u64, 'B', "_end");
    }

    /// A table: its bounds, and entries of words that count from themselves or stand as they are.
    fn table(&mut self, start: &str, end: &str, at: u64, words: &[Word]) {
        let mut to = at;
        for word in words {
            let bytes = match *word {
                Word::To(place) => (place.wrapping_sub(to) as u32).to_le_bytes().to_vec(),
                Word::Far(place) => place.wrapping_sub(to).to_le_bytes().to_vec(),
                Word::Number(number) => number.to_le_bytes().to_vec(),
            };
            self.put(to, &bytes);
            to += bytes.len() as u64;
        }
        self.symbol(at, 'D', start);
        self.symbol(to, 'D', end);
    }

    fn tables(&mut self) {
        use Word::{Far, Number, To};
        let work = self.function("work");
        self.put(RODATA, &[0; 0x1000]);
        self.put(DATA, &[0; 0x1000]);
        let user = self.function("reads_user");
        let faults = [To(user), To(user + 4), Number(3)];
        self.table("__start___ex_table", "__stop___ex_table", RODATA, &faults);
        let keys = [To(work + 12), To(work + 25), Far(KEY)];
        self.table("__start___jump_table", "__stop___jump_table", RODATA + 0x100, &keys);
        let calls = [To(work + 14), To(CALL_KEY)];
        self.table("__start_static_call_sites", "__stop_static_call_sites", RODATA + 0x200, &calls);
        let file = RODATA + 0x800;
        let bugs = [
            To(self.function("fail")),
            To(file),
            Number(7),
            To(self.function("warns") + 12),
            To(file),
            Number(0x1_0008),
        ];
        self.table("__start___bug_table", "__stop___bug_table", BUGS, &bugs);
        let places = [To(work), To(user)];
        self.table("__start_orc_unwind_ip", "__stop_orc_unwind_ip", RODATA + 0x400, &places);
        let rows = [Number(8), Number(0x8_0005), Number(0x5_0000)];
        self.table("__start_orc_unwind", "__stop_orc_unwind", RODATA + 0x500, &rows);
    }

    /// What `/proc/kcore` would hold.
    pub fn core(&self) -> Vec<u8> {
        let mut file = vec![0; OFFSET];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16..20].copy_from_slice(&[4, 0, 62, 0]);
        file[32] = 64;
        file[52..58].copy_from_slice(&[64, 0, 56, 0, 1, 0]);
        file[64] = 1;
        let len = self.image.len() as u64;
        for (at, word) in [(72, OFFSET as u64), (80, BASE), (96, len), (104, len)] {
            file[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        [file, self.image.clone()].concat()
    }

    /// Writes a folder with what `/proc` and `/sys` would show.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_view(&self, folder: &Path) {
        let core = self.core();
        let files: [(&str, &[u8]); 6] = [
            ("proc/kallsyms", self.symbols.as_bytes()),
            ("proc/kcore", &core),
            ("proc/sys/kernel/osrelease", b"6.99.0-small\n"),
            ("sys/kernel/security/lockdown", b"none [integrity] confidentiality\n"),
            ("sys/kernel/tracing/available_filter_functions", self.traceable.as_bytes()),
            ("sys/kernel/tracing/enabled_functions", b""),
        ];
        for (name, bytes) in files {
            let path = folder.join(name);
            let parent = path.parent().expect("a folder");
            fs::create_dir_all(parent).and_then(|()| fs::write(&path, bytes)).expect("written");
        }
    }
}

/// Where the table of bugs is.
const BUGS: u64 = RODATA + 0x300;
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// A word of a table.
#[derive(Debug, Clone, Copy)]
enum Word {
    /// 4 bytes: the distance from itself.
    To(u64),
    /// 8 bytes: the same.
    Far(u64),
    /// 4 bytes.
    Number(u32),
}
