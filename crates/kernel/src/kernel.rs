//! A kernel, read and understood as a whole.

use crate::blocks::code_of;
use crate::code::{Code, End, SiteKind};
use crate::error::KernelError;
use crate::functions::{FunctionId, Functions};
use crate::kcore::{ReadAt, read_memory, read_ranges};
use crate::memory::Memory;
use crate::places::Places;
use crate::reason::Reason;
use crate::source::Source;
use crate::steps::Known;
use crate::symbols::Symbols;
use crate::tables::Tables;
use restitch_address::{Svma, SvmaRange};
use restitch_x86::Flow;
use restitch_x86::kernel_code::{scan_kernel, target_marker};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{Builder, ScopedJoinHandle};

/// Where a kernel shows its memory.
const CORE: &str = "proc/kcore";

/// Lists of the function tracer and of probes, as far as they can be read.
#[derive(Debug, Clone, Default)]
pub struct Lists {
    /// Functions that can be traced: `available_filter_functions`.
    pub traceable: Option<String>,
    /// The same with the addresses of their places: `available_filter_functions_addrs`.
    pub trace_sites: Option<String>,
    /// Functions that somebody traces: `enabled_functions`.
    pub traced: Option<String>,
    /// Places that somebody probes: `kprobes/list`.
    pub probed: Option<String>,
    /// Ranges in which no probes are taken: `kprobes/blacklist`.
    pub unprobed: Option<String>,
}

impl Lists {
    /// Reads those that there are.
    ///
    /// # Errors
    /// If one is no ordinary file.
    pub fn read(source: &Source) -> Result<Self, KernelError> {
        // Where tracefs is mounted, on its own or below debugfs.
        let trace = |name: &str| {
            let first = source.text_if_any(&format!("sys/kernel/tracing/{name}"))?;
            match first {
                Some(text) => Ok(Some(text)),
                None => source.text_if_any(&format!("sys/kernel/debug/tracing/{name}")),
            }
        };
        let probe = |name: &str| source.text_if_any(&format!("sys/kernel/debug/kprobes/{name}"));
        Ok(Self {
            traceable: trace("available_filter_functions")?,
            trace_sites: trace("available_filter_functions_addrs")?,
            traced: trace("enabled_functions")?,
            probed: probe("list")?,
            unprobed: probe("blacklist")?,
        })
    }
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its names.
    pub symbols: Symbols,
    /// Its functions.
    pub functions: Functions,
    /// What else is known of it.
    pub known: Known,
    /// Names of code in modules, which are not looked at.
    pub in_modules: u64,
    users: BTreeSet<FunctionId>,
    traceable: Option<HashSet<String>>,
    /// What it lacks, in words: what was not readable, and what follows.
    pub notes: Vec<String>,
}

impl Kernel {
    /// Reads a kernel.
    ///
    /// # Errors
    /// If its symbols or its memory cannot be read, or say too little.
    pub fn read(source: &Source) -> Result<Self, KernelError> {
        let symbols = Symbols::read(source)?;
        let file = source.open(CORE)?;
        let memory = image(|at, room| file.read_exact_at(room, at), &source.path(CORE), &symbols)?;
        let types = source.bytes("sys/kernel/btf/vmlinux").ok();
        Self::new(memory, symbols, types.as_deref(), &Lists::read(source)?)
    }

    /// A kernel of what was read.
    ///
    /// # Errors
    /// If that says too little.
    pub fn new(
        memory: Memory,
        symbols: Symbols,
        types: Option<&[u8]>,
        lists: &Lists,
    ) -> Result<Self, KernelError> {
        let mut places = Places::find(&symbols).ok_or_else(|| missing("names for the bounds of its text"))?;
        let tables = Tables::read(&memory, &symbols, types)?;
        places.unprobed = lists.unprobed.as_deref().map(ranges).unwrap_or_default();
        let functions = Functions::find(&symbols, &places, |hot, cold| leads_to(&memory, hot, cold));
        let traced = lists.trace_sites.as_deref().map(sites).unwrap_or_default();
        let known = Known {
            memory,
            places,
            tables,
            traced,
            silent: HashSet::new(),
            entered: Vec::new(),
            named: Vec::new(),
        };
        let traceable = lists.traceable.as_deref().map(first_words);
        let mut kernel = Self {
            in_modules: symbols.in_modules,
            symbols,
            functions,
            known,
            users: BTreeSet::new(),
            traceable,
            notes: Vec::new(),
        };
        kernel.note(lists);
        kernel.find_users(lists);
        kernel.look_at_all();
        Ok(kernel)
    }

    fn note(&mut self, lists: &Lists) {
        let tables = &self.known.tables;
        if !tables.has_types {
            self.notes.push(
                "the kernel's types (BTF) cannot be read: its tables are taken to be built as usual".into(),
            );
        }
        if !tables.missing.is_empty() {
            self.notes.push(format!("this kernel has no table {}", tables.missing.join(", ")));
        }
        if lists.traceable.is_none() && lists.trace_sites.is_none() {
            self.notes
                .push("the function tracer's list cannot be read: its places are told by their bytes".into());
        }
        if lists.traced.is_none() {
            self.notes
                .push("it cannot be read which functions are traced: those are told by their bytes".into());
        }
    }

    fn find_users(&mut self, lists: &Lists) {
        let names = lists.traced.as_deref().map(first_words).unwrap_or_default();
        let named = names.iter().flat_map(|name| self.functions.named(name)).copied();
        let probes = lists.probed.as_deref().map(sites).unwrap_or_default();
        let probed = probes.iter().filter_map(|at| self.functions.at(*at));
        self.users = named.chain(probed).collect();
    }

    /// What one function can only know from all others: which addresses in its middle they use, and which
    /// functions do not return.
    fn look_at_all(&mut self) {
        let mut all = self.whole();
        all.constants(&self.known, &self.functions);
        self.known.entered = all.entered.into_iter().collect();
        self.known.named = all.named.into_iter().collect();
        self.find_silent(&all.callers, all.silent);
    }

    /// What all functions say, looked at by all processors.
    fn whole(&self) -> Whole {
        let ids: Vec<FunctionId> = self.functions.ids().collect();
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        let look = |ids: &[FunctionId]| {
            let mut part = Whole::default();
            for id in ids {
                let code = code_of(&self.known, self.functions.get(*id));
                part.add(*id, &code, &self.functions, &self.known);
            }
            part
        };
        std::thread::scope(|scope| {
            let parts = ids.chunks(ids.len().div_ceil(threads).max(1));
            let begun = |part| (part, Builder::new().spawn_scoped(scope, move || look(part)));
            let parts: Vec<_> = parts.map(begun).collect();
            let mut all = Whole::default();
            for (part, begun) in parts {
                // A user may have no more threads (`ulimit -u`).
                let found = begun.map_or_else(|_| Ok(look(part)), ScopedJoinHandle::join);
                all.extend(found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            all
        })
    }

    /// Functions that do not return, from those of which it is plain, through those that end by calling them.
    fn find_silent(&mut self, callers: &BTreeMap<Svma, Vec<FunctionId>>, mut found: BTreeSet<FunctionId>) {
        while !found.is_empty() {
            let starts: Vec<Svma> = found.iter().map(|id| self.functions.get(*id).start()).collect();
            self.known.silent.extend(starts.iter().copied());
            let concerned = starts.iter().filter_map(|start| callers.get(start)).flatten().copied();
            let concerned: BTreeSet<FunctionId> = concerned.collect();
            let is_new = |id: &FunctionId| {
                let function = self.functions.get(*id);
                !self.known.silent.contains(&function.start())
                    && !returns(&code_of(&self.known, function), &self.known)
            };
            found = concerned.into_iter().filter(is_new).collect();
        }
    }

    /// The function that is meant by a name or by an address with `0x` in front.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn find(&self, what: &str) -> Result<FunctionId, KernelError> {
        let address = what.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if let Some(address) = address {
            let found = self.functions.at(Svma::new(address));
            return found.ok_or_else(|| KernelError::NoFunction { name: what.into(), similar: Vec::new() });
        }
        match self.functions.named(what) {
            [id] => Ok(*id),
            [] => Err(KernelError::NoFunction { name: what.into(), similar: self.functions.similar(what) }),
            several => {
                let place = |id: &FunctionId| format!("{:#x}", self.functions.get(*id).start().get());
                Err(KernelError::Ambiguous { name: what.into(), places: several.iter().map(place).collect() })
            }
        }
    }

    /// Those functions whose bytes in memory are others than when the kernel was read.
    ///
    /// # Errors
    /// If memory cannot be read.
    pub fn changed(&self, source: &Source, functions: &[FunctionId]) -> Result<Vec<FunctionId>, KernelError> {
        let parts = functions.iter().flat_map(|id| self.functions.get(*id).parts.iter().copied());
        let parts: Vec<SvmaRange> = parts.collect();
        let file = source.open(CORE)?;
        let now = read_ranges(|at, room| file.read_exact_at(room, at), &source.path(CORE), &parts)?;
        let differs = |part: &SvmaRange| now.bytes(*part) != self.known.memory.bytes(*part);
        let is_changed = |id: &FunctionId| self.functions.get(*id).parts.iter().any(differs);
        Ok(functions.iter().copied().filter(is_changed).collect())
    }

    /// The code of a function.
    pub fn code(&self, id: FunctionId) -> Code {
        code_of(&self.known, self.functions.get(id))
    }

    /// Why a function stays where it is, all reasons, the first one first; none if it can be moved.
    pub fn reasons(&self, id: FunctionId, code: &Code) -> Vec<Reason> {
        let function = self.functions.get(id);
        let mut reasons: BTreeSet<Reason> = code.troubles.iter().map(|trouble| trouble.reason).collect();
        reasons.extend(self.known.places.reason(function.start(), &function.name));
        reasons.extend(self.users.contains(&id).then_some(Reason::HasUsers));
        reasons.into_iter().collect()
    }

    /// Whether calls of a function can be led elsewhere by the function tracer.
    pub fn is_traceable(&self, id: FunctionId, code: &Code) -> bool {
        let function = self.functions.get(id);
        let has_site = code.sites.iter().any(|site| site.kind == SiteKind::Trace);
        let in_list = |names: &HashSet<String>| {
            function.aliases.iter().chain([&function.name]).any(|name| names.contains(name))
        };
        has_site && (!self.known.traced.is_empty() || self.traceable.as_ref().is_none_or(in_list))
    }
}

fn missing(what: &str) -> KernelError {
    KernelError::Missing { what: what.into() }
}

/// Reads the kernel's image, with text, constants, keys and tables, of the core `file`, which is at `path`.
///
/// # Errors
/// If the symbols do not say where it is, or the file does not hold it.
pub fn image(file: impl ReadAt, path: &Path, symbols: &Symbols) -> Result<Memory, KernelError> {
    let range = image_range(symbols).ok_or_else(|| missing("names for the bounds of its text"))?;
    read_memory(file, path, range)
}

fn image_range(symbols: &Symbols) -> Option<SvmaRange> {
    let start = symbols.address("_text").or(symbols.address("_stext"))?;
    let ends = ["_end", "__bss_stop", "__init_end", "_edata", "__end_rodata", "_etext"];
    let end = ends.iter().find_map(|name| symbols.address(name)).filter(|end| *end > start)?;
    Some(SvmaRange::between(start, end))
}

/// Whether code in `hot` branches into `cold`.
fn leads_to(memory: &Memory, hot: SvmaRange, cold: SvmaRange) -> bool {
    let mut leads = false;
    let bytes = memory.bytes(hot).unwrap_or_default();
    // What cannot be read on leads nowhere.
    let _ = scan_kernel(bytes, hot.start, |insn| match insn.insn.flow {
        Flow::Jump(to) | Flow::Conditional(_, to) => leads |= cold.contains(to),
        _ => {}
    });
    leads
}

/// Whether control may leave the code to its caller, or to somewhere from where it may. Of code that is not
/// understood in all this is believed: a thunk, say, calls its own middle and returns from there.
fn returns(code: &Code, known: &Known) -> bool {
    if !code.troubles.is_empty() {
        return true;
    }
    let leaves = |at: Svma| code.block_at(at).is_none() && !known.silent.contains(&at);
    code.blocks.iter().filter(|block| block.is_reached).any(|block| match block.end {
        End::Return | End::IndirectJump(_) | End::TableJump | End::StaticJump { .. } => true,
        End::Trap | End::NoReturn => false,
        End::Next => leaves(block.range.end),
        other => other.target().is_some_and(leaves) || other.flows_on() && leaves(block.range.end),
    })
}

/// What all functions say about each other.
#[derive(Default)]
struct Whole {
    entered: BTreeSet<Svma>,
    named: BTreeSet<Svma>,
    callers: BTreeMap<Svma, Vec<FunctionId>>,
    silent: BTreeSet<FunctionId>,
}

impl Whole {
    /// Takes in what functions behind these say.
    fn extend(&mut self, behind: Self) {
        self.entered.extend(behind.entered);
        self.named.extend(behind.named);
        self.silent.extend(behind.silent);
        for (to, callers) in behind.callers {
            self.callers.entry(to).or_default().extend(callers);
        }
    }

    fn add(&mut self, id: FunctionId, code: &Code, functions: &Functions, known: &Known) {
        let function = functions.get(id);
        let is_middle = |at: Svma| {
            let owner = functions.at(at).filter(|_| !function.contains(at));
            owner.is_some_and(|owner| functions.get(owner).start() != at)
        };
        let targets = code.blocks.iter().filter_map(|block| block.end.target());
        self.entered.extend(targets.filter(|at| is_middle(*at)));
        for site in &code.sites {
            match site.kind {
                SiteKind::Call(to) => {
                    self.callers.entry(to).or_default().push(id);
                    self.entered.extend(Some(to).filter(|to| is_middle(*to)));
                }
                SiteKind::Exception(exception) => {
                    self.entered.extend(Some(exception.fixup).filter(|to| is_middle(*to)));
                }
                _ => {}
            }
        }
        // Tail calls, too.
        for block in &code.blocks {
            if let Some(to) = block.end.target().filter(|to| !function.contains(*to)) {
                self.callers.entry(to).or_default().push(id);
            }
        }
        code.uses.iter().for_each(|at| self.named.extend(middle(*at, functions, known)));
        if !returns(code, known) {
            self.silent.insert(id);
        }
    }

    /// Words of constants that are such addresses. Numbers that look like one but are in the middle of an
    /// instruction are numbers.
    fn constants(&mut self, known: &Known, functions: &Functions) {
        let constants =
            known.places.constants.and_then(|range| known.memory.bytes(range)).unwrap_or_default();
        let words = constants.chunks_exact(8).filter_map(<[u8]>::first_chunk);
        let found = words.filter_map(|word| middle(Svma::new(u64::from_le_bytes(*word)), functions, known));
        let found: BTreeSet<Svma> = found.collect();
        self.named.extend(found.into_iter().filter(|at| is_instruction(*at, functions, known)));
    }
}

/// An address of text that is in the middle of a function. Right behind the marker of branch targets is an
/// entry as well.
fn middle(at: Svma, functions: &Functions, known: &Known) -> Option<Svma> {
    let owner = functions.at(at).filter(|_| known.places.text.contains(at))?;
    let start = functions.get(owner).start();
    let marker = known.memory.at(start).map_or(0, target_marker);
    (at != start && at != start + marker).then_some(at)
}

/// Whether an instruction starts there.
fn is_instruction(at: Svma, functions: &Functions, known: &Known) -> bool {
    let parts = functions.at(at).map(|owner| &functions.get(owner).parts[..]).unwrap_or_default();
    let Some(part) = parts.iter().find(|part| part.contains(at)) else { return false };
    let mut is_it = false;
    let bytes = known.memory.bytes(*part).unwrap_or_default();
    let scanned = scan_kernel(bytes, part.start, |insn| is_it |= insn.insn.at == at);
    is_it || scanned.is_err()
}

/// The first words of the lines.
fn first_words(text: &str) -> HashSet<String> {
    text.lines().filter_map(|line| line.split_whitespace().next()).map(Into::into).collect()
}

/// Addresses that lines begin with.
fn sites(text: &str) -> HashSet<Svma> {
    let site = |line: &str| u64::from_str_radix(line.split_whitespace().next()?, 16).ok();
    text.lines().filter_map(site).filter(|at| *at != 0).map(Svma::new).collect()
}

/// Ranges that lines begin with: `0xBEGIN-0xEND`.
fn ranges(text: &str) -> Vec<SvmaRange> {
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        (start < end).then(|| SvmaRange::between(Svma::new(start), Svma::new(end)))
    };
    text.lines().filter_map(range).collect()
}
