//! Whole switches on any host that tests can fill, with a fault at each step: afterwards the code is
//! a correct program, and giving the original code back gives the original bytes back. [`keeps_contract`] is
//! a test for each host.
//!
//! What runs is the code that changes processes ([`switch_on`]): mapping, the stop, reading back, unmapping.
//! Not covered: return addresses that a walk finds, and the unwinder's hook, which need a program with tables
//! (`crates/cli/tests/kill.rs` has these).

use crate::attached_process::AttachedProcess;
use crate::entry_patch::{LEN, jump};
use crate::error::ProcessError;
use crate::installed_version::InstalledVersion;
use crate::patches::PatchSet;
use crate::prepare::Around;
use crate::reverse::ReverseMap;
use crate::state::journal::{Journal, JournalReplacement, JournalVersion, VersionKind};
use crate::state::map_file::StoredMap;
use crate::state::store::StateDir;
use crate::stub::StubSite;
use crate::switch::switch_on;
use crate::switch_plan::{Arriving, SlotChange, SwitchPlan, SwitchReport};
use crate::target::Target;
use crate::trial_host::{Fault, Faults, FaultyHost, TrialHost, mapping};
use restitch_address::{Avma, AvmaRange, LoadBias, PAGE, Svma};
use restitch_emit::{AddressMap, MapPiece, PieceKind, Redirect, RedirectKind};
use restitch_procfs::ProcessId;
use restitch_testkit::scratch;
use restitch_tracee::Registers;
use restitch_x86::patch::Patch;
use std::collections::BTreeSet;

/// The original code, two pages, and its functions in it.
const CODE: u64 = 0x1000_0000;
const FUNCTIONS: [u64; 4] = [CODE + 0x100, CODE + 0x200, CODE + 0x400, CODE + 0x1100];
/// Of this one a version has the first instruction's place only.
const BRANCH_ONLY: u64 = FUNCTIONS[2];
const FUNCTION_LEN: u32 = 0x40;
/// Where in the code somebody else has written a byte, in no function.
const FOREIGN: usize = 0x900;
/// Two versions, a page each.
const VERSIONS: [u64; 2] = [0x2000_0000, 0x2800_0000];
/// A slot that leads to the first function.
const SLOT: u64 = 0x5000_0010;
const STACKS: u64 = 0x7000_0000;

/// How a version's redirects are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Writes,
    Exchange,
    /// It was meant to be an exchange, and none can be done.
    NoExchange,
}

struct World<H> {
    host: H,
    faults: Faults,
    original: Vec<u8>,
    attached: AttachedProcess,
    /// What is on disk.
    saved: Journal,
}

fn pieces(version: u64) -> Vec<MapPiece> {
    let piece = |(i, original): (usize, &u64)| MapPiece {
        version: Svma::new(version + i as u64 * u64::from(FUNCTION_LEN)),
        original: Svma::new(*original),
        len: FUNCTION_LEN,
        kind: if *original == BRANCH_ONLY { PieceKind::Branch } else { PieceKind::Linear },
    };
    FUNCTIONS.iter().enumerate().map(piece).collect()
}

fn record(number: usize, dir: &StateDir) -> JournalVersion {
    JournalVersion {
        number: number as u32,
        kind: VersionKind::Optimized,
        module: "/fake".into(),
        bias: 0,
        start: VERSIONS[number],
        len: PAGE,
        file: dir.path().join(format!("fake.{number:016x}.restitch-version")),
        map_file: dir.path().join(format!("fake.{number}.restitch-map")),
        eh_frame_hdr: 0,
        counters: None,
        retired: false,
        by_pointers: false,
        slots: Vec::new(),
    }
}

fn installed(number: usize) -> InstalledVersion {
    let pieces = pieces(VERSIONS[number]);
    let redirect = |p: &MapPiece| Redirect { at: p.original, to: p.version, kind: RedirectKind::Entry };
    let redirects = pieces.iter().map(redirect).collect();
    InstalledVersion {
        number: number as u32,
        range: AvmaRange::new(Avma::new(VERSIONS[number]), PAGE),
        bias: LoadBias::between(Svma::new(0), Avma::new(0)),
        module: None,
        stored: StoredMap { map: AddressMap { pieces, ..AddressMap::default() }, redirects },
        by_pointers: false,
        map_lost: false,
    }
}

impl<H: TrialHost> World<H> {
    fn new(dir: StateDir) -> Self {
        let mut host = H::default();
        let mut original: Vec<u8> = (0..2 * PAGE).map(|i| (i % 251) as u8).collect();
        host.map(mapping(Avma::new(CODE), "r-xp", 2 * PAGE), &original);
        // Somebody else's breakpoint, which each switch has to leave there.
        original[FOREIGN] = 0xcc;
        host.poke(Avma::new(CODE + FOREIGN as u64), &original[FOREIGN..=FOREIGN]);
        host.map(mapping(Avma::new(SLOT).align_down(PAGE), "r--p", PAGE), &[0; PAGE as usize]);
        host.map(mapping(Avma::new(STACKS), "rw-p", PAGE), &[0; PAGE as usize]);
        host.poke(Avma::new(SLOT), &FUNCTIONS[0].to_le_bytes());
        // At an entry; in the bytes of a redirect, of which there are copies; of which there are none; in the
        // middle; and with a return address in such bytes.
        let stand = [FUNCTIONS[0], FUNCTIONS[0] + 2, BRANCH_ONLY + 2, FUNCTIONS[3] + 0x10, CODE + 0x300];
        for (i, rip) in stand.into_iter().enumerate() {
            let (rip, rsp) = (Avma::new(rip), Avma::new(STACKS + 0x800 + 8 * i as u64));
            host.stand(i as i32 + 1, Registers { rip, rsp, orig_rax: u64::MAX, ..Registers::default() });
        }
        host.poke(Avma::new(STACKS + 0xf00), &(FUNCTIONS[1] + 2).to_le_bytes());
        let process = ProcessId { pid: 1, start_time: 1 };
        let target = Target { process, modules: Vec::new(), program: 0, text_moved: false };
        let saved = Journal::new(process);
        let attached = AttachedProcess::of_target(target, dir, saved.clone());
        Self { host, faults: Faults::default(), original, attached, saved }
    }

    /// A switch to version `to`, or to none, from the journal on.
    fn switch(&mut self, to: Option<usize>, by: By) -> Result<SwitchReport, ProcessError> {
        let maps = self.host.maps()?;
        // As whoever opens a process does.
        self.attached.journal.retain_mapped(&maps);
        let mut patches = PatchSet::default();
        for piece in to.iter().flat_map(|number| pieces(VERSIONS[*number])) {
            let (at, to) = (Avma::new(piece.original.get()), Avma::new(piece.version.get()));
            let from = at.offset_from(Avma::new(CODE)) as usize;
            let original = Patch::beginning_of(&self.original[from..]).expect("of that length");
            patches.wanted.insert(at, (original, jump(at, to).expect("in reach")));
        }
        let arriving = to.iter().map(|number| {
            let reverse = ReverseMap::new(&pieces(VERSIONS[*number]));
            let record = record(*number, &self.attached.dir);
            Arriving { record, visible: true, reverse, inherited: false }
        });
        let there = &self.attached.journal.versions;
        let leaving = there.iter().map(|v| v.number as usize).filter(|number| Some(*number) != to);
        let leaving: Vec<InstalledVersion> = leaving.map(installed).collect();
        let held = word(&self.host.peek(Avma::new(SLOT), 8));
        let wanted = Avma::new(to.map_or(FUNCTIONS[0], |number| VERSIONS[number]));
        let plan = SwitchPlan {
            incoming: &[],
            arriving: arriving.collect(),
            patches,
            forwarding: vec![BTreeSet::new(); leaving.len()],
            leaving,
            // No thread is borrowed.
            stub: StubSite { at: Avma::new(0), bytes: Vec::new() },
            slots: vec![SlotChange { at: Avma::new(SLOT), from: held, to: wanted }],
            resting: Vec::new(),
        };
        let around = Around { maps: &maps, heap_start: None, new_hook: None };
        let preparation = around.plan(&self.attached.journal, &plan);
        self.saved = preparation.journal.clone();
        self.faults.exchanges_nothing.set(by == By::NoExchange);
        self.faults.maps_no_replacements.set(by == By::Writes);
        let target = self.attached.target.clone();
        let mut host = FaultyHost { host: &mut self.host, faults: &self.faults };
        switch_on(&mut host, &mut self.attached, &target, &plan, preparation)
    }

    /// What is mapped besides what was there from the beginning is in `journal`.
    fn assert_known(&self, journal: &Journal, after: &str) {
        let versions = journal.versions.iter().map(JournalVersion::range);
        let known: Vec<AvmaRange> =
            versions.chain(journal.replacements.iter().map(JournalReplacement::range)).collect();
        let is_old =
            |range: AvmaRange| [CODE, SLOT, STACKS].into_iter().any(|at| range.contains(Avma::new(at)));
        let maps = self.host.maps().expect("of the host");
        let unknown = maps.into_iter().find(|m| !is_old(m.range) && !known.contains(&m.range));
        assert_eq!(unknown, None, "{after}: nobody knows of it");
    }

    /// No context stands, and none returns, in bytes that have become part of a jump; each place holds its
    /// original bytes or one whole jump.
    fn assert_correct(&self, after: &str) {
        for function in FUNCTIONS {
            let at = Avma::new(function);
            let from = (function - CODE) as usize;
            let found = self.host.peek(at, LEN);
            if found == self.original[from..from + LEN] {
                continue;
            }
            let jumps = VERSIONS.iter().flat_map(|v| pieces(*v)).filter(|p| p.original.get() == function);
            let jumps: Vec<_> = jumps.filter_map(|p| jump(at, Avma::new(p.version.get()))).collect();
            assert!(jumps.iter().any(|jump| jump.bytes()[..] == found), "{after}: {found:x?} at {at}");
            let inside = |word: Avma| word > at && word < at + LEN as u64;
            let stands = self.host.contexts().into_values().find(|registers| inside(registers.rip));
            assert_eq!(stands, None, "{after}: in the jump at {at}");
            let stacks = self.host.peek(Avma::new(STACKS), PAGE as usize);
            assert!(!stacks.chunks_exact(8).map(word).any(inside), "{after}: returns into the jump at {at}");
        }
        let slot = word(&self.host.peek(Avma::new(SLOT), 8)).get();
        assert!(slot == FUNCTIONS[0] || VERSIONS.contains(&slot), "{after}: the slot leads to {slot:#x}");
    }

    fn assert_original(&self, after: &str) {
        let code = self.host.peek(Avma::new(CODE), self.original.len());
        assert!(code == self.original, "{after}: the code is another one");
        assert_eq!(word(&self.host.peek(Avma::new(SLOT), 8)).get(), FUNCTIONS[0], "{after}: the slot");
        assert!(self.attached.journal.patches.is_empty(), "{after}: {:?}", self.attached.journal.patches);
        assert!(self.attached.journal.replacements.is_empty(), "{after}: replacements");
        self.assert_known(&self.attached.journal, after);
        let code = AvmaRange::new(Avma::new(CODE), 2 * PAGE);
        let away = self.host.contexts().into_values().find(|registers| !code.contains(registers.rip));
        assert_eq!(away, None, "{after}: it is in a version");
    }
}

fn word(bytes: &[u8]) -> Avma {
    Avma::new(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// What was in force before, and what is to be.
const SWITCHES: [(Option<usize>, Option<usize>); 3] = [(None, Some(0)), (Some(0), Some(1)), (Some(1), None)];
const WAYS: [By; 3] = [By::Writes, By::Exchange, By::NoExchange];

/// A world before one of them. A return address into the version that is left is on a stack that cannot be
/// walked.
fn world<H: TrialHost>(dir: &StateDir, before: Option<usize>) -> World<H> {
    let mut world = World::<H>::new(dir.clone());
    if let Some(before) = before {
        world.switch(Some(before), By::Writes).expect("nothing goes wrong");
        world.host.poke(Avma::new(STACKS + 0xf80), &(VERSIONS[before] + 0x50).to_le_bytes());
    }
    world
}

/// Switches whole and back on the host, and with a fault at each step.
///
/// # Panics
/// If something is left that is no correct program, or no way back, with what was done.
pub(crate) fn keeps_contract<H: TrialHost>() {
    let folder = scratch();
    let dir = StateDir::at(folder.path().to_owned()).expect("a folder");
    a_switch_is_whole_and_going_back_gives_the_original_bytes::<H>(&dir);
    whatever_step_fails_the_program_is_correct_and_can_go_back::<H>(&dir);
}

fn a_switch_is_whole_and_going_back_gives_the_original_bytes<H: TrialHost>(dir: &StateDir) {
    for by in WAYS {
        let mut world = world::<H>(dir, None);
        let report = world.switch(Some(0), by).expect("nothing goes wrong");
        // Somebody returns into one, somebody stands in another one that has no copy there.
        assert_eq!(
            (report.patched, report.left_out, report.moved_threads, report.slots),
            (2, 2, 3, 1),
            "{by:?}"
        );
        assert_eq!(report.written_in_stop.is_empty(), by == By::Exchange, "{by:?}");
        let jump_to = |number: usize| jump(Avma::new(FUNCTIONS[0]), Avma::new(VERSIONS[number]));
        let found = |world: &World<H>| world.host.peek(Avma::new(FUNCTIONS[0]), LEN);
        assert_eq!(Some(found(&world)), jump_to(0).map(|jump| jump.bytes().to_vec()), "{by:?}");
        assert_eq!(world.host.contexts()[&2].rip.get(), VERSIONS[0] + 2, "{by:?}: a context that is moved");
        world.assert_correct("a switch");
        world.switch(Some(1), by).expect("nothing goes wrong");
        assert_eq!(Some(found(&world)), jump_to(1).map(|jump| jump.bytes().to_vec()), "{by:?}");
        assert_eq!(world.host.contexts()[&2].rip.get(), VERSIONS[1] + 2, "{by:?}: a context that is moved");
        let report = world.switch(None, by).expect("nothing goes wrong");
        assert_eq!((report.patched, report.restored), (0, 2), "{by:?}");
        world.assert_original("going back");
    }
}

fn whatever_step_fails_the_program_is_correct_and_can_go_back<H: TrialHost>(dir: &StateDir) {
    for (before, to) in SWITCHES {
        for (by, fault) in WAYS.into_iter().flat_map(|by| [(by, Fault::Fails), (by, Fault::Dies)]) {
            let mut steps = 0;
            loop {
                let mut world = world::<H>(dir, before);
                world.faults.go_wrong_after(steps, fault);
                // What cannot be compared or read may be a reason to do it otherwise, and no failure.
                let _ = world.switch(to, by);
                if !world.faults.begin_anew() {
                    break;
                }
                let after = format!("from {before:?} to {to:?} by {by:?}, step {steps} {fault:?}");
                world.assert_correct(&after);
                if fault == Fault::Dies {
                    world.attached.journal = world.saved.clone();
                }
                world.assert_known(&world.attached.journal, &after);
                let back = world.switch(None, By::Writes);
                assert!(back.is_ok(), "{after}: {back:?}");
                world.assert_original(&after);
                steps += 1;
            }
            assert!(steps > 20, "from {before:?} to {to:?} by {by:?}: {steps} steps");
        }
    }
}
