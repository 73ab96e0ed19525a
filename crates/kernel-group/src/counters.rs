//! Counters: their memory, and what the module says of them: where they are, how many, and each place that
//! counts. Who reads them finds the section by its name (`/sys/module/NAME/sections`).

use crate::group::{Counters, Group};
use crate::section::{Form, Kind, Reference, Sections};
use restitch_x86::module_code::CounterMemory;

/// Bytes of a counter.
const COUNTER: usize = 8;

impl Counters {
    /// The section that they are in.
    fn section(self) -> Kind {
        match self.memory {
            CounterMemory::PerProcessor => Kind::OwnCounters,
            CounterMemory::Shared => Kind::SharedCounters,
        }
    }

    /// Where a counter is.
    pub(crate) fn place(self, number: u32) -> Reference {
        Reference::Own { section: self.section(), offset: u64::from(number) * COUNTER as u64 }
    }
}

/// Makes their memory, and the head of what is said of them: the address of the first, in 8 bytes, and how
/// many there are, in 8 bytes. Distances of 4 bytes to the places that count follow.
pub(crate) fn begin(group: &Group, sections: &mut Sections) {
    let Some(counters) = group.counters.filter(|counters| counters.number > 0) else { return };
    sections.of(counters.section()).data.resize(counters.number as usize * COUNTER, 0);
    let head = sections.of(Kind::Counted);
    head.push(Form::Address, counters.place(0), 0);
    head.data.extend_from_slice(&u64::from(counters.number).to_le_bytes());
}
