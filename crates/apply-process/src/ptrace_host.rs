//! A process under `ptrace` as a host of code: its bytes, and it while it stands still.

use crate::error::ProcessError;
use crate::host::{CodeMemory, Exchange, StoppedHost};
use crate::memory::replacement_mapping::{is_exact, own_addresses, touch_used};
use crate::stub::{StubSite, borrow};
use restitch_address::{Avma, AvmaRange};
use restitch_apply::Why;
use restitch_procfs::Mapping;
use restitch_tracee::{Batch, Memory, Registers, StopTimes, Stopped, TraceError};

impl CodeMemory for Memory {
    fn pid(&self) -> i32 {
        self.pid()
    }

    fn read_vec(&self, at: Avma, len: usize) -> Result<Vec<u8>, TraceError> {
        self.read_vec(at, len)
    }

    fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), TraceError> {
        self.write(at, bytes)
    }

    fn own_pages(&self, range: AvmaRange) -> Result<Vec<Avma>, Why> {
        own_addresses(self.pid(), range)
    }

    fn shows_the_same(&self, wanted: &Mapping, replacement: AvmaRange) -> Result<(), Why> {
        is_exact(self.pid(), wanted, replacement)
    }

    fn touch_used(&self, code: AvmaRange, replacement: AvmaRange) -> Result<(), Why> {
        touch_used(self, code, replacement)
    }

    fn read_u64(&self, at: Avma) -> Result<u64, TraceError> {
        self.read_u64(at)
    }

    fn read_many(&self, requests: &[(Avma, usize)]) -> Vec<Option<Vec<u8>>> {
        self.read_many(requests)
    }

    fn write_words(&self, words: &[(Avma, u64)]) -> Result<(), TraceError> {
        self.write_words(words)
    }

    fn holds(&self, expected: &[(Avma, Vec<u8>)]) -> bool {
        self.holds(expected)
    }
}

impl StoppedHost for Stopped {
    type Memory = Memory;

    fn memory(&self) -> &Memory {
        self.memory()
    }

    fn maps(&self) -> Result<Vec<Mapping>, TraceError> {
        self.maps()
    }

    fn threads(&self) -> Vec<i32> {
        self.threads().collect()
    }

    fn registers(&self, thread: i32) -> Result<Registers, TraceError> {
        self.registers(thread)
    }

    fn set_registers(&mut self, thread: i32, registers: Registers) -> Result<(), TraceError> {
        self.set_registers(thread, registers)
    }

    fn exchange(
        &mut self,
        stub: &StubSite,
        maps: &[Mapping],
        exchanges: &[Exchange],
    ) -> Result<(), ProcessError> {
        let mut borrow = borrow(self, stub, maps)?;
        let mut batch = Batch::new();
        for exchange in exchanges {
            if let Some(aside) = exchange.aside {
                batch.mremap_leaving(AvmaRange::new(exchange.to, exchange.from.len()), aside);
            }
            batch.mremap(exchange.from, exchange.to);
        }
        for result in borrow.run(&batch)? {
            result?;
        }
        borrow.finish()?;
        Ok(())
    }

    fn resume(self) -> StopTimes {
        self.resume()
    }
}
