//! What the plugin counted in the code of a module: executions of its blocks, and the ways between them.
//!
//! It follows what was executed instruction by instruction, and knows of the module where its blocks are and
//! no more. A block is entered as often as its first instruction came to its end or faulted for good.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use restitch_guest::{Counts, Edge, EdgeKind};
use restitch_kernel_position::Positioned;

/// The code of a loaded module, hot and cold.
pub(crate) struct LoadedCode {
    /// Where it is.
    pub(crate) at: [u64; 2],
}

/// What was executed of a module.
pub(crate) struct Truth<'w> {
    counts: &'w Counts,
    code: [Range<u64>; 2],
    /// Copies by the start of the original.
    copies: BTreeMap<u64, Range<u64>>,
    /// Originals by the start of the copy: several where all that a block did was to jump to what follows it
    /// in the copy.
    originals: HashMap<u64, Vec<u64>>,
}

/// Where control went from an instruction: none if back to a caller.
struct Step {
    to: Option<u64>,
    count: u64,
}

impl<'w> Truth<'w> {
    /// Of a module that is loaded there, in a window.
    pub(crate) fn new(module: &Positioned, loaded: &LoadedCode, counts: &'w Counts) -> Self {
        let [hot, cold] = loaded.at;
        let code = [hot..hot + module.hot_bytes, cold..cold + module.cold_bytes];
        let of = |blocks: &[restitch_kernel_position::Moved], from: u64| {
            let copy = |at: u64, len: u64| at..at + len;
            let copies =
                blocks.iter().map(|own| (own.original.start.get(), copy(from + own.offset, own.len)));
            copies.collect::<Vec<_>>()
        };
        let copies: BTreeMap<_, _> =
            [of(&module.hot_code, hot), of(&module.cold_code, cold)].concat().into_iter().collect();
        let mut originals: HashMap<u64, Vec<u64>> = HashMap::new();
        for (original, copy) in &copies {
            originals.entry(copy.start).or_default().push(*original);
        }
        Self { counts, code, copies, originals }
    }

    /// Whether nothing of the block at an address is in the copy: whoever goes there is where it leads.
    pub(crate) fn is_bare(&self, original: u64) -> bool {
        self.copies[&original].is_empty()
    }

    /// How often the copy of the block at an address was entered; of one that is not bare.
    pub(crate) fn entered(&self, original: u64) -> u64 {
        let at = self.copies[&original].start;
        self.counts.at(at) + self.faults(at).map(|edge| edge.count).sum::<u64>()
    }

    /// Where control went from the copy of the block at an address, and how often: starts of original blocks,
    /// addresses outside of the module, none for callers. Of several originals at one place it is one of
    /// those that the block `leads_to`, if there are some.
    pub(crate) fn left(&self, original: u64, leads_to: impl Fn(u64) -> bool) -> BTreeMap<Option<u64>, u64> {
        let copy = &self.copies[&original];
        let mut left = BTreeMap::new();
        for at in self.executed(copy) {
            let is_out = |step: &Step| step.to.is_none_or(|to| !(copy.start + 1..copy.end).contains(&to));
            for step in self.steps(at).into_iter().filter(is_out).filter(|step| step.count > 0) {
                let to = step
                    .to
                    .map(|to| self.originals_at(to))
                    .map(|all| all.iter().copied().find(|to| leads_to(*to)).unwrap_or(all[all.len() - 1]));
                *left.entry(to).or_default() += step.count;
            }
        }
        left
    }

    /// Instructions of a range that control came to.
    fn executed(&self, range: &Range<u64>) -> Vec<u64> {
        let ended = self.counts.executed.iter().map(|own| own.address);
        let faulted = self.counts.edges.iter().filter(|edge| edge.kind == EdgeKind::Fault);
        let mut all: Vec<u64> =
            ended.chain(faulted.map(|edge| edge.from)).filter(|at| range.contains(at)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn ways(&self, at: u64) -> &'w [Edge] {
        let edges = &self.counts.edges;
        let from = edges.partition_point(|edge| edge.from < at);
        let len = edges[from..].partition_point(|edge| edge.from == at);
        &edges[from..from + len]
    }

    fn faults(&self, at: u64) -> impl Iterator<Item = &'w Edge> + use<'w> {
        self.ways(at).iter().filter(|edge| edge.kind == EdgeKind::Fault)
    }

    /// Where control went from an instruction. From a call it comes back.
    fn steps(&self, at: u64) -> Vec<Step> {
        let executed = &self.counts.executed;
        let own = executed.binary_search_by_key(&at, |own| own.address).map(|found| executed[found]);
        let is_call = |edge: &&Edge| matches!(edge.kind, EdgeKind::Call | EdgeKind::IndirectCall);
        let (calls, ways): (Vec<&Edge>, Vec<&Edge>) = self.ways(at).iter().partition(is_call);
        let mut steps: Vec<Step> = ways
            .iter()
            .map(|edge| Step { to: (edge.kind != EdgeKind::Return).then_some(edge.to), count: edge.count })
            .collect();
        let branches = ways.iter().any(|edge| edge.kind != EdgeKind::Fault);
        if let Ok(own) = own
            && (!calls.is_empty() || !branches)
        {
            steps.push(Step { to: Some(at + u64::from(own.size)), count: own.count });
        }
        steps
    }

    /// The starts of original blocks whose copies control comes to at `at`, behind code that was added; an
    /// address outside of the module is itself.
    fn originals_at(&self, mut at: u64) -> Vec<u64> {
        while self.code.iter().any(|code| code.contains(&at)) {
            if let Some(originals) = self.originals.get(&at) {
                return originals.clone();
            }
            let steps = self.steps(at);
            let [Step { to: Some(to), .. }] = steps[..] else { panic!("what was added at {at:x} branches") };
            at = to;
        }
        vec![at]
    }
}
