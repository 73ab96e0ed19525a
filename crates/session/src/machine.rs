//! The machine that layouts are made for.

use restitch_lab::{Geometry, Machine};
use restitch_procfs::system::{CpuCache, cpu_caches, cpu_model};

/// This machine, as far as the kernel describes it.
pub(crate) fn this_machine() -> Machine {
    let caches = cpu_caches();
    let of_level = |level| caches.iter().find(|c| c.level == level && c.instructions && c.line == 64);
    let shape = |c: &CpuCache| Geometry { sets: c.sets, ways: c.ways };
    let model = cpu_model();
    Machine::like(&model.vendor, model.family, model.model, of_level(1).map(shape), of_level(2).map(shape))
}
