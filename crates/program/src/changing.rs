//! Code that the program itself may change while it runs. A version is a copy of the file's instructions, so
//! a change of the original after the switch would have no effect in the copy.
//!
//! **Problem.** Nobody sees the write before it happens. **Idea.** Who changes code on purpose mostly says so
//! in the file: tables of places, and code that is writable. **Limit.** A program that makes its code
//! writable later, at places that no table names, is not known; what it has changed before a switch is (the
//! process is compared with the file).

use crate::sweep::Sweep;
use restitch_image::Image;

/// Indices of the spans that hold a patch point, or begin behind one that is in none: filler in front of a
/// function is part of its point (`-fpatchable-function-entry=N,M`).
pub(crate) fn with_patch_points(image: &Image, sweep: &Sweep) -> Vec<usize> {
    let points = image.patch_points().iter();
    let behind =
        |at| Some(sweep.spans.partition_point(|s| s.range.start < at)).filter(|i| *i < sweep.spans.len());
    let mut found: Vec<usize> = points.filter_map(|at| sweep.span_at(*at).or_else(|| behind(*at))).collect();
    found.dedup();
    found
}

/// Indices of the spans in segments that are writable and executable.
pub(crate) fn writable(image: &Image, sweep: &Sweep) -> Vec<usize> {
    let segments = || image.segments().iter().filter(|s| s.writable && s.executable);
    if segments().next().is_none() {
        return Vec::new();
    }
    let is_writable = |i: &usize| segments().any(|s| s.range.overlaps(&sweep.spans[*i].range));
    (0..sweep.spans.len()).filter(is_writable).collect()
}
