//! Which event starts a record of branches.
//!
//! Records shall start where branches are taken, in proportion; so taken branches are the event of choice,
//! cycles the next best, and time what every machine has (Marin et al., "Break Dancing", section 3.1).
//! Periods are jittered by whoever sets them.

use crate::event::{Attributes, Event, attributes, bindings, cycles};
use crate::thread_event::AlarmEvent;

/// Who made the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// AMD, and Hygon.
    Amd,
    /// Intel.
    Intel,
    /// Somebody else.
    Other,
}

/// `EX_RET_BRN_TKN`, taken branches retired (AMD Processor Programming Reference, PMCx0C4; families 10h to
/// 1Ah).
pub(crate) const AMD_TAKEN: u64 = 0xc4;
/// `BR_INST_RETIRED.NEAR_TAKEN`: event 0xC4, unit mask 0x20 (Intel SDM volume 3, performance monitoring
/// events).
pub(crate) const INTEL_TAKEN: u64 = 0x20c4;

impl Vendor {
    /// This processor's, by its CPUID leaf 0.
    pub fn of_this_machine() -> Self {
        let leaf = std::arch::x86_64::__cpuid(0);
        Self::named([leaf.ebx, leaf.edx, leaf.ecx])
    }

    fn named(words: [u32; 3]) -> Self {
        let name: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        match &name[..] {
            b"AuthenticAMD" | b"HygonGenuine" => Self::Amd,
            b"GenuineIntel" => Self::Intel,
            _ => Self::Other,
        }
    }

    /// The events that may start records on its processors, the best one first.
    pub fn alarm_events(self) -> Vec<AlarmEvent> {
        let taken = match self {
            Self::Amd => Some(AlarmEvent::TakenBranches { raw: AMD_TAKEN }),
            Self::Intel => Some(AlarmEvent::TakenBranches { raw: INTEL_TAKEN }),
            Self::Other => None,
        };
        taken.into_iter().chain([AlarmEvent::Cycles, AlarmEvent::TaskClock]).collect()
    }
}

impl AlarmEvent {
    /// The best event that this machine lets this user open. Tries them on the calling thread.
    pub fn best() -> Self {
        Self::best_of(&Vendor::of_this_machine().alarm_events(), |event| {
            let mut attributes = event.attributes();
            attributes.__bindgen_anon_1.sample_period = 1_000_000;
            Event::open(&attributes, 0, -1, None).is_ok()
        })
    }

    /// The first of `events` that can be opened; time if none can.
    fn best_of(events: &[Self], opens: impl Fn(Self) -> bool) -> Self {
        events.iter().copied().find(|event| opens(*event)).unwrap_or(Self::TaskClock)
    }

    /// About how many of these a thread makes in a nanosecond; budgets correct the rest.
    pub fn per_nanosecond(self) -> f64 {
        match self {
            Self::TaskClock => 1.0,
            Self::Cycles => 3.0,
            // Three billion instructions in a second, one in ten a taken branch.
            Self::TakenBranches { .. } => 0.3,
        }
    }

    pub(crate) fn attributes(self) -> Attributes {
        match self {
            Self::TaskClock => {
                attributes(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_TASK_CLOCK.into())
            }
            Self::Cycles => cycles(),
            Self::TakenBranches { raw } => attributes(bindings::PERF_TYPE_RAW, raw),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: AlarmEvent = AlarmEvent::TakenBranches { raw: AMD_TAKEN };

    #[test]
    fn the_best_event_that_opens_is_taken() {
        let events = Vendor::Amd.alarm_events();
        assert_eq!(events, [TAKEN, AlarmEvent::Cycles, AlarmEvent::TaskClock]);
        assert_eq!(AlarmEvent::best_of(&events, |_| true), TAKEN);
        assert_eq!(AlarmEvent::best_of(&events, |e| e != TAKEN), AlarmEvent::Cycles);
        assert_eq!(AlarmEvent::best_of(&events, |e| e == AlarmEvent::TaskClock), AlarmEvent::TaskClock);
        assert_eq!(AlarmEvent::best_of(&events, |_| false), AlarmEvent::TaskClock);
        assert_eq!(Vendor::Intel.alarm_events()[0], AlarmEvent::TakenBranches { raw: 0x20c4 });
        assert_eq!(Vendor::Other.alarm_events()[0], AlarmEvent::Cycles);
    }

    #[test]
    fn vendors_are_known_by_their_names() {
        let words =
            |name: &[u8; 12]| [0, 4, 8].map(|at| u32::from_le_bytes(std::array::from_fn(|i| name[at + i])));
        assert_eq!(Vendor::named(words(b"AuthenticAMD")), Vendor::Amd);
        assert_eq!(Vendor::named(words(b"GenuineIntel")), Vendor::Intel);
        assert_eq!(Vendor::named(words(b"KVMKVMKVM\0\0\0")), Vendor::Other);
        // Whatever this machine has, something is chosen.
        let _ = AlarmEvent::best();
    }
}
