//! A host of code for tests: bytes and contexts in memory, which fails or dies at any step that is asked for.

use crate::error::ProcessError;
use crate::host::{CodeMemory, Exchange, StoppedHost};
use crate::stub::StubSite;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_apply::Why;
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::{Registers, StopTimes, TraceError, Unborrowable};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// What goes wrong at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This step fails, later ones do not.
    Fails,
    /// Whoever switches dies here: nothing is done any more.
    Dies,
}

/// What is mapped at one place.
#[derive(Debug, Clone)]
struct Region {
    mapping: Mapping,
    bytes: Vec<u8>,
    /// Pages that were written, by address.
    own: BTreeSet<Avma>,
}

/// Bytes of a host, with the fault that is to come.
#[derive(Debug, Default)]
pub(crate) struct FakeMemory {
    regions: RefCell<Vec<Region>>,
    /// The steps until the fault, which is then none any more.
    fault: Cell<Option<(usize, Fault)>>,
    dead: Cell<bool>,
}

impl FakeMemory {
    /// One step of whoever switches.
    fn step(&self) -> Result<(), TraceError> {
        let broken = TraceError::Vanished { tid: 1, operation: "a step that was chosen to fail" };
        if self.dead.get() {
            return Err(broken);
        }
        match self.fault.take() {
            Some((0, fault)) => {
                self.dead.set(fault == Fault::Dies);
                Err(broken)
            }
            Some((left, fault)) => {
                self.fault.set(Some((left - 1, fault)));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn find<T>(&self, at: Avma, len: usize, work: impl FnOnce(&mut Region, usize) -> T) -> Option<T> {
        let mut regions = self.regions.borrow_mut();
        let inside = |r: &&mut Region| r.mapping.range.start <= at && at + len as u64 <= r.mapping.range.end;
        let region = regions.iter_mut().find(inside)?;
        let from = at.offset_from(region.mapping.range.start) as usize;
        Some(work(region, from))
    }

    /// What is there, whatever fails.
    pub fn peek(&self, at: Avma, len: usize) -> Vec<u8> {
        self.find(at, len, |region, from| region.bytes[from..from + len].to_vec()).expect("it is mapped")
    }

    /// Writes, whatever fails.
    pub fn poke(&self, at: Avma, bytes: &[u8]) {
        let done = self.find(at, bytes.len(), |region, from| {
            region.bytes[from..from + bytes.len()].copy_from_slice(bytes);
            let pages = (at.align_down(PAGE).get()..(at + bytes.len() as u64).get()).step_by(PAGE as usize);
            region.own.extend(pages.map(Avma::new));
        });
        done.expect("it is mapped");
    }
}

impl CodeMemory for FakeMemory {
    fn pid(&self) -> i32 {
        1
    }

    fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        self.step()?;
        let found = self.find(at, len, |region, from| region.bytes[from..from + len].to_vec());
        found.ok_or(TraceError::Vanished { tid: 1, operation: "reading where nothing is mapped" })
    }

    fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError> {
        // Each page is a step of its own.
        let mut rest = bytes;
        let mut at = at;
        while !rest.is_empty() {
            self.step()?;
            let len = (at.align_down(PAGE) + PAGE).offset_from(at).min(rest.len() as i64) as usize;
            self.poke(at, &rest[..len]);
            (at, rest) = (at + len as u64, &rest[len..]);
        }
        Ok(())
    }

    fn own_pages(&self, range: AvmaRange) -> Result<Vec<Avma>, Why> {
        self.step()?;
        let own = self.find(range.start, range.len() as usize, |region, _| region.own.clone());
        Ok(own.unwrap_or_default().into_iter().filter(|page| range.contains(*page)).collect())
    }
}

/// The host.
#[derive(Debug, Default)]
pub(crate) struct FakeHost {
    pub memory: FakeMemory,
    /// The contexts, by number.
    pub contexts: BTreeMap<i32, Registers>,
    /// Mappings cannot be exchanged just now.
    pub exchanges_nothing: bool,
}

impl FakeHost {
    /// Maps `bytes`, whole pages, at `at`, with permissions as in a memory map.
    pub fn map(&mut self, at: Avma, permissions: &str, bytes: Vec<u8>) -> Mapping {
        let end = at + bytes.len() as u64;
        let line = format!("{:x}-{:x} {permissions} 00000000 08:01 7 /fake\n", at.get(), end.get());
        let mapping = procfs::parse_maps(line.as_bytes()).expect("a line of a memory map").swap_remove(0);
        let regions = self.memory.regions.get_mut();
        regions.push(Region { mapping: mapping.clone(), bytes, own: BTreeSet::new() });
        regions.sort_by_key(|region| region.mapping.range.start);
        mapping
    }

    /// After so many steps it goes wrong.
    pub fn go_wrong_after(&mut self, steps: usize, fault: Fault) {
        self.memory.fault.set(Some((steps, fault)));
    }

    /// Somebody else begins to switch; whether anything went wrong until now.
    pub fn begin_anew(&mut self) -> bool {
        self.memory.dead.set(false);
        self.memory.fault.take().is_none()
    }

    /// Stops it.
    pub fn stop(&mut self) -> Still<'_> {
        Still(self)
    }
}

/// The host while it stands still.
pub(crate) struct Still<'a>(&'a mut FakeHost);

impl StoppedHost for Still<'_> {
    type Memory = FakeMemory;

    fn memory(&self) -> &FakeMemory {
        &self.0.memory
    }

    fn maps(&self) -> Result<Vec<Mapping>, TraceError> {
        self.0.memory.step()?;
        Ok(self.0.memory.regions.borrow().iter().map(|region| region.mapping.clone()).collect())
    }

    fn threads(&self) -> Vec<i32> {
        self.0.contexts.keys().copied().collect()
    }

    fn registers(&self, thread: i32) -> Result<Registers, TraceError> {
        self.0.memory.step()?;
        Ok(self.0.contexts[&thread])
    }

    fn set_registers(&mut self, thread: i32, registers: Registers) -> Result<(), TraceError> {
        self.0.memory.step()?;
        self.0.contexts.insert(thread, registers);
        Ok(())
    }

    fn exchange(
        &mut self,
        _stub: &StubSite,
        _maps: &[Mapping],
        exchanges: &[Exchange],
    ) -> Result<(), ProcessError> {
        if self.0.exchanges_nothing {
            return Err(TraceError::NothingToBorrow { pid: 1, why: Unborrowable::ThereIsNone }.into());
        }
        for exchange in exchanges {
            self.0.memory.step()?;
            let regions = self.0.memory.regions.get_mut();
            let place = |at: Avma| regions.iter().position(|r| r.mapping.range.start == at);
            let (from, to) = (place(exchange.from.start).expect("there"), place(exchange.to).expect("there"));
            let by = exchange.to.offset_from(exchange.from.start);
            let own = std::mem::take(&mut regions[from].own);
            regions[to].bytes = std::mem::take(&mut regions[from].bytes);
            regions[to].own = own.into_iter().map(|page| page.offset(by)).collect();
            regions.remove(from);
        }
        Ok(())
    }

    fn resume(self) -> StopTimes {
        StopTimes::default()
    }
}
