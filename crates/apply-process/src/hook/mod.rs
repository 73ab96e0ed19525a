//! The unwinder's hook: how exceptions, backtraces and debuggers find the tables and names of moved code.
//!
//! Problem: unwinders ask the C library which object holds a program counter; it knows nothing of our
//! versions. Idea: two functions answer that question, and both get a routine of ours in front, which reads a
//! table of versions:
//! * `_dl_find_object` (libgcc with glibc since 2.35). In a dynamic program it jumps through a pointer in the
//!   loader's data, which is replaced (one aligned 8-byte write); in a static one it gets a detour.
//! * `dl_iterate_phdr` (LLVM's and nongnu libunwind, older libgcc, Rust's symbolization, everything on musl):
//!   a detour.
//!
//! Debuggers find the versions in a second list of the loader's (`data.rs`).
//!
//! The hook is planned and journalled before the stop: its place, its bytes, the places that lead to it. So a
//! run that is killed leaves a journal that can undo it, whatever had been written. It is taken out when the
//! last version is, once nobody stands in it.
//!
//! Limits: a function whose beginning cannot be displaced is not hooked, and then the process is refused if
//! something in it may unwind. So it is with static programs without symbols whose lookup functions have an
//! unknown shape.

mod data;
mod detour;
mod detours;
pub(crate) mod found;
mod page;
mod sites;

use crate::entry_patch::LEN;
use crate::error::{ProcessError, tells_of_end};
use crate::hook::data::{DATA_LEN, Named, R_NEXT};
use crate::hook::detours::detoured;
use crate::hook::page::{FIND_AT, FIND_TRAMPOLINE_AT, GENERATION_AT, HookEntry, Trampolines};
use crate::hook::sites::{FindSite, Sites};
use crate::host::{CodeMemory, StoppedHost};
use crate::overlay::foreign_code;
use crate::retire::leads_into;
use crate::state::hook_journal::CODE_LEN;
use crate::state::hook_journal::{JournalDetour, JournalHook};
use crate::state::journal::Journal;
use crate::target::Target;
use crate::threads::{ThreadView, stands_in, words};
use crate::words::WordFinder;
use restitch_address::{Avma, AvmaRange};
use restitch_apply::{Why, explained};
use restitch_tracee::{Backing, Batch, Memory, Placement, Protection, Registers, TraceError};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Plans the hook of a process that has none: nothing is changed yet. `None` if it needs none, because
/// nothing in it can unwind. `reserve` finds a place of so many bytes near a module.
pub(crate) fn plan(
    target: &Target,
    can_unwind: bool,
    reserve: impl FnOnce(usize, u64) -> Result<Avma, ProcessError>,
) -> Result<Option<JournalHook>, ProcessError> {
    let refuse = |why: Why| match can_unwind {
        true => Err(ProcessError::NoUnwindHook { pid: target.pid(), why }),
        false => Ok(None),
    };
    let memory = Memory::open_read_only(target.pid())?;
    let sites = Sites::find(target, |at| memory.read_u64(at).ok());
    if sites.find.is_none() && sites.iterate.is_none() {
        // In one that has ended meanwhile nothing is found.
        memory.read_u64(target.modules[target.program].range.start)?;
        return refuse(not_found(target.modules[target.program].image.is_static()).into());
    }
    let near = sites.detours().first().map_or(target.program, |d| d.0.module);
    let page = reserve(near, CODE_LEN + DATA_LEN)?;
    match planned(target, &memory, &sites, page) {
        Ok(hook) => Ok(Some(hook)),
        Err(why) if tells_of_end(&*why) => {
            Err(TraceError::Vanished { tid: target.pid(), operation: "planning the unwinder's hook" }.into())
        }
        Err(why) => refuse(why),
    }
}

/// Why there is no function to ask for tables.
fn not_found(is_static: bool) -> &'static str {
    match is_static {
        true => {
            "neither _dl_find_object nor dl_iterate_phdr was found in it (a static program without symbols?)"
        }
        false => {
            "neither _dl_find_object nor dl_iterate_phdr was found in the libraries that it was started with (dlmopen has loaded others of the same files, each with functions of its own?)"
        }
    }
}

fn planned(target: &Target, memory: &Memory, sites: &Sites, page: Avma) -> Result<JournalHook, Why> {
    let detoured = detoured(target, sites, page)?;
    let data = page + CODE_LEN;
    let (slot, original) = match sites.find {
        Some(FindSite::Pointer(slot)) => {
            let unread = |e| explained(format!("the loader's data cannot be read ({e})"), e);
            let value = memory.read_u64(slot).map_err(unread)?;
            (slot.get(), Avma::new(value))
        }
        _ => (0, page + FIND_TRAMPOLINE_AT),
    };
    let by_routine =
        |routine: u64| detoured.iter().find(|d| d.routine == routine).map(|d| (&d.displaced, &d.unwind));
    let trampolines = Trampolines { find: by_routine(FIND_AT), iterate: by_routine(page::ITERATE_AT) };
    let fixed = page::fixed_part(page, original, &trampolines)?;
    let mut hook = JournalHook {
        page: page.get(),
        len: CODE_LEN + DATA_LEN,
        slot,
        original: original.get(),
        link_map: sites.link_map.unwrap_or(data::link_map(data)).get(),
        debugger: sites.debugger.filter(|d| has_extended_list(memory, *d)).map_or(0, Avma::get),
        ..JournalHook::default()
    };
    hook.set_fixed(&fixed);
    for d in &detoured {
        hook.detours.push(d.journal(target, page)?);
        let at = Avma::new(hook.detours[hook.detours.len() - 1].at);
        let unread = |e| explained(format!("the unwinders' lookup function cannot be read ({e})"), e);
        if memory.read_vec(at, LEN).map_err(unread)? != d.displaced.original.bytes() {
            return Err(format!("something else has patched the unwinders' lookup function at {at}").into());
        }
    }
    Ok(hook)
}

/// Whether the loader's `struct r_debug` at `debug` is an extended one in use: version 1 (no further list) or
/// 2.
fn has_extended_list(memory: &Memory, debug: Avma) -> bool {
    let word = |at: u64| memory.read_u64(debug + at).unwrap_or_default();
    let next = word(R_NEXT);
    match word(0) as u32 {
        1 => next == 0,
        2 => next != 0 && memory.read_u64(Avma::new(next) + R_NEXT).is_ok(),
        _ => false,
    }
}

/// Maps the planned hook's pages: all of them in one step, then the data over the second part.
pub(crate) fn map(batch: &mut Batch, hook: &JournalHook) {
    let at = Placement::At(Avma::new(hook.page));
    batch.mmap(at, hook.len, Protection::ReadExecute, Backing::Anonymous);
    batch.mmap(Placement::Over(hook.data()), DATA_LEN, Protection::ReadWrite, Backing::Anonymous);
}

/// Makes the pages with detours the process's own, by writing what is there: so they are laid out with the
/// other changes before the stop, although the detours come first in it.
pub(crate) fn own_pages(memory: &impl CodeMemory, hook: &JournalHook) -> Result<(), ProcessError> {
    for detour in &hook.detours {
        memory.write(Avma::new(detour.at), detour.original.bytes())?;
    }
    Ok(())
}

/// Writes the hook's table and names for all versions that are mapped. Nothing has to lead to it yet.
pub(crate) fn write_table(stopped: &impl StoppedHost, journal: &mut Journal) -> Result<(), ProcessError> {
    let Some(h) = &mut journal.hook else { return Ok(()) };
    let Some(mut page) = h.fixed() else { return Ok(()) };
    let busy = stands_in(stopped, h.code())?;
    let numbers: Vec<u32> = journal.versions.iter().map(|v| v.number).collect();
    let before = h.rows.clone();
    h.assign(&numbers, busy);
    let version = |number: &u32| journal.versions.iter().find(|v| v.number == *number);
    let (rows, data) = (h.rows.iter().map(version), h.data());
    let named: Vec<Option<Named<'_>>> = rows
        .clone()
        .map(|v| v.map(|v| Named { start: Avma::new(v.start), path: v.file.as_os_str().as_bytes() }))
        .collect();
    let entries: Vec<Option<HookEntry>> = rows
        .enumerate()
        .map(|(i, v)| {
            let eh_frame_hdr = Avma::new(v?.eh_frame_hdr);
            Some(HookEntry { range: v?.range(), eh_frame_hdr, name: data::name(data, i) })
        })
        .collect();
    if h.rows != before || h.generation == 0 {
        h.generation = next_generation(h.generation);
    }
    let own_name = data::own_name(data);
    let at = GENERATION_AT as usize;
    page[at..at + 8].copy_from_slice(&(h.generation << 32).to_le_bytes());
    page.extend(page::table(Avma::new(h.page), own_name, Avma::new(h.link_map), &entries));
    let memory = stopped.memory();
    for (at, bytes) in data::contents(data, &named) {
        memory.write(at, &bytes)?;
    }
    memory.write(Avma::new(h.page), &page)?;
    Ok(())
}

/// A number that no earlier table of this process had, also under a restitch that has left it since: the
/// time. It is added to `dlpi_adds` in the upper half, where no number of real objects gets.
fn next_generation(last: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    (now & 0x7fff_ffff).max((last + 1) & 0x7fff_ffff)
}

/// Makes everything lead to the hook; what does already stays. `resting`: where contexts rest besides
/// `threads`.
///
/// # Errors
/// [`ProcessError::NoUnwindHook`] if a signal interrupted a thread in the bytes that would change: a later
/// attempt will do.
pub(crate) fn arm(
    stopped: &mut impl StoppedHost,
    journal: &Journal,
    threads: &[ThreadView],
    resting: &[Avma],
) -> Result<(), ProcessError> {
    let Some(h) = &journal.hook else { return Ok(()) };
    if h.slot != 0 {
        stopped.memory().write(Avma::new(h.slot), &(h.page + FIND_AT).to_le_bytes())?;
    }
    for detour in &h.detours {
        arm_detour(stopped, detour, threads, resting)?;
    }
    link_debugger(stopped.memory(), h)
}

fn arm_detour(
    stopped: &mut impl StoppedHost,
    detour: &JournalDetour,
    threads: &[ThreadView],
    resting: &[Avma],
) -> Result<(), ProcessError> {
    let (pid, at) = (stopped.memory().pid(), Avma::new(detour.at));
    let found = stopped.memory().read_vec(at, LEN)?;
    if found == detour.now.bytes() {
        return Ok(());
    }
    if found != detour.original.bytes() {
        return Err(foreign_code(pid, at, found, detour.original.bytes().into()));
    }
    let covered = AvmaRange::between(at + 1, at + LEN as u64);
    let finder = WordFinder::of(&[covered]);
    let on_stacks = threads.iter().any(|t| words(t, &finder).next().is_some());
    if on_stacks || resting.iter().any(|at| covered.contains(*at)) {
        let why =
            format!("a signal interrupted a thread in the first bytes of the function at {at} (try again)");
        return Err(ProcessError::NoUnwindHook { pid, why: why.into() });
    }
    let tids = stopped.threads();
    for tid in tids {
        let registers = stopped.registers(tid)?;
        let offset = registers.rip.offset_from(at);
        if offset > 0 && detour.boundaries.iter().any(|b| i64::from(*b) == offset) {
            let rip = Avma::new(detour.trampoline) + offset as u64;
            stopped.set_registers(tid, Registers { rip, ..registers })?;
        }
    }
    stopped.memory().write(at, detour.now.bytes())?;
    Ok(())
}

/// Puts the list of versions behind the loader's first list of objects.
fn link_debugger(memory: &impl CodeMemory, h: &JournalHook) -> Result<(), ProcessError> {
    let (first, data) = (Avma::new(h.debugger), h.data());
    if h.debugger == 0 {
        return Ok(());
    }
    let bytes = memory.read_vec(first, 48)?;
    let Some(bytes) = bytes.first_chunk::<48>() else { return Ok(()) };
    let next = memory.read_u64(first + R_NEXT)?;
    if next != data.get() {
        let mine = memory.read_u64(data + 8)?;
        memory.write(data, &data::head(bytes, next))?;
        memory.write(data + 8, &mine.to_le_bytes())?;
        memory.write(first + R_NEXT, &data.get().to_le_bytes())?;
    }
    memory.write(first, &2u32.to_le_bytes())?;
    Ok(())
}

/// Makes nothing lead to the hook any more: what it changed gets its original bytes.
pub(crate) fn disarm(memory: &impl CodeMemory, h: &JournalHook) -> Result<(), ProcessError> {
    let slot = Avma::new(h.slot);
    if h.slot != 0 && memory.read_u64(slot)? == h.page + FIND_AT {
        // What the hook goes on to when it has nothing to say itself: so it is right, whatever a journal or a
        // record has come to say.
        let original = memory.read_vec(Avma::new(h.page) + page::ORIGINAL_AT, 8)?;
        memory.write(slot, &original)?;
    }
    for detour in &h.detours {
        let at = Avma::new(detour.at);
        if memory.read_vec(at, LEN)? == detour.now.bytes() {
            memory.write(at, detour.original.bytes())?;
        }
    }
    let first = Avma::new(h.debugger);
    if h.debugger != 0 && memory.read_u64(first + R_NEXT)? == h.data().get() {
        // A list that the program has appended since stays.
        let next = memory.read_u64(h.data() + R_NEXT)?;
        if next == 0 {
            memory.write(first, &1u32.to_le_bytes())?;
        }
        memory.write(first + R_NEXT, &next.to_le_bytes())?;
    }
    Ok(())
}

/// How the reason begins for which the hook stays while somebody stands in it.
pub(crate) const LOOKING: &str = "an unwinder is looking tables up";

/// Whether a thread is in the hook, or will come back to it, or holds an address of its data: then it stays.
///
/// Versions need no such rule: what a callback can know of one (its address, its headers, its tables) is an
/// address in it, and a version stays while a register or a stack word of a thread that is not walked to its
/// end holds one.
pub(crate) fn in_use(
    stopped: &impl StoppedHost,
    hook: Option<&JournalHook>,
    threads: &[ThreadView],
) -> Result<Option<String>, ProcessError> {
    let Some(h) = hook else { return Ok(None) };
    let leads = leads_into(stopped, h.range(), false, threads)?;
    Ok(leads.map(|why| format!("{LOOKING} ({why})")))
}

/// Words of the process that lead into the hook because restitch put them there: its data, and the loader's
/// pointer.
pub(crate) fn own_words(hook: &JournalHook) -> [AvmaRange; 2] {
    [AvmaRange::new(hook.data(), DATA_LEN), AvmaRange::new(Avma::new(hook.debugger) + R_NEXT, 8)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeMemory;
    use crate::trial_host::mapping;
    use std::process::{Child, Command, Stdio};

    /// A process that waits for its input, and what is known of it.
    fn waiting() -> (Child, Target) {
        let mut command = Command::new("cat");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        let pid = child.id() as i32;
        // From its program's start on, with the C library mapped.
        let has_library = |target: &Target| {
            let path = |module: &crate::target::Module| module.path.to_string_lossy().contains("libc.so");
            target.modules.iter().any(path)
        };
        loop {
            match Target::open(pid) {
                Ok(target) if has_library(&target) => return (child, target),
                _ => std::thread::yield_now(),
            }
        }
    }

    fn end(child: &mut Child) {
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
    }

    #[test]
    fn a_process_that_ends_while_its_hook_is_planned_is_not_refused() {
        for can_unwind in [true, false] {
            // Before the places are looked for, and behind that.
            for ends_first in [true, false] {
                let (mut child, target) = waiting();
                if ends_first {
                    end(&mut child);
                }
                let planned = plan(&target, can_unwind, |near, _| {
                    end(&mut child);
                    Ok(target.modules[near].range.end.align_down(restitch_address::PAGE) + (1 << 20))
                });
                let error = planned.expect_err("there is no process");
                assert!(error.is_gone(), "{can_unwind}, {ends_first}: {error}");
            }
        }
    }

    /// A record is a file, which may be damaged: the loader would jump to what it says.
    #[test]
    fn the_pointer_gets_what_the_hook_goes_on_to_whatever_a_record_says() {
        let (page, slot) = (Avma::new(0x10000), Avma::new(0x20000));
        let memory = FakeMemory::default();
        let mut code = vec![0; CODE_LEN as usize];
        code[page::ORIGINAL_AT as usize..][..8].copy_from_slice(&0x7654_u64.to_le_bytes());
        memory.add(mapping(page, "r-xp", CODE_LEN), &code).expect("there is room");
        let mut data = vec![0; restitch_address::PAGE as usize];
        data[..8].copy_from_slice(&(page + FIND_AT).get().to_le_bytes());
        memory.add(mapping(slot, "rw-p", restitch_address::PAGE), &data).expect("there is room");
        let damaged =
            JournalHook { page: page.get(), slot: slot.get(), original: 0x7655, ..JournalHook::default() };
        disarm(&memory, &damaged).expect("it can be written");
        assert_eq!(memory.read_u64(slot).expect("mapped"), 0x7654);
    }

    #[test]
    fn what_an_error_comes_of_may_tell_of_the_end() {
        let gone = || TraceError::Vanished { tid: 1, operation: "a test" };
        let refused = |why: Why| ProcessError::NoUnwindHook { pid: 1, why };
        assert!(refused(explained("in other words".into(), gone())).is_gone());
        assert!(refused(Box::new(ProcessError::from(gone()))).is_gone());
        assert!(!refused("something else has patched it".into()).is_gone());
    }
}
