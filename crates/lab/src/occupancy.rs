//! How many hot lines each set of the instruction cache has to hold (Tamches and Miller, Figure 2).

use restitch_profile::Profile;
use restitch_program::Program;
use serde::Serialize;

use crate::machine::Machine;
use crate::place::Placement;

/// Hot lines of each set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// By set.
    pub lines: Vec<u32>,
    /// Lines that a set can hold.
    pub ways: usize,
}

impl Occupancy {
    /// The lines that hold `share` (0 to 1) of all executed bytes, the fullest first, by the set that they
    /// fall into.
    pub fn of(
        program: &Program,
        profile: &Profile,
        placement: &Placement,
        machine: &Machine,
        share: f64,
    ) -> Self {
        let mut weights = std::collections::BTreeMap::<u64, f64>::new();
        for block in program.block_ids().filter(|&b| profile.block(b) > 0) {
            let (start, end) = (placement.starts[block.index()], placement.end(block));
            for line in start / machine.line..end.div_ceil(machine.line) {
                let inside = end.min((line + 1) * machine.line) - start.max(line * machine.line);
                *weights.entry(line).or_default() += profile.block(block) as f64 * inside as f64;
            }
        }
        let mut lines: Vec<(u64, f64)> = weights.into_iter().collect();
        lines.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let wanted = share * lines.iter().map(|l| l.1).sum::<f64>();
        let sets = machine.l1i.sets.next_power_of_two();
        let mut occupancy = Self { lines: vec![0; sets], ways: machine.l1i.ways };
        let mut sum = 0.0;
        for (line, weight) in lines {
            if sum >= wanted {
                break;
            }
            sum += weight;
            occupancy.lines[line as usize & (sets - 1)] += 1;
        }
        occupancy
    }

    /// All hot lines.
    pub fn total(&self) -> u32 {
        self.lines.iter().sum()
    }

    /// Hot lines beyond what their sets can hold: these conflict.
    pub fn excess(&self) -> u32 {
        self.lines.iter().map(|&n| n.saturating_sub(self.ways as u32)).sum()
    }
}
