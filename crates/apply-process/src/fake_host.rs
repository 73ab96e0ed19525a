//! The smallest host of code: bytes and contexts in memory, for tests.
//!
//! A version that comes to be mapped has no bytes of its own here: what counts is where it is.

use crate::error::ProcessError;
use crate::host::{CodeMemory, Exchange, StoppedHost};
use crate::running_host::{Host, MappedNear, ToMap};
use crate::stub::StubSite;
use crate::switch_plan::SwitchPlan;
use crate::trial_host::{TrialHost, mapping_of};
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_apply::Why;
use restitch_procfs::Mapping;
use restitch_tracee::{Registers, StopTimes, TraceError};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// What is mapped at one place.
#[derive(Debug, Clone)]
struct Region {
    mapping: Mapping,
    bytes: Vec<u8>,
    /// What the file holds.
    file: Vec<u8>,
    /// Pages that were written, by address.
    own: BTreeSet<Avma>,
}

/// Bytes of a host. A clone is another way to the same bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeMemory(Rc<RefCell<Vec<Region>>>);

impl FakeMemory {
    /// Works on the region that has `len` bytes at `at`, and on where they begin in it.
    fn find<T>(&self, at: Avma, len: usize, work: impl FnOnce(&mut Region, usize) -> T) -> Option<T> {
        let mut regions = self.0.borrow_mut();
        let inside = |r: &&mut Region| r.mapping.range.start <= at && at + len as u64 <= r.mapping.range.end;
        let region = regions.iter_mut().find(inside)?;
        let from = at.offset_from(region.mapping.range.start) as usize;
        Some(work(region, from))
    }

    /// Maps `bytes`, as in `mapping`, where there is nothing yet.
    pub(crate) fn add(&self, mapping: Mapping, bytes: &[u8]) -> Result<(), TraceError> {
        let mut regions = self.0.borrow_mut();
        if regions.iter().any(|r| r.mapping.range.overlaps(&mapping.range)) {
            return Err(TraceError::Vanished { tid: 1, operation: "mapping where something is mapped" });
        }
        let (bytes, file) = (bytes.to_vec(), bytes.to_vec());
        regions.push(Region { mapping, bytes, file, own: BTreeSet::new() });
        regions.sort_by_key(|region| region.mapping.range.start);
        Ok(())
    }

    fn maps(&self) -> Vec<Mapping> {
        self.0.borrow().iter().map(|region| region.mapping.clone()).collect()
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

    fn shows_the_same(&self, wanted: &Mapping, replacement: AvmaRange) -> Result<(), Why> {
        let maps = self.maps();
        let there = maps.contains(wanted) && maps.iter().any(|m| m.range == replacement);
        if there { Ok(()) } else { Err("it is not there".into()) }
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
        Ok(self.0.memory.maps())
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
        let mut regions = self.0.memory.0.borrow_mut();
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

impl Host for FakeHost {
    type Memory = FakeMemory;
    type Stopped<'s> = Still<'s>;

    fn maps(&self) -> Result<Vec<Mapping>, ProcessError> {
        Ok(self.memory.maps())
    }

    fn memory(&self) -> Result<FakeMemory, ProcessError> {
        Ok(self.memory.clone())
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn map_near(&mut self, wanted: &ToMap<'_>) -> Result<MappedNear, ProcessError> {
        let leftovers: Vec<AvmaRange> = wanted.leftovers.iter().map(|left| left.range()).collect();
        self.unmap(&leftovers)?;
        for record in wanted.arriving.iter().filter(|a| !a.inherited).map(|a| &a.record) {
            let mapping = mapping_of(&record.file, Avma::new(record.start), "r-xp", record.len);
            self.memory.add(mapping, &vec![b'v'; record.len as usize])?;
        }
        let mut mapped = MappedNear::default();
        for replacement in wanted.replacements {
            let model = replacement.mapping();
            let file = self.memory.find(model.range.start, 0, |region, _| region.file.clone());
            let mapping = Mapping { range: replacement.range(), ..model.clone() };
            self.memory.add(mapping, &file.unwrap_or_default())?;
            mapped.replacements.push(replacement.clone());
        }
        Ok(mapped)
    }

    fn unmap(&mut self, ranges: &[AvmaRange]) -> Result<Duration, ProcessError> {
        self.memory.0.borrow_mut().retain(|region| !ranges.contains(&region.mapping.range));
        Ok(Duration::ZERO)
    }

    fn stop(&mut self, _plan: &SwitchPlan<'_>) -> Result<Still<'_>, ProcessError> {
        Ok(Still(self))
    }

    fn stop_anywhere(&mut self) -> Result<Still<'_>, ProcessError> {
        Ok(Still(self))
    }

    fn wait(&self, _time: Duration) {}
}

impl TrialHost for FakeHost {
    fn map(&mut self, mapping: Mapping, bytes: &[u8]) {
        self.memory.add(mapping, bytes).expect("nothing is there");
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

    impl Host for Immovable {
        type Memory = FakeMemory;
        type Stopped<'s> = StillImmovable<'s>;
        fn maps(&self) -> Result<Vec<Mapping>, ProcessError> {
            self.0.maps()
        }
        fn memory(&self) -> Result<FakeMemory, ProcessError> {
            self.0.memory()
        }
        fn is_alive(&self) -> bool {
            self.0.is_alive()
        }
        fn map_near(&mut self, wanted: &ToMap<'_>) -> Result<MappedNear, ProcessError> {
            self.0.map_near(wanted)
        }
        fn unmap(&mut self, ranges: &[AvmaRange]) -> Result<Duration, ProcessError> {
            self.0.unmap(ranges)
        }
        fn stop(&mut self, _plan: &SwitchPlan<'_>) -> Result<StillImmovable<'_>, ProcessError> {
            Ok(StillImmovable(Still(&mut self.0)))
        }
        fn stop_anywhere(&mut self) -> Result<StillImmovable<'_>, ProcessError> {
            Ok(StillImmovable(Still(&mut self.0)))
        }
        fn wait(&self, _time: Duration) {}
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
    }

    #[test]
    #[should_panic(expected = "a context that is moved")]
    fn a_host_that_moves_no_context_breaks_it() {
        keeps_contract::<Immovable>();
    }
}
