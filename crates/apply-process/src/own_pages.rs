//! Pages of a module that the process has of its own: only these can differ from the file.

use crate::target::Module;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_image::Segment;
use restitch_procfs::Pagemap;
use restitch_tracee::Memory;

/// Pages of the segment that are the process's own; all of them if the kernel does not tell.
pub(crate) fn own_pages(memory: &Memory, module: &Module, segment: &Segment) -> Vec<Avma> {
    let ends = [segment.file_backed().start, segment.file_backed().end].map(|at| module.bias.to_actual(at));
    let range = AvmaRange::between(ends[0].align_down(PAGE), ends[1].align_up(PAGE));
    let states = Pagemap::open(memory.pid()).and_then(|map| map.states(range));
    let own = |i: usize| states.as_ref().map_or(true, |states| states[i].is_own());
    (0..(range.len() / PAGE) as usize).filter(|i| own(*i)).map(|i| range.start + i as u64 * PAGE).collect()
}
