//! Which functions a root's group is to be of: a breadth-first walk over calls, as counted (Tamches and
//! Miller, *Dynamic kernel code optimization*, section 2.1.2).
//!
//! One level after the other is counted: first the roots, then what they call, and so on. A function that was
//! counted already is not counted again, and neither is one that is called only from blocks that were not
//! executed. What is called through pointers joins if somebody has seen it called ([`Search::seen`]).

use crate::counts::Counts;
use restitch_address::Svma;
use restitch_kernel::{Code, FunctionId, Kernel, SiteKind};
use std::collections::BTreeSet;

/// A walk that is under way.
#[derive(Debug, Clone)]
pub struct Search<'k> {
    kernel: &'k Kernel,
    /// All that were counted, or are to be.
    known: BTreeSet<FunctionId>,
    level: Vec<FunctionId>,
    depth: usize,
    counts: Counts,
}

impl<'k> Search<'k> {
    /// Begins at `roots`.
    pub fn new(kernel: &'k Kernel, roots: &[FunctionId]) -> Self {
        let known: BTreeSet<FunctionId> = roots.iter().copied().collect();
        Self { kernel, level: known.iter().copied().collect(), known, depth: 0, counts: Counts::default() }
    }

    /// The functions that are to be counted now, by address; none when the walk is over.
    pub fn level(&self) -> &[FunctionId] {
        &self.level
    }

    /// How many calls the level is away from the roots.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Takes the counts of the level, and goes on to the next one.
    pub fn counted(&mut self, counts: &Counts) {
        self.counts.extend(counts);
        let mut next = BTreeSet::new();
        for id in std::mem::take(&mut self.level) {
            let code = self.kernel.code(id);
            next.extend(led_to(&code, &self.counts).filter_map(|to| self.kernel.functions.starting_at(to)));
        }
        self.depth += 1;
        self.level = next.into_iter().filter(|id| self.known.insert(*id)).collect();
    }

    /// Functions that were seen called through pointers or static calls by functions of the walk: those that
    /// are new join the level.
    pub fn seen(&mut self, targets: impl IntoIterator<Item = FunctionId>) {
        let new = targets.into_iter().filter(|id| self.known.insert(*id));
        self.level.extend(new);
        self.level.sort_unstable();
    }

    /// All functions that were reached, and how often their blocks were executed.
    pub fn finish(self) -> (Vec<FunctionId>, Counts) {
        (self.known.into_iter().collect(), self.counts)
    }
}

/// What executed blocks call, or jump to.
fn led_to<'c>(code: &'c Code, counts: &'c Counts) -> impl Iterator<Item = Svma> + 'c {
    let executed = code.blocks.iter().filter(|block| counts.at(block.range.start) > 0);
    executed.flat_map(move |block| {
        let calls = code.sites_in(block.range).iter().filter_map(|site| match site.kind {
            SiteKind::Call(to) => Some(to),
            _ => None,
        });
        calls.chain(block.end.target())
    })
}
