//! A host of code in trials: tests fill it and look into it, and it fails or dies at any step that is asked
//! for.
//!
//! **Problem.** Faults between any two steps of a switch are to be tried on every host, and no host shall
//! have to know of them. **Idea**: [`Faulty`] is a host around another one, and counts what it is asked for.

use crate::error::ProcessError;
use crate::host::{CodeMemory, Exchange, StoppedHost};
use crate::running_host::{Host, MappedNear, ToMap};
use crate::stub::StubSite;
use crate::switch_plan::SwitchPlan;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_apply::Why;
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{Registers, StopTimes, TraceError, Unborrowable};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::slice;
use std::time::Duration;

/// What tests ask of a host besides. It is empty to begin with.
pub(crate) trait TrialHost: Host + Default {
    /// Maps `bytes`, as in `mapping`, of a file that has them.
    fn map(&mut self, mapping: Mapping, bytes: &[u8]);
    /// The `len` bytes at `at`, which are mapped.
    fn peek(&self, at: Avma, len: usize) -> Vec<u8>;
    /// Puts `bytes` at `at`, where something is mapped: its pages are the host's own from then on.
    fn poke(&mut self, at: Avma, bytes: &[u8]);
    /// The contexts, by number.
    fn contexts(&self) -> BTreeMap<i32, Registers>;
    /// Has a context stand there.
    fn stand(&mut self, thread: i32, registers: Registers);
}

/// `len` bytes of a file at `at`, with permissions as a memory map has them.
pub(crate) fn mapping(at: Avma, permissions: &str, len: u64) -> Mapping {
    mapping_of(Path::new("/trial"), at, permissions, len)
}

/// The same of the file `path`.
pub(crate) fn mapping_of(path: &Path, at: Avma, permissions: &str, len: u64) -> Mapping {
    let (start, end) = (at.get(), (at + len).get());
    let line = format!("{start:x}-{end:x} {permissions} 00000000 08:01 7 {}\n", path.display());
    procfs::parse_maps(line.as_bytes()).expect("a line of a memory map").swap_remove(0)
}

/// What goes wrong at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This step fails, later ones do not.
    Fails,
    /// Whoever switches dies here: nothing is done any more.
    Dies,
}

/// The fault that is to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The steps until the fault, which is then none any more.
    next: Cell<Option<(usize, Fault)>>,
    dead: Cell<bool>,
    /// Mappings cannot be exchanged just now.
    pub exchanges_nothing: Cell<bool>,
    /// Code cannot be mapped once more.
    pub maps_no_replacements: Cell<bool>,
}

impl Faults {
    /// After so many steps it goes wrong.
    pub fn go_wrong_after(&self, steps: usize, fault: Fault) {
        self.next.set(Some((steps, fault)));
    }

    /// Somebody else begins to switch; whether anything went wrong until now.
    pub fn begin_anew(&self) -> bool {
        self.dead.set(false);
        self.next.take().is_none()
    }

    /// One step of whoever switches.
    fn step(&self) -> Result<(), TraceError> {
        let broken = TraceError::Vanished { tid: 1, operation: "a step that was chosen to fail" };
        if self.dead.get() {
            return Err(broken);
        }
        match self.next.take() {
            Some((0, fault)) => {
                self.dead.set(fault == Fault::Dies);
                Err(broken)
            }
            Some((left, fault)) => {
                self.next.set(Some((left - 1, fault)));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What has the bytes of a host.
pub(crate) trait HasBytes {
    type Bytes: CodeMemory;
    fn bytes(&self) -> &Self::Bytes;
}

impl<H: StoppedHost> HasBytes for H {
    type Bytes = H::Memory;
    fn bytes(&self) -> &H::Memory {
        self.memory()
    }
}

/// The bytes of a host that runs.
pub(crate) struct Running<M>(M);

impl<M: CodeMemory> HasBytes for Running<M> {
    type Bytes = M;
    fn bytes(&self) -> &M {
        &self.0
    }
}

/// A host that stands still, or the bytes of one that runs, with faults. Whatever can happen in part is a
/// step for each part.
pub(crate) struct Faulty<'a, H> {
    pub host: H,
    pub faults: &'a Faults,
}

impl<H: HasBytes> CodeMemory for Faulty<'_, H> {
    fn pid(&self) -> i32 {
        self.host.bytes().pid()
    }

    fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        self.faults.step()?;
        self.host.bytes().read_vec(at, len)
    }

    fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError> {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            self.faults.step()?;
            let len = (at.align_down(PAGE) + PAGE).offset_from(at).min(rest.len() as i64) as usize;
            self.host.bytes().write(at, &rest[..len])?;
            (at, rest) = (at + len as u64, &rest[len..]);
        }
        Ok(())
    }

    fn own_pages(&self, range: AvmaRange) -> Result<Vec<Avma>, Why> {
        self.faults.step()?;
        self.host.bytes().own_pages(range)
    }

    fn shows_the_same(&self, wanted: &Mapping, replacement: AvmaRange) -> Result<(), Why> {
        self.faults.step()?;
        self.host.bytes().shows_the_same(wanted, replacement)
    }

    fn touch_used(&self, code: AvmaRange, replacement: AvmaRange) -> Result<(), Why> {
        self.faults.step()?;
        self.host.bytes().touch_used(code, replacement)
    }

    fn read_u64(&self, at: Avma) -> Result<u64, TraceError> {
        self.faults.step()?;
        self.host.bytes().read_u64(at)
    }

    fn read_many(&self, requests: &[(Avma, usize)]) -> Vec<Option<Vec<u8>>> {
        let one = |request| {
            self.faults.step().ok()?;
            self.host.bytes().read_many(&[request]).pop()?
        };
        requests.iter().copied().map(one).collect()
    }

    fn write_words(&self, words: &[(Avma, u64)]) -> Result<(), TraceError> {
        words.iter().try_for_each(|word| {
            self.faults.step()?;
            self.host.bytes().write_words(&[*word])
        })
    }

    fn holds(&self, expected: &[(Avma, Vec<u8>)]) -> bool {
        expected.iter().all(|one| self.faults.step().is_ok() && self.host.bytes().holds(slice::from_ref(one)))
    }
}

impl<H: StoppedHost> StoppedHost for Faulty<'_, H> {
    type Memory = Self;

    fn memory(&self) -> &Self {
        self
    }

    fn maps(&self) -> Result<Vec<Mapping>, TraceError> {
        self.faults.step()?;
        self.host.maps()
    }

    fn threads(&self) -> Vec<i32> {
        self.host.threads()
    }

    fn registers(&self, thread: i32) -> Result<Registers, TraceError> {
        self.faults.step()?;
        self.host.registers(thread)
    }

    fn set_registers(&mut self, thread: i32, registers: Registers) -> Result<(), TraceError> {
        self.faults.step()?;
        self.host.set_registers(thread, registers)
    }

    fn exchange(
        &mut self,
        stub: &StubSite,
        maps: &[Mapping],
        exchanges: &[Exchange],
    ) -> Result<(), ProcessError> {
        if self.faults.exchanges_nothing.get() {
            let pid = self.pid();
            return Err(TraceError::NothingToBorrow { pid, why: Unborrowable::ThereIsNone }.into());
        }
        exchanges.iter().try_for_each(|one| {
            self.faults.step()?;
            self.host.exchange(stub, maps, &[*one])
        })
    }

    fn resume(self) -> StopTimes {
        self.host.resume()
    }
}

/// A host whose contexts run, with faults.
pub(crate) struct FaultyHost<'a, H> {
    pub host: &'a mut H,
    pub faults: &'a Faults,
}

impl<'a, H: Host> Host for FaultyHost<'a, H> {
    type Memory = Faulty<'a, Running<H::Memory>>;
    type Stopped<'s>
        = Faulty<'s, H::Stopped<'s>>
    where
        Self: 's;

    fn maps(&self) -> Result<Vec<Mapping>, ProcessError> {
        self.faults.step()?;
        self.host.maps()
    }

    fn memory(&self) -> Result<Self::Memory, ProcessError> {
        self.faults.step()?;
        Ok(Faulty { host: Running(self.host.memory()?), faults: self.faults })
    }

    fn is_alive(&self) -> bool {
        self.host.is_alive()
    }

    fn map_near(&mut self, wanted: &ToMap<'_>) -> Result<MappedNear, ProcessError> {
        let nothing =
            ToMap { arriving: &[], incoming: &[], new_hook: None, replacements: &[], leftovers: &[] };
        for left in wanted.leftovers {
            self.faults.step()?;
            self.host.map_near(&ToMap { leftovers: slice::from_ref(left), ..nothing })?;
        }
        for version in wanted.arriving {
            self.faults.step()?;
            self.host.map_near(&ToMap { arriving: slice::from_ref(version), ..nothing })?;
        }
        let mut mapped = MappedNear::default();
        for replacement in wanted.replacements {
            if self.faults.maps_no_replacements.get() {
                mapped.refused.push((replacement.replaces(), "it was chosen to have none".into()));
                continue;
            }
            self.faults.step()?;
            let one = ToMap { replacements: slice::from_ref(replacement), ..nothing };
            mapped.replacements.extend(self.host.map_near(&one)?.replacements);
        }
        Ok(mapped)
    }

    fn unmap(&mut self, ranges: &[AvmaRange]) -> Result<Duration, ProcessError> {
        for range in ranges {
            self.faults.step()?;
            self.host.unmap(slice::from_ref(range))?;
        }
        Ok(Duration::ZERO)
    }

    fn stop(&mut self, plan: &SwitchPlan<'_>) -> Result<Self::Stopped<'_>, ProcessError> {
        self.faults.step()?;
        Ok(Faulty { host: self.host.stop(plan)?, faults: self.faults })
    }

    fn stop_anywhere(&mut self) -> Result<Self::Stopped<'_>, ProcessError> {
        self.faults.step()?;
        Ok(Faulty { host: self.host.stop_anywhere()?, faults: self.faults })
    }

    fn wait(&self, time: Duration) {
        self.host.wait(time);
    }
}
