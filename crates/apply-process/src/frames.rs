//! Walking the frames of a stopped thread: where its return addresses are.
//!
//! A frame in a version has the state of its original instruction, so the original's unwind rows serve for
//! it.

use crate::installed_version::InstalledVersion;
use crate::target::{Module, Target};
use restitch_address::{Avma, Svma};
use restitch_cfi::{FrameState, Register, Registers, UnwindInfo, step};
use restitch_procfs::Mapping;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// Deepest stack that is walked. Deeper frames are found by the scan of the stack's words.
const MOST_FRAMES: usize = 20_000;

/// Unwind tables of all modules.
pub(crate) struct Walker<'a> {
    target: &'a Target,
    old: &'a [InstalledVersion],
    unwind: BTreeMap<usize, UnwindInfo>,
    /// Modules with an unwinder in them: while one runs, program counters are in its own records too.
    unwinders: BTreeSet<usize>,
    /// What was looked up: threads mostly have the same callers, and a row takes longer to make than a frame
    /// to read.
    known: RefCell<Known>,
    /// Modules that are no longer there.
    gone: RefCell<BTreeSet<usize>>,
}

/// Frames by module and original address; `None` where the tables say nothing.
type Known = HashMap<(usize, Svma), Option<Rc<Frame>>>;

/// What the tables say of a program counter.
struct Frame {
    state: Arc<FrameState>,
    signal_frame: bool,
    /// Whether it is in an unwinder.
    unwinding: bool,
}

/// The frames of one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walk {
    /// Return addresses, innermost first.
    pub slots: Vec<ReturnSlot>,
    /// Canonical frame addresses that were passed.
    pub frames: Vec<Avma>,
    /// Every return address of the thread is in `slots`: the walk reached the outermost frame, and no
    /// unwinder is at work.
    pub complete: bool,
    /// Where the outermost frame's function goes on, if the walk reached it.
    pub outermost: Option<Avma>,
}

/// One return address on a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReturnSlot {
    /// Where it is stored.
    pub slot: Avma,
    /// Its value.
    pub value: Avma,
    /// Whether it is the program counter that a signal interrupted: it need not stand behind a call.
    pub interrupted: bool,
}

impl<'a> Walker<'a> {
    /// Reads the tables: before the stop.
    pub fn new(target: &'a Target, old: &'a [InstalledVersion]) -> Self {
        let mut unwind = BTreeMap::new();
        for (i, m) in target.modules.iter().enumerate() {
            if let Some(at) = m.image.eh_frame()
                && let Some(bytes) = m.image.read(at.start, at.len() as usize)
                && let Ok(info) = UnwindInfo::parse(bytes, at.start)
            {
                unwind.insert(i, info);
            }
        }
        let unwinders = (0..target.modules.len()).filter(|i| has_unwinder(&target.modules[*i])).collect();
        Self { target, old, unwind, unwinders, known: RefCell::default(), gone: RefCell::default() }
    }

    /// What holds at `original` of module number `module`; `None` if the tables do not say.
    fn frame(&self, module: usize, original: Svma) -> Option<Rc<Frame>> {
        let mut known = self.known.borrow_mut();
        known.entry((module, original)).or_insert_with(|| self.look_up(module, original).map(Rc::new)).clone()
    }

    fn look_up(&self, module: usize, original: Svma) -> Option<Frame> {
        let info = self.unwind.get(&module)?;
        let state = info.row_at(original).ok()??.state;
        let signal_frame = info.find(original).is_some_and(|e| e.signal_frame);
        let unwinding = self.is_unwinder(module, original);
        Some(Frame { state, signal_frame, unwinding })
    }

    fn is_unwinder(&self, module: usize, original: Svma) -> bool {
        self.unwinders.contains(&module) || in_static_unwinder(&self.target.modules[module], original)
    }

    /// The module and original address that `at` (any byte of an instruction) stands for.
    fn original(&self, at: Avma) -> Option<(usize, Svma)> {
        if let Some(old) = self.old.iter().find(|o| o.range.contains(at)) {
            return old.original_byte(at);
        }
        let module = self.target.module_at(at).filter(|module| !self.gone.borrow().contains(module))?;
        Some((module, self.target.modules[module].bias.to_stated(at)))
    }

    /// From here on modules that are no longer where they were, by `maps` of the process, are not known: what
    /// lies there may be other code.
    pub fn see(&self, maps: &[Mapping]) {
        *self.gone.borrow_mut() = self.target.moved_modules(maps).into_iter().collect();
    }

    /// The frames of a thread, as far as they can be followed.
    pub fn walk(
        &self,
        thread: &restitch_tracee::Registers,
        read: &mut dyn FnMut(Avma) -> Option<u64>,
    ) -> Walk {
        let mut walk = Walk::default();
        let mut registers = dwarf_registers(thread);
        let (mut interrupted, mut unwinding, mut last) = (true, false, None);
        while walk.slots.len() < MOST_FRAMES {
            let Some(rip) = registers.rip().filter(|rip| rip.get() != 0) else {
                walk.complete = !unwinding;
                walk.outermost = last;
                break;
            };
            last = Some(rip);
            let lookup = if interrupted { rip } else { rip - 1 };
            let Some((module, original)) = self.original(lookup) else { break };
            let Some(frame) = self.frame(module, original) else { break };
            unwinding |= frame.unwinding;
            interrupted = frame.signal_frame;
            let Ok(next) = step(&frame.state, &registers, read) else { break };
            walk.frames.push(next.cfa);
            if let (Some(slot), Some(value)) = (next.return_address_slot, next.caller.rip()) {
                walk.slots.push(ReturnSlot { slot, value, interrupted });
            }
            if next.caller.rsp() == registers.rsp() && next.caller.rip() == registers.rip() {
                break;
            }
            registers = next.caller;
        }
        walk
    }
}

/// Whether all of the module counts as an unwinder, as far as its symbols tell. A static program has one
/// beside everything else: there single functions count, or, without symbols, all of it.
fn has_unwinder(module: &Module) -> bool {
    match module.image.is_static() {
        true => module.image.symbols_named("main").next().is_none(),
        false => names_unwinder(module),
    }
}

/// Whether an unwinder is among the module's symbols.
pub(crate) fn names_unwinder(module: &Module) -> bool {
    // libgcc and LLVM's libunwind; nongnu libunwind, whose names carry the processor.
    const NAMES: [&str; 4] =
        ["_Unwind_RaiseException", "_Unwind_Backtrace", "_ULx86_64_step", "_Ux86_64_step"];
    NAMES.iter().any(|name| module.image.symbols_named(name).next().is_some())
}

/// Whether `at` is in an unwinder's function of a static program.
fn in_static_unwinder(module: &Module, at: Svma) -> bool {
    const PREFIXES: [&str; 5] = ["_Unwind_", "__unw_", "unw_", "__libunwind_", "_ULx86_64_"];
    let name = || module.image.symbol_containing(at).map(|s| &s.name);
    module.image.is_static() && name().is_some_and(|n| PREFIXES.iter().any(|p| n.starts_with(p)))
}

fn dwarf_registers(r: &restitch_tracee::Registers) -> Registers {
    let rsp = r.rsp.get();
    let by_number = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
        r.r15,
    ];
    let mut out = Registers::default().with(Register::RIP, r.rip.get());
    for (i, value) in by_number.into_iter().enumerate() {
        out.set(Register(i as u16), Some(value));
    }
    out
}
