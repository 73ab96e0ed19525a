//! Leaving versions behind: return addresses are translated, so that hardly anybody comes back to them.

use crate::entry_patch::{LEN, destination, jump};
use crate::error::ProcessError;
use crate::frames::ReturnSlot;
use crate::host::{CodeMemory, StoppedHost};
use crate::installed_version::InstalledVersion;
use crate::memory::writing::write_jumps;
use crate::patches::is_within_one;
use crate::switch_plan::{SwitchPlan, SwitchReport};
use crate::target::{Module, Target};
use crate::threads::{ThreadView, words};
use crate::words::WordFinder;

use restitch_address::{Avma, AvmaRange, LoadBias, PAGE, Svma};
use restitch_emit::RedirectKind;
use restitch_procfs::Pagemap;
use restitch_tracee::{Memory, Registers};
use restitch_x86::patch::Patch;
use restitch_x86::{Flow, LONGEST, relocate_field};
use std::collections::{BTreeSet, HashMap};

/// Translates return addresses: out of leaving versions, into arriving ones.
pub(crate) fn retire(
    stopped: &impl StoppedHost,
    target: &Target,
    plan: &SwitchPlan<'_>,
    threads: &[ThreadView],
    report: &mut SwitchReport,
) -> Result<(), ProcessError> {
    // The frames are those of the registers at the stop: moving a thread changes its program counter only.
    let mut destinations = Destinations::new(target, plan);
    let slots = threads.iter().flat_map(|thread| &thread.walk.slots);
    let words: Vec<(Avma, u64)> =
        slots.filter_map(|slot| Some((slot.slot, destinations.of(slot)?.get()))).collect();
    stopped.memory().write_words(&words)?;
    let translated: BTreeSet<Avma> = words.into_iter().map(|(slot, _)| slot).collect();
    report.moved_returns = translated.len();
    if plan.leaving.is_empty() {
        return Ok(());
    }
    for (old, forwarding) in plan.leaving.iter().zip(&plan.forwarding) {
        // Nobody new comes in, so nothing has to be done where nobody is. But where entries lead on already,
        // to a version that leaves now and may be unmapped soon, somebody may be that no walk finds: on the
        // stack of a coroutine.
        let led_into = comes_back_to(stopped, old, threads, &translated)?;
        if led_into || !forwarding.is_empty() {
            redirect_old_entries(stopped, plan, old, threads, led_into, forwarding)?;
        }
    }
    Ok(())
}

/// Where return addresses are to lead. Threads mostly have the same callers: each address is looked up once.
struct Destinations<'a> {
    target: &'a Target,
    plan: &'a SwitchPlan<'a>,
    /// By module of the target: whether it is the C library.
    c_library: Vec<bool>,
    known: HashMap<(Avma, bool), Option<Avma>>,
}

impl<'a> Destinations<'a> {
    fn new(target: &'a Target, plan: &'a SwitchPlan<'a>) -> Self {
        let c_library = target.modules.iter().map(is_c_library).collect();
        Self { target, plan, c_library, known: HashMap::new() }
    }

    /// What is to stand in the slot; `None` if it stays as it is.
    fn of(&mut self, slot: &ReturnSlot) -> Option<Avma> {
        let key = (slot.value, slot.interrupted);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let to = self.look_up(slot).filter(|to| *to != slot.value);
        self.known.insert(key, to);
        to
    }

    fn look_up(&self, s: &ReturnSlot) -> Option<Avma> {
        let plan = self.plan;
        let old = plan.leaving.iter().find(|o| o.range.contains(s.value - 1));
        // A return address stands behind a call. What does not (an unwinder has just put a landing pad there)
        // is left alone: the byte in front of it belongs to something else, so its copy says nothing.
        let returns = |original: Avma| follows_call(self.target, original).then_some(original);
        match (old, s.interrupted) {
            (Some(old), true) => old.to_original(s.value).map(|o| plan.destination_or_original(o)),
            (Some(old), false) => {
                old.return_to_original(s.value).and_then(returns).map(|o| plan.return_destination(o))
            }
            (None, true) => plan.destination(s.value),
            // Frames of the C library stay: those below `main` never do any work, and programs compare them.
            (None, false) if self.in_c_library(s.value) => None,
            (None, false) => returns(s.value).map(|o| plan.return_destination(o)),
        }
    }

    fn in_c_library(&self, at: Avma) -> bool {
        self.target.module_at(at - 1).is_some_and(|m| self.c_library[m])
    }
}

impl SwitchPlan<'_> {
    /// The return address in an arriving version that equals original return address `at`, else `at` itself.
    fn return_destination(&self, at: Avma) -> Avma {
        self.arriving
            .iter()
            .find_map(|a| {
                let bias = LoadBias::between(Svma::new(0), Avma::new(a.record.bias));
                a.reverse.byte(bias.to_stated(at - 1)).map(|v| bias.to_actual(v + 1))
            })
            .unwrap_or(at)
    }
}

fn is_c_library(module: &Module) -> bool {
    module.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libc.so"))
}

/// Whether the instruction in front of original address `at` is a call.
fn follows_call(target: &Target, at: Avma) -> bool {
    let Some(module) = target.module_at(at - 1).map(|m| &target.modules[m]) else { return false };
    let stated = module.bias.to_stated(at);
    // `call rel32` has 5 bytes, an indirect call 2 to 7 and a prefix or two.
    (2..=9u64).any(|len| {
        let start = stated - len;
        let insn = module.image.read(start, len as usize).and_then(|bytes| relocate_field(bytes, start));
        insn.is_some_and(|(i, _)| {
            u64::from(i.len) == len && matches!(i.flow, Flow::Call(_) | Flow::IndirectCall)
        })
    })
}

/// What of a thread leads into `range`: a register, or a word of its stack. `by_pointers`: addresses in it
/// may be on stacks that are no return addresses.
pub(crate) fn leads_into(
    stopped: &impl StoppedHost,
    range: AvmaRange,
    by_pointers: bool,
    threads: &[ThreadView],
) -> Result<Option<String>, ProcessError> {
    for thread in threads {
        let r = stopped.registers(thread.tid)?;
        if register_leads_into(&r, range) {
            return Ok(Some(format!("a register of thread {} holds an address in it", thread.tid)));
        }
        if let Some(why) = stack_leads_into(&r, range, by_pointers, thread, &BTreeSet::new()) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

fn register_leads_into(r: &Registers, range: AvmaRange) -> bool {
    // A system call leaves its own address in rcx, which nobody may use afterwards (System V ABI, A.2.1).
    let rcx = if r.system_call().is_some() { 0 } else { r.rcx };
    let low = [r.rax, r.rbx, rcx, r.rdx, r.rsi, r.rdi, r.rbp];
    let high = [r.rip.get(), r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
    low.iter().chain(&high).any(|v| range.contains(Avma::new(*v)))
}

/// Whether a thread is in the version `old`, or has a return address there that was not translated, or what a
/// slot of a v-table held: it goes on there and calls from there. (A stale address in another register, of a
/// jump table's target say, keeps a version mapped, but leads nobody back to it.)
fn comes_back_to(
    stopped: &impl StoppedHost,
    old: &InstalledVersion,
    threads: &[ThreadView],
    translated: &BTreeSet<Avma>,
) -> Result<bool, ProcessError> {
    for thread in threads {
        let r = stopped.registers(thread.tid)?;
        let in_register = match old.by_pointers {
            true => register_leads_into(&r, old.range),
            false => old.range.contains(r.rip),
        };
        if in_register || stack_leads_into(&r, old.range, old.by_pointers, thread, translated).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What of a thread's stack leads into `range`, but for the words at `translated`.
fn stack_leads_into(
    registers: &Registers,
    range: AvmaRange,
    by_pointers: bool,
    thread: &ThreadView,
    translated: &BTreeSet<Avma>,
) -> Option<String> {
    let done = |at: &Avma| translated.contains(at);
    if thread.walk.complete {
        // Everything else on this stack is data, and what looks like an address in it is a dead one, or a
        // pointer.
        let leads = |s: &&ReturnSlot| range.contains(s.value - 1) && !done(&s.slot);
        let slot = thread.walk.slots.iter().find(leads);
        if let Some(slot) = slot {
            return Some(format!("thread {} returns into it (from the frame at {})", thread.tid, slot.slot));
        }
        if !by_pointers {
            return None;
        }
    }
    let finder = WordFinder::of(&[range]);
    let leads = words(thread, &finder).find(|(at, _)| !done(at) && *at >= registers.rsp - 128);
    let does = if thread.walk.complete { "holds an address in it" } else { "may return into it" };
    leads.map(|(at, _)| format!("thread {} {does} (stack word at {at})", thread.tid))
}

/// The function entries of a version that an earlier switch made lead out of it. Only restitch changes them,
/// which holds the process's lock: so they can be looked at before the stop. They are in pages that the
/// process has of its own; there are few of these, or none.
pub(crate) fn forwarding(memory: &Memory, old: &InstalledVersion) -> BTreeSet<Avma> {
    let states = Pagemap::open(memory.pid()).and_then(|pages| pages.states(old.range));
    let own = |at: Avma| {
        let page = (at.offset_from(old.range.start) / PAGE as i64) as usize;
        // What the kernel does not tell may be so.
        states.as_ref().map_or(true, |states| states.get(page).is_none_or(|state| state.is_own()))
    };
    let entries = old.stored.redirects.iter().filter(|r| r.kind == RedirectKind::Entry);
    let entries = entries.map(|r| (old.bias.to_actual(r.to), LEN));
    let entries: Vec<(Avma, usize)> =
        entries.filter(|(at, len)| own(*at) || own(*at + *len as u64 - 1)).collect();
    let found = memory.read_many(&entries);
    // (A copy that begins with such a jump by itself is no harm: the entry of its function is as good.)
    let leads_on = |at: Avma, bytes: &[u8]| {
        let to = Patch::beginning_of(bytes).and_then(|found| destination(at, found));
        to.is_some_and(|to| !old.range.contains(to))
    };
    let all = entries.iter().zip(found);
    all.filter(|((at, _), bytes)| bytes.as_ref().is_some_and(|b| leads_on(*at, b)))
        .map(|((at, _), _)| *at)
        .collect()
}

/// Makes the function entries of a version that stays lead to the newest code, so that old frames call new
/// functions: those that are `forwarding` somewhere already, and with `all` the others too.
fn redirect_old_entries(
    stopped: &impl StoppedHost,
    plan: &SwitchPlan<'_>,
    old: &InstalledVersion,
    threads: &[ThreadView],
    all: bool,
    forwarding: &BTreeSet<Avma>,
) -> Result<(), ProcessError> {
    let finder = WordFinder::of(&[old.range]);
    let counters = threads.iter().map(|t| t.registers.rip).filter(|rip| old.range.contains(*rip));
    let words = threads.iter().flat_map(|t| words(t, &finder)).map(|(_, word)| word);
    let pointed: BTreeSet<Avma> = words.chain(counters).collect();
    // Where contexts come to rest anywhere, one may rest between two instructions.
    let rests_inside = |at: Avma| {
        let code = || stopped.memory().read_vec(at, LONGEST).unwrap_or_default();
        !plan.resting.is_empty() && !is_within_one(&code())
    };
    let pieces = &old.stored.map.pieces;
    let mut jumps = Vec::new();
    for r in old.stored.redirects.iter().filter(|r| r.kind == RedirectKind::Entry) {
        let at = old.bias.to_actual(r.to);
        let i = pieces.partition_point(|p| p.version <= r.to).saturating_sub(1);
        // Room for a jump inside one piece, of which only the start is a branch target.
        let room = pieces.get(i).is_some_and(|p| {
            p.version.offset_from(r.to) <= 0 && r.to.offset_from(p.version) + LEN as i64 <= i64::from(p.len)
        });
        let busy = pointed.range(at + 1..at + LEN as u64).next().is_some() || rests_inside(at);
        let to = plan.destination_or_original(old.bias.to_actual(r.at));
        // Where there is a jump already, nobody stands in its bytes.
        if room
            && (forwarding.contains(&at) || all && !busy)
            && let Some(bytes) = jump(at, to)
        {
            jumps.push((at, bytes));
        }
    }
    write_jumps(stopped.memory(), &jumps)
}
