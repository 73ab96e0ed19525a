//! Which indirect calls are worth a comparison and a direct call.
//!
//! After the promotion of compilers and of BOLT (`--indirect-call-promotion`): a call site pays if one target
//! has nearly all of its executions, for then the comparison's branch is predicted, and if it is executed
//! often. Only targets that are functions of the same module count: those of others may be unloaded or
//! replaced while the promoted call is in force.

use crate::model::Profile;
use restitch_address::Svma;
use restitch_program::{CallId, CallTarget, Program};

/// One indirect call that is to become a comparison with its usual target and a direct call of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Promotion {
    /// The call site.
    pub call: CallId,
    /// Its usual target: the start of a function of the same module.
    pub target: Svma,
}

/// What is worth promoting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromotionLimits {
    /// The least share of a site's executions that goes to one target.
    pub share: f64,
    /// The least number of executions of that target.
    pub executions: u64,
    /// The hottest sites that have this share of all executions of indirect calls are looked at; the others
    /// are too cold.
    pub coverage: f64,
}

impl Default for PromotionLimits {
    /// Nine of ten executions, seen twenty times at least (records of some seconds of tracing see no site
    /// often), among the hottest 99 %.
    fn default() -> Self {
        Self { share: 0.9, executions: 20, coverage: 0.99 }
    }
}

/// The promotions that pay by `profile`, sorted by call.
pub fn promotions(program: &Program, profile: &Profile, limits: &PromotionLimits) -> Vec<Promotion> {
    let executions = |call: CallId| {
        let known: u64 = profile.targets[&call].values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        known.max(profile.calls.get(call.index()).copied().unwrap_or(0))
    };
    let mut sites: Vec<(u64, CallId)> =
        profile.targets.keys().map(|&call| (executions(call), call)).collect();
    sites.sort_by_key(|&(count, call)| (std::cmp::Reverse(count), call));
    let total: f64 = sites.iter().map(|(count, _)| *count as f64).sum();
    let (mut seen, mut out) = (0.0, Vec::new());
    for (count, call) in sites {
        if seen >= total * limits.coverage {
            break;
        }
        seen += count as f64;
        out.extend(promotion(program, profile, call, count, limits));
    }
    out.sort_unstable();
    out
}

/// Whether a function of the program starts at `at`.
pub(crate) fn starts_function(program: &Program, at: Svma) -> bool {
    program.function_at(at).is_some_and(|f| program.function(f).range.start == at)
}

/// The promotion of `call`, which was executed `count` times, if it pays.
fn promotion(
    program: &Program,
    profile: &Profile,
    call: CallId,
    count: u64,
    limits: &PromotionLimits,
) -> Option<Promotion> {
    let site = program.calls.get(call.index()).filter(|site| site.target == CallTarget::Indirect)?;
    let targets = profile.targets.get(&call)?;
    let (target, most) = targets.iter().map(|(to, n)| (*to, *n)).max_by_key(|(_, n)| *n)?;
    let pays = most >= limits.executions && most as f64 >= limits.share * count as f64;
    (pays && starts_function(program, target) && program.is_movable(site.block))
        .then_some(Promotion { call, target })
}

impl Profile {
    /// Takes over from `other`, a profile of the same program, what indirect calls called: of each site, the
    /// shares of its targets, for as many executions as are counted here. (Counting versions know how often a
    /// call ran, branch records know where it went.)
    pub fn adopt_targets(&mut self, other: &Profile) {
        for (&call, targets) in &other.targets {
            let here = self.calls.get(call.index()).copied().unwrap_or(0);
            let known = targets.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
            let there = known.max(other.calls.get(call.index()).copied().unwrap_or(0));
            for (&to, &n) in targets {
                let scaled = (u128::from(n) * u128::from(here)).checked_div(u128::from(there)).unwrap_or(0);
                if scaled > 0 {
                    self.add_target(call, to, u64::try_from(scaled).unwrap_or(u64::MAX));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
function 0x1000..0x1040 f movable
  0x1000 +64 entry return/1
    call 0x1004 +2 indirect
    call 0x1010 +3 indirect
    call 0x1020 +5 -> 0x1040
function 0x1040..0x1050 g movable
  0x1040 +16 entry return/1
function 0x1050..0x1060 h movable
  0x1050 +16 entry return/1
";

    fn targets(counts: &[(u32, u64, u64)]) -> Vec<(u32, u64)> {
        let program = Program::from_text(TEXT).unwrap();
        let mut profile = Profile::empty(&program);
        for &(call, to, n) in counts {
            profile.add_target(CallId(call), Svma::new(to), n);
        }
        let found = promotions(&program, &profile, &PromotionLimits::default());
        found.into_iter().map(|p| (p.call.0, p.target.get())).collect()
    }

    #[test]
    fn the_usual_target_has_to_have_nearly_all_executions() {
        assert_eq!(targets(&[(0, 0x1040, 900), (0, 0x1050, 100)]), [(0, 0x1040)]);
        assert_eq!(targets(&[(0, 0x1040, 899), (0, 0x1050, 101)]), []);
        assert_eq!(targets(&[(0, 0x1040, 19)]), []);
    }

    #[test]
    fn only_functions_of_the_module_are_called_directly() {
        assert_eq!(targets(&[(0, 0x1044, 5000)]), [], "inside of a function");
        assert_eq!(targets(&[(2, 0x1040, 5000)]), [], "a direct call");
        assert_eq!(targets(&[(7, 0x1040, 5000)]), [], "no call");
    }

    #[test]
    fn cold_sites_stay() {
        assert_eq!(targets(&[(0, 0x1040, 1_000_000), (1, 0x1050, 500)]), [(0, 0x1040)]);
        assert_eq!(targets(&[(1, 0x1040, 1_000_000), (0, 0x1050, 900_000)]).len(), 2);
    }

    #[test]
    fn adopted_targets_have_the_counts_of_the_site() {
        let program = Program::from_text(TEXT).unwrap();
        let (mut counted, mut traced) = (Profile::empty(&program), Profile::empty(&program));
        counted.calls = vec![1_000_000, 0, 7];
        traced.calls = vec![10, 10, 10];
        traced.add_target(CallId(0), Svma::new(0x1040), 9);
        traced.add_target(CallId(1), Svma::new(0x1040), 10);
        counted.adopt_targets(&traced);
        assert_eq!(counted.targets.len(), 1, "what did not run has no targets");
        assert_eq!(counted.targets[&CallId(0)], [(Svma::new(0x1040), 900_000)].into());
        assert_eq!(promotions(&program, &counted, &PromotionLimits::default()).len(), 1);
    }

    #[test]
    fn a_site_that_ran_more_often_than_its_targets_tell_is_not_promoted() {
        let program = Program::from_text(TEXT).unwrap();
        let mut profile = Profile::empty(&program);
        profile.add_target(CallId(0), Svma::new(0x1040), 500);
        profile.calls[0] = 1000;
        assert_eq!(promotions(&program, &profile, &PromotionLimits::default()), []);
    }
}
