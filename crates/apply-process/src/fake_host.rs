//! The smallest host of code: bytes and contexts in memory, for tests.

use crate::error::ProcessError;
use crate::host::{CodeMemory, Exchange, StoppedHost};
use crate::stub::StubSite;
use crate::trial_host::TrialHost;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_apply::Why;
use restitch_procfs::Mapping;
use restitch_tracee::{Registers, StopTimes, TraceError};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// What is mapped at one place.
#[derive(Debug, Clone)]
struct Region {
    mapping: Mapping,
    bytes: Vec<u8>,
    /// Pages that were written, by address.
    own: BTreeSet<Avma>,
}

/// Bytes of a host.
#[derive(Debug, Default)]
pub(crate) struct FakeMemory(RefCell<Vec<Region>>);

impl FakeMemory {
    /// Works on the region that has `len` bytes at `at`, and on where they begin in it.
    fn find<T>(&self, at: Avma, len: usize, work: impl FnOnce(&mut Region, usize) -> T) -> Option<T> {
        let mut regions = self.0.borrow_mut();
        let inside = |r: &&mut Region| r.mapping.range.start <= at && at + len as u64 <= r.mapping.range.end;
        let region = regions.iter_mut().find(inside)?;
        let from = at.offset_from(region.mapping.range.start) as usize;
        Some(work(region, from))
    }
}

impl CodeMemory for FakeMemory {
    fn pid(&self) -> i32 {
        1
    }

    fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        let found = self.find(at, len, |region, from| region.bytes[from..from + len].to_vec());
        found.ok_or(TraceError::Vanished { tid: 1, operation: "reading where nothing is mapped" })
    }

    fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError> {
        let done = self.find(at, bytes.len(), |region, from| {
            region.bytes[from..from + bytes.len()].copy_from_slice(bytes);
            let pages = (at.align_down(PAGE).get()..(at + bytes.len() as u64).get()).step_by(PAGE as usize);
            region.own.extend(pages.map(Avma::new));
        });
        done.ok_or(TraceError::Vanished { tid: 1, operation: "writing where nothing is mapped" })
    }

    fn own_pages(&self, range: AvmaRange) -> Result<Vec<Avma>, Why> {
        let own = self.find(range.start, range.len() as usize, |region, _| region.own.clone());
        Ok(own.unwrap_or_default().into_iter().filter(|page| range.contains(*page)).collect())
    }
}

/// The host.
#[derive(Debug, Default)]
pub(crate) struct FakeHost {
    memory: FakeMemory,
    contexts: BTreeMap<i32, Registers>,
}

/// The host while it stands still.
pub(crate) struct Still<'a>(&'a mut FakeHost);

impl StoppedHost for Still<'_> {
    type Memory = FakeMemory;

    fn memory(&self) -> &FakeMemory {
        &self.0.memory
    }

    fn maps(&self) -> Result<Vec<Mapping>, TraceError> {
        Ok(self.0.memory.0.borrow().iter().map(|region| region.mapping.clone()).collect())
    }

    fn threads(&self) -> Vec<i32> {
        self.0.contexts.keys().copied().collect()
    }

    fn registers(&self, thread: i32) -> Result<Registers, TraceError> {
        self.0.contexts.get(&thread).copied().ok_or(TraceError::UnknownThread { tid: thread })
    }

    fn set_registers(&mut self, thread: i32, registers: Registers) -> Result<(), TraceError> {
        self.0.contexts.insert(thread, registers);
        Ok(())
    }

    fn exchange(
        &mut self,
        _stub: &StubSite,
        _maps: &[Mapping],
        exchanges: &[Exchange],
    ) -> Result<(), ProcessError> {
        let regions = self.0.memory.0.get_mut();
        for exchange in exchanges {
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

impl TrialHost for FakeHost {
    fn map(&mut self, mapping: Mapping, bytes: &[u8]) {
        let regions = self.memory.0.get_mut();
        regions.push(Region { mapping, bytes: bytes.to_vec(), own: BTreeSet::new() });
        regions.sort_by_key(|region| region.mapping.range.start);
    }

    fn peek(&self, at: Avma, len: usize) -> Vec<u8> {
        self.memory.read_vec(at, len).expect("it is mapped")
    }

    fn poke(&mut self, at: Avma, bytes: &[u8]) {
        self.memory.write(at, bytes).expect("it is mapped");
    }

    fn contexts(&self) -> BTreeMap<i32, Registers> {
        self.contexts.clone()
    }

    fn stand(&mut self, thread: i32, registers: Registers) {
        self.contexts.insert(thread, registers);
    }

    fn stop(&mut self) -> impl StoppedHost {
        Still(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch_faults::keeps_contract;

    #[test]
    fn bytes_and_contexts_in_memory_keep_the_contract() {
        keeps_contract::<FakeHost>();
    }

    /// One that lets contexts stand where they are, whatever they are told.
    #[derive(Default)]
    struct Immovable(FakeHost);

    struct StillImmovable<'a>(Still<'a>);

    impl StoppedHost for StillImmovable<'_> {
        type Memory = FakeMemory;
        fn memory(&self) -> &FakeMemory {
            self.0.memory()
        }
        fn maps(&self) -> Result<Vec<Mapping>, TraceError> {
            self.0.maps()
        }
        fn threads(&self) -> Vec<i32> {
            self.0.threads()
        }
        fn registers(&self, thread: i32) -> Result<Registers, TraceError> {
            self.0.registers(thread)
        }
        fn set_registers(&mut self, _thread: i32, _registers: Registers) -> Result<(), TraceError> {
            Ok(())
        }
        fn exchange(
            &mut self,
            stub: &StubSite,
            maps: &[Mapping],
            exchanges: &[Exchange],
        ) -> Result<(), ProcessError> {
            self.0.exchange(stub, maps, exchanges)
        }
        fn resume(self) -> StopTimes {
            self.0.resume()
        }
    }

    impl TrialHost for Immovable {
        fn map(&mut self, mapping: Mapping, bytes: &[u8]) {
            self.0.map(mapping, bytes);
        }
        fn peek(&self, at: Avma, len: usize) -> Vec<u8> {
            self.0.peek(at, len)
        }
        fn poke(&mut self, at: Avma, bytes: &[u8]) {
            self.0.poke(at, bytes);
        }
        fn contexts(&self) -> BTreeMap<i32, Registers> {
            self.0.contexts()
        }
        fn stand(&mut self, thread: i32, registers: Registers) {
            self.0.stand(thread, registers);
        }
        fn stop(&mut self) -> impl StoppedHost {
            StillImmovable(Still(&mut self.0))
        }
    }

    #[test]
    #[should_panic(expected = "a context that is moved")]
    fn a_host_that_moves_no_context_breaks_it() {
        keeps_contract::<Immovable>();
    }
}
