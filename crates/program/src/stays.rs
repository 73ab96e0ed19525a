//! What stays where it is: the one list of rules for whole functions.
//!
//! Each rule is a function that names functions and says why; they go by tables of the file, by what its own
//! code shows, or by names that the C library gives. A new rule is one more line in [`RULES`], and a variant
//! of [`Movability`] if its reason is a new one. (Which *calls* stay in functions that move is another list:
//! `looks.rs`.)

use crate::changing;
use crate::doubt::Doubt;
use crate::known_labels::known_labels;
use crate::leaders::Leaders;
use crate::lookups::unwinder_lookups;
use crate::model::{JumpTable, Movability};
use crate::own_position;
use crate::personality::unknown_personalities;
use crate::special;
use crate::sweep::Sweep;
use restitch_address::Svma;
use restitch_cfi::UnwindForm;
use restitch_image::Image;

/// What rules look at.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub image: &'a Image,
    pub unwind: &'a dyn UnwindForm,
    pub sweep: &'a Sweep,
    pub doubt: &'a Doubt,
    pub leaders: &'a Leaders,
    pub tables: &'a [JumpTable],
}

/// A function that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stay {
    /// Its span.
    span: usize,
    why: Movability,
}

type Rule = fn(Facts<'_>) -> Vec<Stay>;

/// The rules. Of several that name a function, the first one is told as the reason.
const RULES: [Rule; 13] = [
    written_by_loader,
    signal_frames,
    doubtful,
    compared_by_c_library,
    unwinder_lookup,
    restartable_sequence,
    linkage,
    patch_points,
    writable,
    of_run_time,
    with_known_labels,
    own_position,
    unknown_personality,
];

/// Whether each span may be copied, and why not.
pub(crate) fn movability(facts: Facts<'_>) -> Vec<Movability> {
    let mut out = vec![Movability::Movable; facts.sweep.spans.len()];
    for stay in RULES.iter().flat_map(|rule| rule(facts)) {
        let found = &mut out[stay.span];
        if *found == Movability::Movable {
            *found = stay.why;
        }
    }
    out
}

impl Facts<'_> {
    /// All spans for which something holds stay.
    fn where_so(&self, why: Movability, holds: impl Fn(usize) -> bool) -> Vec<Stay> {
        (0..self.sweep.spans.len()).filter(|span| holds(*span)).map(|span| Stay { span, why }).collect()
    }

    /// The spans that hold these addresses stay.
    fn holding(&self, why: Movability, places: impl IntoIterator<Item = Svma>) -> Vec<Stay> {
        let spans = places.into_iter().filter_map(|at| self.sweep.span_at(at));
        spans.map(|span| Stay { span, why }).collect()
    }
}

/// These spans stay.
fn these(why: Movability, spans: Vec<usize>) -> Vec<Stay> {
    spans.into_iter().map(|span| Stay { span, why }).collect()
}

fn written_by_loader(f: Facts<'_>) -> Vec<Stay> {
    f.where_so(Movability::WrittenByLoader, |span| f.image.is_relocated(f.sweep.spans[span].range))
}

fn signal_frames(f: Facts<'_>) -> Vec<Stay> {
    f.where_so(Movability::OddUnwindInfo, |span| f.sweep.spans[span].is_signal_frame())
}

/// What is no code throughout, or not understood.
fn doubtful(f: Facts<'_>) -> Vec<Stay> {
    let reasons = f.doubt.opaque.iter().enumerate();
    reasons.filter_map(|(span, why)| Some(Stay { span, why: (*why)? })).collect()
}

fn compared_by_c_library(f: Facts<'_>) -> Vec<Stay> {
    f.holding(Movability::ComparedByRuntime, special::compared_by_c_library(f.image))
}

fn unwinder_lookup(f: Facts<'_>) -> Vec<Stay> {
    let found = unwinder_lookups(f.image, f.unwind);
    f.holding(Movability::UnwinderLookup, found.find_object.into_iter().chain(found.iterate))
}

fn restartable_sequence(f: Facts<'_>) -> Vec<Stay> {
    f.holding(Movability::RestartableSequence, special::restartable_sequences(f.image))
}

fn linkage(f: Facts<'_>) -> Vec<Stay> {
    f.holding(Movability::Linkage, f.image.plt_slots().iter().map(|slot| slot.stub.start))
}

fn patch_points(f: Facts<'_>) -> Vec<Stay> {
    these(Movability::PatchPoint, changing::with_patch_points(f.image, f.sweep))
}

fn writable(f: Facts<'_>) -> Vec<Stay> {
    these(Movability::WritableCode, changing::writable(f.image, f.sweep))
}

fn of_run_time(f: Facts<'_>) -> Vec<Stay> {
    let has_one = f.image.run_time().is_some();
    f.where_so(Movability::RunTime, |_| has_one)
}

fn with_known_labels(f: Facts<'_>) -> Vec<Stay> {
    these(Movability::KnownLabels, known_labels(f.image, f.sweep, f.tables, &f.leaders.branch))
}

fn own_position(f: Facts<'_>) -> Vec<Stay> {
    these(Movability::OwnPosition, own_position::looking_at_it(f.image, f.sweep))
}

fn unknown_personality(f: Facts<'_>) -> Vec<Stay> {
    these(Movability::UnknownPersonality, unknown_personalities(f.image, f.sweep, f.tables))
}
