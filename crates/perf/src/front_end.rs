//! Events that say what a layout does: cycles, instructions, and what the processor's front end lacks.

use crate::alarm_choice::{AMD_TAKEN, INTEL_TAKEN, Vendor};
use crate::counters::CounterEvent;

/// Slots of the dispatch stage that stay empty for want of instructions (AMD Processor Programming Reference
/// for families 19h and 1Ah, `de_no_dispatch_per_slot`).
const AMD_EMPTY_SLOTS: u64 = 0x1_0000_01a0;
/// Lines that the instruction cache asks the second level for (the same, event `0x64`, unit mask 7).
const AMD_L1I_MISSES: u64 = 0x0764;
/// `IDQ_UOPS_NOT_DELIVERED.CORE` (Intel SDM volume 3, performance monitoring events).
const INTEL_EMPTY_SLOTS: u64 = 0x019c;

/// What to count to compare layouts on this processor, with names for people, what decides first; at most
/// five of the hardware's, as many as count at the same time. Which of them the machine has is for
/// [`Counters::open`](crate::Counters::open) to find out.
pub fn front_end_events() -> Vec<(CounterEvent, &'static str)> {
    events_of(Vendor::of_this_machine())
}

fn events_of(vendor: Vendor) -> Vec<(CounterEvent, &'static str)> {
    let own: &[(u64, &str)] = match vendor {
        Vendor::Amd => {
            &[(AMD_EMPTY_SLOTS, "empty slots"), (AMD_L1I_MISSES, "L1i misses"), (AMD_TAKEN, "taken branches")]
        }
        Vendor::Intel => &[(INTEL_EMPTY_SLOTS, "empty slots"), (INTEL_TAKEN, "taken branches")],
        Vendor::Other => &[],
    };
    let common = [
        (CounterEvent::Cycles, "user cycles"),
        (CounterEvent::TaskClock, "processor time"),
        (CounterEvent::Instructions, "instructions"),
    ];
    common.into_iter().chain(own.iter().map(|&(code, name)| (CounterEvent::Raw(code), name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_counted_than_counts_at_the_same_time() {
        for vendor in [Vendor::Amd, Vendor::Intel, Vendor::Other] {
            let events = events_of(vendor);
            let of_hardware = events.iter().filter(|(event, _)| *event != CounterEvent::TaskClock).count();
            assert!((2..=5).contains(&of_hardware), "{events:?}");
            assert_eq!(events[0], (CounterEvent::Cycles, "user cycles"));
        }
    }
}
