//! Where a kernel's time goes, by samples of its code with their callers: its hottest functions, and
//! functions below which much of the time is spent, as roots of groups (what Tamches and Miller, *Dynamic
//! kernel code optimization*, leave to the user).

use crate::functions::{FunctionId, Functions};
use restitch_address::Svma;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Samples by function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sampled {
    /// All samples.
    pub all: u64,
    /// Those in no function of the kernel's own text: in modules, generated code, entry code.
    pub elsewhere: u64,
    functions: BTreeMap<FunctionId, Tally>,
}

/// Samples of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tally {
    own: u64,
    inclusive: u64,
    /// Of the inclusive ones: those in what it has called, by that.
    callees: BTreeMap<FunctionId, u64>,
}

/// A function and its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledFunction {
    /// Which one.
    pub id: FunctionId,
    /// Samples in its own code.
    pub own: u64,
    /// Samples in its code, or in what it has called.
    pub inclusive: u64,
}

impl Sampled {
    /// Takes a sample at `at`, whose functions return to `callers`, the innermost first.
    pub fn add(&mut self, functions: &Functions, at: Svma, callers: &[Svma]) {
        self.all += 1;
        let own = functions.at(at);
        match own {
            Some(id) => self.functions.entry(id).or_default().own += 1,
            None => self.elsewhere += 1,
        }
        // A call may be the last instruction of a function: what is returned to is another one's then.
        let callers = callers.iter().map(|at| functions.at(Svma::new(at.get().wrapping_sub(1))));
        let mut seen = BTreeSet::new();
        let mut callee = None;
        for id in std::iter::once(own).chain(callers) {
            // A recursive function has each sample once.
            if let Some(id) = id.filter(|id| seen.insert(*id)) {
                let tally = self.functions.entry(id).or_default();
                tally.inclusive += 1;
                if let Some(callee) = callee {
                    *tally.callees.entry(callee).or_insert(0) += 1;
                }
            }
            callee = id;
        }
    }

    /// The fewest functions in whose own code at least this share of the samples of functions is; the hottest
    /// first.
    pub fn hottest(&self, share: f64) -> Vec<SampledFunction> {
        let mut all = self.functions().filter(|function| function.own > 0).collect::<Vec<_>>();
        all.sort_by_key(|function| (Reverse(function.own), function.id));
        let wanted = share * (self.all - self.elsewhere) as f64;
        let mut sum = 0;
        all.into_iter()
            .take_while(|function| {
                let is_wanted = (sum as f64) < wanted;
                sum += function.own;
                is_wanted
            })
            .collect()
    }

    /// Functions in or below which at least this share of all samples is, by how many; no such one whose
    /// samples are nearly all below one of its callees, which says the same more closely. `may_be` says which
    /// functions can be roots; those that cannot are not looked through.
    pub fn roots(&self, share: f64, may_be: impl Fn(FunctionId) -> bool) -> Vec<SampledFunction> {
        /// The share of a function's samples that are "nearly all".
        const NEARLY_ALL: f64 = 0.9;
        let least = (share * self.all as f64).max(1.0);
        let mut roots: Vec<SampledFunction> = self
            .functions()
            .filter(|function| function.inclusive as f64 >= least && may_be(function.id))
            .filter(|function| {
                let most = NEARLY_ALL * function.inclusive as f64;
                let callees = self.functions[&function.id].callees.iter();
                !callees.clone().any(|(callee, count)| *count as f64 >= most && may_be(*callee))
            })
            .collect();
        roots.sort_by_key(|function| (Reverse(function.inclusive), function.id));
        roots
    }

    fn functions(&self) -> impl Iterator<Item = SampledFunction> + '_ {
        let function = |(id, tally): (&FunctionId, &Tally)| SampledFunction {
            id: *id,
            own: tally.own,
            inclusive: tally.inclusive,
        };
        self.functions.iter().map(function)
    }
}
