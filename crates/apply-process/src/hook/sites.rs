//! Where a process's unwinders ask for tables: the places that the hook changes.

use crate::entry_patch::destination;
use crate::hook::page::{FIND_AT, ITERATE_AT, is_ours};
use crate::state::hook_journal::CODE_LEN;
use crate::target::{Module, Target};
use restitch_address::{Avma, PAGE, Svma};
use restitch_cfi::UnwindInfo;
use restitch_image::{Binding, Image};
use restitch_program::{main_range, unwinder_lookups};
use restitch_x86::patch::Patch;
use restitch_x86::{Flow, LONGEST, Op, decode_one};

/// A function of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    /// Index of the module in the target.
    pub module: usize,
    /// Its address there.
    pub at: Svma,
}

/// How lookups by program counter reach the hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FindSite {
    /// glibc since 2.35, dynamic: `_dl_find_object` jumps through a pointer in the loader's data. Address of
    /// the pointer.
    Pointer(Avma),
    /// A static program: the function itself.
    Function(Function),
}

/// All places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sites {
    /// `_dl_find_object`.
    pub find: Option<FindSite>,
    /// `dl_iterate_phdr`.
    pub iterate: Option<Function>,
    /// The program's link map.
    pub link_map: Option<Avma>,
    /// The loader's `struct r_debug_extended`, if it has that form.
    pub debugger: Option<Avma>,
}

/// The unwind tables of a module.
pub(crate) fn unwind_info(module: &Module) -> Option<UnwindInfo> {
    let at = module.image.eh_frame()?;
    UnwindInfo::parse(module.image.read(at.start, at.len() as usize)?, at.start).ok()
}

impl Sites {
    /// Looks for all of them. `read` reads 8 bytes of the process.
    pub fn find(target: &Target, mut read: impl FnMut(Avma) -> Option<u64>) -> Self {
        let program = &target.modules[target.program];
        if program.image.is_static() {
            return Self::in_static(target, &mut read);
        }
        let debug = r_debug(target, &mut read);
        let link_map = debug.and_then(|d| read(d + 8)).filter(|m| *m != 0).map(Avma::new);
        let order = link_order(target, link_map, &mut read);
        let find = exporter(target, "_dl_find_object", &order).and_then(|f| pointer(target, f, &mut read));
        // The program or a library in front of the C library may have one of its own (sanitizers, caches of
        // the list): that is the one which is called, and it asks the C library's.
        let iterate = exporter(target, "dl_iterate_phdr", &order);
        // The pointer came with glibc 2.35, and so did the extended list.
        Self { find, iterate, link_map, debugger: debug.filter(|_| find.is_some()) }
    }

    fn in_static(target: &Target, read: &mut impl FnMut(Avma) -> Option<u64>) -> Self {
        let program = &target.modules[target.program];
        let Some(unwind) = unwind_info(program) else { return Self::default() };
        let lookups = unwinder_lookups(&program.image, &unwind);
        let function = |at| Function { module: target.program, at };
        let link_map = lookups
            .find_object
            .and_then(|f| main_range(&program.image, &unwind, f))
            .and_then(|main| read(program.bias.to_actual(main) + 16))
            .filter(|m| *m != 0);
        Self {
            find: lookups.find_object.map(|f| FindSite::Function(function(f))),
            iterate: lookups.iterate.map(function),
            link_map: link_map.map(Avma::new),
            debugger: None,
        }
    }

    /// The functions whose first bytes the hook changes, each with the offset of its routine in the hook's
    /// page.
    pub fn detours(&self) -> Vec<(Function, u64)> {
        let find = match self.find {
            Some(FindSite::Function(f)) => Some((f, FIND_AT)),
            _ => None,
        };
        find.into_iter().chain(self.iterate.map(|f| (f, ITERATE_AT))).collect()
    }

    /// The page of a hook that is in force already: some place leads to it.
    pub fn page_in_force(&self, target: &Target, mut read: impl FnMut(Avma) -> Option<u64>) -> Option<Avma> {
        let mut candidates = Vec::new();
        if let Some(FindSite::Pointer(slot)) = self.find {
            candidates.push(Avma::new(read(slot)?.wrapping_sub(FIND_AT)));
        }
        for (function, routine) in self.detours() {
            let at = target.modules[function.module].bias.to_actual(function.at);
            let bytes = read(at)?.to_le_bytes();
            let to = Patch::beginning_of(&bytes).and_then(|found| destination(at, found));
            candidates.extend(to.map(|to| to - routine));
        }
        candidates.into_iter().find(|page| {
            page.get() % PAGE == 0 && read_page(*page, &mut read).is_some_and(|bytes| is_ours(&bytes))
        })
    }
}

/// The bytes of a hook's page.
pub(crate) fn read_page(page: Avma, read: &mut impl FnMut(Avma) -> Option<u64>) -> Option<Vec<u8>> {
    let words: Option<Vec<[u8; 8]>> =
        (0..CODE_LEN / 8).map(|i| read(page + 8 * i).map(u64::to_le_bytes)).collect();
    Some(words?.concat())
}

fn exported(module: &Module, name: &str) -> Option<Svma> {
    let symbols = module.image.symbols_with_aliases().iter();
    let is = |n: &str| n.split('@').next() == Some(name);
    symbols
        .filter(|s| s.is_function() && s.binding != Binding::Local)
        .find(|s| is(&s.name))
        .map(|s| s.range.start)
}

/// The modules in the loader's order of objects, whose first is at `head`: those of the program's own
/// namespace. All modules, if there is no such list.
fn link_order(target: &Target, head: Option<Avma>, read: &mut impl FnMut(Avma) -> Option<u64>) -> Vec<usize> {
    const MOST_OBJECTS: usize = 10_000;
    // struct link_map: l_addr, l_name, l_ld, l_next.
    let (mut order, mut next) = (Vec::new(), head);
    for _ in 0..MOST_OBJECTS {
        let Some(map) = next else { break };
        let bias = read(map).unwrap_or_default();
        order.extend(target.modules.iter().position(|m| m.bias.get() == bias));
        next = read(map + 24).filter(|n| *n != 0).map(Avma::new);
    }
    if order.is_empty() { (0..target.modules.len()).collect() } else { order }
}

/// The definition that other modules are bound to: the first one in that order.
fn exporter(target: &Target, name: &str, order: &[usize]) -> Option<Function> {
    order.iter().find_map(|&module| {
        let image = &target.modules[module].image;
        exported(&target.modules[module], name).map(|at| Function { module, at: behind_jumps(image, at) })
    })
}

/// Where the function at `at` of the file begins in truth: sanitizers of LLVM export jumps to their
/// functions, in which there is no room for another one.
fn behind_jumps(image: &Image, mut at: Svma) -> Svma {
    const MOST_JUMPS: usize = 4;
    for _ in 0..MOST_JUMPS {
        let bytes = image.read_tail(at).unwrap_or_default();
        match decode_one(&bytes[..bytes.len().min(LONGEST)], at).map(|decoded| decoded.insn.flow) {
            Some(Flow::Jump(to)) => at = to,
            _ => break,
        }
    }
    at
}

/// The pointer that a dynamic glibc's `_dl_find_object` (`mov GLRO,%rax; jmp *disp(%rax)`) jumps through.
fn pointer(
    target: &Target,
    function: Function,
    read: &mut impl FnMut(Avma) -> Option<u64>,
) -> Option<FindSite> {
    let module = &target.modules[function.module];
    let mut at = function.at;
    let mut pointer = None;
    for _ in 0..3 {
        let bytes = module.image.read_tail(at)?;
        let insn = decode_one(&bytes[..bytes.len().min(LONGEST)], at)?;
        match (insn.op, pointer) {
            (Op::Load { dst, mem, size: 8, .. }, None) if mem.rip => {
                pointer = Some((dst, Svma::new(mem.disp as u64)));
            }
            (Op::JumpMemory(mem), Some((reg, got))) if mem.base == Some(reg) && mem.index.is_none() => {
                let table = read(module.bias.to_actual(got))?;
                return Some(FindSite::Pointer(Avma::new(table).offset(mem.disp)));
            }
            // `endbr64` in front.
            (Op::Other, None) => {}
            _ => break,
        }
        at = insn.insn.end();
    }
    // Another form: like in a static program, by its entry.
    Some(FindSite::Function(function))
}

/// The loader's `struct r_debug`, by way of DT_DEBUG.
fn r_debug(target: &Target, read: &mut impl FnMut(Avma) -> Option<u64>) -> Option<Avma> {
    const PT_DYNAMIC: u32 = 2;
    const DT_DEBUG: u64 = 21;
    let program = &target.modules[target.program];
    let dynamic = program.image.program_headers().iter().find(|h| h.kind == PT_DYNAMIC)?;
    let start = program.bias.to_actual(dynamic.address);
    for i in 0..dynamic.memory_len / 16 {
        match read(start + 16 * i)? {
            0 => break,
            DT_DEBUG => return read(start + 16 * i + 8).filter(|d| *d != 0).map(Avma::new),
            _ => {}
        }
    }
    None
}
