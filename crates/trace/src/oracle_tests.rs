//! What evaluation claims, against what single steps of real programs do.

use crate::code::LiveCode;
use crate::data::{Data, Pages};
use crate::thread::state_of;
use restitch_address::{Avma, LoadBias};
use restitch_branch_table::{Branch, Outcome, Table};
use restitch_evaluate::{Code, State, Step};
use restitch_perf::{AlarmEvent, ThreadAlarm};
use restitch_testkit::{Guarded, find_program, skipped, wait_until};
use restitch_tracee::{Children, FollowEvent, Followed, Registers};
use restitch_x86::{Action, Semantic};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Steps a thread and evaluates beside it.
struct Race {
    followed: Followed,
    code: LiveCode,
    pages: Pages,
    tid: i32,
    compared: u64,
    taken: u64,
    unknown: BTreeMap<&'static str, u64>,
}

impl Race {
    fn start(pid: i32) -> Option<(Self, ThreadAlarm)> {
        let mut followed = Followed::seize(pid, libc::SIGURG, Children::Leave).expect("can be traced");
        let alarm = match ThreadAlarm::open(pid, AlarmEvent::TaskClock, libc::SIGURG) {
            Ok(alarm) => alarm,
            Err(error) => {
                skipped(&error.to_string());
                return None;
            }
        };
        alarm.set_period(2_000_000).unwrap();
        alarm.start().unwrap();
        while !matches!(
            followed.next_event(Duration::from_secs(10)).unwrap().expect("an event"),
            FollowEvent::Notified { .. }
        ) {}
        alarm.set_period(u64::MAX >> 2).unwrap();
        let code = LiveCode::open(pid).unwrap();
        let race = Self {
            followed,
            code,
            pages: Pages::default(),
            tid: pid,
            compared: 0,
            taken: 0,
            unknown: BTreeMap::new(),
        };
        Some((race, alarm))
    }

    fn registers(&self) -> Registers {
        self.followed.registers(self.tid).unwrap()
    }

    /// Executes one instruction. `rep` instructions trap after each round.
    fn step_for_real(&mut self, semantic: &Semantic) -> Option<Registers> {
        let from = self.registers().rip;
        loop {
            self.followed.step(self.tid).unwrap();
            loop {
                match self.followed.next_event(Duration::from_secs(10)).unwrap()? {
                    FollowEvent::Stepped { .. } => break,
                    FollowEvent::Notified { .. } => self.followed.step(self.tid).unwrap(),
                    FollowEvent::Signal { .. } | FollowEvent::Caught { .. } | FollowEvent::Exited { .. } => {
                        return None;
                    }
                    _ => {}
                }
            }
            let now = self.registers();
            if now.rip != from || semantic.is_transfer() {
                return Some(now);
            }
        }
    }

    /// Evaluates and steps `limit` instructions.
    fn run(&mut self, limit: u64) {
        let mut state = state_of(&self.registers());
        for _ in 0..limit {
            let Some(run) = self.code.run(state.pc) else { panic!("no code at {}", state.pc) };
            let semantic = run.instructions[0];
            let bias = run.bias;
            let before = state.clone();
            let mut data = Data { pages: &mut self.pages, memory: self.followed.memory(self.tid).unwrap() };
            let step = state.step(&semantic, bias, &mut data);
            let Some(real) = self.step_for_real(&semantic) else { return };
            let opaque_kernel = matches!(semantic.action, Action::Opaque(effects) if effects.kernel);
            if let Step::Stuck(_) = step {
                *self.unknown.entry(name(&semantic.action)).or_default() += 1;
                state = self.fresh(&real);
                continue;
            }
            self.check(&before, &state, &semantic, &real);
            self.taken += u64::from(step == Step::Taken);
            if opaque_kernel || !state.knows_memory() {
                state = self.fresh(&real);
            }
        }
    }

    fn fresh(&mut self, real: &Registers) -> State {
        self.pages.clear();
        state_of(real)
    }

    fn check(&mut self, before: &State, after: &State, semantic: &Semantic, real: &Registers) {
        self.compared += 1;
        let wrong = after.pc != real.rip || after.contradicts(&real.general(), real.eflags);
        assert!(!wrong, "{semantic:?}\nbefore {before:?}\nafter {after:?}\nreal {real:?}");
    }
}

fn name(action: &Action) -> &'static str {
    match action {
        Action::JumpIf(..) | Action::CountBranch(..) => "condition",
        Action::Return(_) => "return",
        Action::JumpTo(_) | Action::CallTo(_) => "indirect",
        _ => "other",
    }
}

fn race(program: &str, arguments: &[&str], steps: u64) {
    let Some(path) = find_program(program) else { return skipped(&format!("no {program}")) };
    race_command(program, Command::new(path).args(arguments), steps);
}

/// Waits until a process has used enough CPU time to be in its main work; how long that takes depends on what
/// else runs.
fn into_its_work(pid: i32) {
    const STARTED: Duration = Duration::from_millis(150);
    let used = || restitch_procfs::thread_cpu_time(pid, pid).ok().filter(|used| *used >= STARTED);
    assert!(wait_until(Duration::from_secs(60), used).is_some(), "process {pid} does not work");
}

fn race_command(program: &str, command: &mut Command, steps: u64) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = Guarded::spawn(command).unwrap();
    let pid = child.pid() as i32;
    into_its_work(pid);
    let Some((mut race, _alarm)) = Race::start(pid) else { return };
    race.run(steps);
    println!(
        "{program}: {} instructions, {} taken branches, not known {:?}",
        race.compared, race.taken, race.unknown
    );
    assert!(race.compared > steps / 2, "only {} compared", race.compared);
    drop(child);
}

#[test]
fn evaluation_agrees_with_single_steps_of_dash() {
    let script = "i=0; while :; do i=$((i+1)); case $i in *7*) x=$i;; *) y=a$i;; esac; set -- $i $x $y; done";
    race("dash", &["-c", script], 40_000);
}

#[test]
fn evaluation_agrees_with_single_steps_of_python() {
    let script = "
import re, json, hashlib
d = {}
while True:
    for i in range(1000):
        d[str(i)] = [i * 3, i / 7, i % 13, i ** 2, 'x' * (i % 5)]
    s = json.dumps(d); json.loads(s); re.findall('[0-9]+1', s); sorted(d, key=lambda k: d[k][1]); int('9' * 300) // 7; hashlib.md5(s.encode())
";
    race("python3", &["-c", script], 60_000);
}

#[test]
fn evaluation_agrees_with_single_steps_of_gzip_and_perl() {
    race("gzip", &["-9c", "/dev/zero"], 20_000);
    race(
        "perl",
        &["-e", "while (1) { my %h; $h{$_ x 3} .= $_ for 1..500; join ',', map { s/1/2/r } sort keys %h }"],
        40_000,
    );
}

/// The same for the C library's string functions in the forms for old, newer and new processors.
#[test]
fn evaluation_agrees_with_single_steps_of_string_functions() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/strings.c");
    let Ok(binary) = restitch_testkit::compile(&source, &["-O1", "-fno-builtin"]) else {
        return skipped("no compiler");
    };
    for without in
        ["", "-AVX512VL,-AVX512BW", "-AVX2,-AVX512VL,-AVX512BW,-SSE4_2", "-AVX2,-AVX512VL,-AVX512BW"]
    {
        let tunables = format!("glibc.cpu.hwcaps={without}");
        let mut command = Command::new(&binary);
        command.env("GLIBC_TUNABLES", tunables);
        race_command(&format!("strings {without}"), &mut command, 60_000);
    }
}

/// The look-ahead tables of all modules of a process.
struct Tables {
    target: restitch_apply_process::Target,
    bytes: Vec<Option<Vec<u8>>>,
}

impl Tables {
    fn of(pid: i32) -> Self {
        let target = restitch_apply_process::Target::open(pid).unwrap();
        let table = |module: &restitch_apply_process::Module| {
            let image = &module.image;
            let at = image.eh_frame()?;
            let bytes = image.read(at.start, at.len() as usize)?;
            let unwind = restitch_cfi::UnwindInfo::parse(bytes, at.start).ok()?;
            let program = restitch_program::analyze(image, &unwind).ok()?;
            Some(restitch_branch_table::build(image, &program))
        };
        let bytes = target.modules.iter().map(table).collect();
        Self { target, bytes }
    }

    fn next(&self, at: Avma) -> Option<(Branch, LoadBias)> {
        let index = self.target.module_at(at)?;
        let table = Table::new(self.bytes[index].as_ref()?).unwrap();
        let bias = self.target.modules[index].bias;
        table.next(bias.to_stated(at)).map(|branch| (branch, bias))
    }
}

/// Where a branch goes, from the table's form alone.
fn outcome(race: &Race, branch: &Branch, bias: LoadBias, real: &Registers) -> Option<Outcome> {
    let thread = restitch_branch_table::Thread {
        registers: real.general(),
        rflags: real.eflags,
        fs_base: real.fs_base.get(),
        gs_base: real.gs_base.get(),
    };
    branch.resolve(&thread, bias, |at| race.followed.memory(race.tid).unwrap().read_u64(at).ok())
}

/// Branch after branch as the tables predict them, against single steps: the order of the paper's algorithm.
#[test]
fn branches_by_the_table_are_those_of_single_steps() {
    for program in ["dash", "perl"] {
        let Some(path) = find_program(program) else { return skipped(&format!("no {program}")) };
        let script = match program {
            "dash" => {
                "i=0; while :; do i=$((i+1)); case $i in *7*) x=$i;; *) y=a$i;; esac; set -- $i $x $y; done"
            }
            _ => "while (1) { my %h; $h{$_ x 3} .= $_ for 1..500; join ',', sort keys %h }",
        };
        let option = if program == "dash" { "-c" } else { "-e" };
        let child = Guarded::start(&path, &[option, script]).unwrap();
        into_its_work(child.pid() as i32);
        let tables = Tables::of(child.pid() as i32);
        let Some((mut race, _alarm)) = Race::start(child.pid() as i32) else { return };
        let (mut branches, mut taken) = (0, 0);
        while branches < 5_000 {
            let real = race.registers();
            let Some((branch, bias)) = tables.next(real.rip) else {
                step_out(&mut race);
                continue;
            };
            let at = bias.to_actual(branch.at);
            let Some(there) = step_to(&mut race, at) else { return };
            assert_eq!(there.rip, at, "the next branch is another one than {branch:?}, from {}", real.rip);
            let predicted = outcome(&race, &branch, bias, &there).expect("all is known");
            race.followed.step(race.tid).unwrap();
            let now = wait_for_step(&mut race).expect("it goes on");
            let expected = match predicted {
                Outcome::Taken(to) => to,
                Outcome::NotTaken => at + u64::from(branch.len),
            };
            assert_eq!(now.rip, expected, "{branch:?}");
            branches += 1;
            taken += u64::from(matches!(predicted, Outcome::Taken(_)));
        }
        println!("{program}: {branches} branches, {taken} taken, all as the table says");
    }
}

fn wait_for_step(race: &mut Race) -> Option<Registers> {
    loop {
        match race.followed.next_event(Duration::from_secs(10)).unwrap()? {
            FollowEvent::Stepped { .. } => return Some(race.registers()),
            FollowEvent::Notified { .. } => race.followed.step(race.tid).unwrap(),
            FollowEvent::Signal { .. } | FollowEvent::Caught { .. } | FollowEvent::Exited { .. } => {
                return None;
            }
            _ => {}
        }
    }
}

/// Steps to `at`, over straight code: the program counter only rises (or stays, in `rep` instructions).
fn step_to(race: &mut Race, at: Avma) -> Option<Registers> {
    let mut now = race.registers();
    while now.rip < at {
        let before = now.rip;
        race.followed.step(race.tid).unwrap();
        now = wait_for_step(race)?;
        assert!(now.rip >= before, "a branch at {before} that the table does not know");
    }
    Some(now)
}

/// One instruction of code without a table (the vdso).
fn step_out(race: &mut Race) {
    race.followed.step(race.tid).unwrap();
    let _ = wait_for_step(race);
}
