//! Program phases: the ways in which a process is known to work, and whether there is a reason to lay out
//! again.
//!
//! **Idea.** Each layout is made of all ways of working that are known, so only one that nobody knows is a
//! reason, and only when it lasts: two sets of samples after one another that are like each other and like
//! none before. The other reason is that a process works as ever and does less of it in the new layout:
//! modules were opened anew, or processes have started that have the original code.
//!
//! A new layout moves samples, too: what is fast now has fewer, and within functions they are elsewhere. So
//! lines of code, which tell what an interpreter does, are compared only under the same layout, functions
//! always; and the first set of samples after a layout is the same work where about as much of it as was to
//! be expected is in the new layout.

use crate::earlier_profiles::with_earlier;
use crate::permutation_test::SampleSet;
use restitch_profile::ProfileFile;

/// So many ways of working are remembered; those not seen for longest are forgotten, and lose their part of
/// the layout with the next one.
const MOST: usize = 4;
/// Of the samples so much fewer have to be in the new layout, twice after one another.
const LEAST_OUTSIDE: f64 = 0.10;
/// In the first samples after a layout so much less of the work than was expected may be in it.
const UNEXPECTED: f64 = 0.25;

/// Where samples are: in which functions, and in which lines of code.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub functions: SampleSet,
    pub lines: SampleSet,
}

impl Seen {
    pub fn learn(&mut self, more: &Seen) {
        self.functions.learn(&more.functions);
        self.lines.learn(&more.lines);
    }

    fn differs_from(&self, other: &Seen) -> bool {
        self.functions.differs_from(&other.functions) || self.lines.differs_from(&other.lines)
    }
}

/// A way of working.
#[derive(Debug, Default)]
struct ProgramPhase {
    /// Where the samples are. The lines are those under the layout that is in force; empty if it was not seen
    /// there.
    shape: Seen,
    /// What was counted of it, if something was.
    profile: Option<ProfileFile>,
    /// The share of samples in the layout that is in force, when it was first seen there.
    in_versions: Option<f64>,
    /// When it was seen, in sets of samples.
    seen: u64,
}

/// What a set of samples says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Finding {
    /// It works as is known.
    Known,
    /// Nothing can be said before there are more.
    Unsure,
    /// It works in a way that nobody knew.
    Other,
    /// It works as is known, with such a share of it in the layout now, and such a share before.
    Outside { now: f64, before: f64 },
}

/// What is known of a process.
#[derive(Debug, Default)]
pub(crate) struct ProgramPhases {
    known: Vec<ProgramPhase>,
    /// The one that was seen last, among the known ones.
    current: Option<usize>,
    /// A set of samples that is like none that is known.
    other: Option<Seen>,
    /// A layout was just made for the current one, of whose samples such a share is to be in it.
    expected: Option<f64>,
    /// Sets of samples after one another that had too few in the layout.
    outside: u32,
    sets: u64,
}

impl ProgramPhases {
    /// Takes in a set of samples, of which such a share was in the layout.
    pub fn look(&mut self, samples: &Seen, in_versions: f64) -> Finding {
        self.sets += 1;
        let expected = self.expected.take();
        let mut found = self.known.iter().position(|known| !samples.differs_from(&known.shape));
        if let (None, Some(current), Some(expected)) = (found, self.current, expected)
            && in_versions >= expected - UNEXPECTED
        {
            self.known[current].shape = Seen::default();
            found = Some(current);
        }
        let Some(index) = found else {
            (self.current, self.outside) = (None, 0);
            return match &mut self.other {
                Some(other) if !samples.differs_from(other) => {
                    other.learn(samples);
                    Finding::Other
                }
                other => {
                    *other = Some(samples.clone());
                    Finding::Unsure
                }
            };
        };
        let known = &mut self.known[index];
        known.shape.learn(samples);
        known.seen = self.sets;
        (self.current, self.other) = (Some(index), None);
        let before = *known.in_versions.get_or_insert(in_versions);
        if before - in_versions < LEAST_OUTSIDE {
            self.outside = 0;
            return Finding::Known;
        }
        self.outside += 1;
        match self.outside {
            1 => Finding::Unsure,
            _ => Finding::Outside { now: in_versions, before },
        }
    }

    /// A layout is in force for which this was counted. The samples before the counting, and the share of
    /// them that is in code that the layout has. What was counted of the same way of working before counts
    /// half from now on: it differs somewhat from time to time.
    pub fn optimized(&mut self, samples: Seen, expected: f64, profile: ProfileFile) {
        let known = self.tried(samples);
        let before = self.known[known].profile.take();
        self.known[known].profile = Some(match before {
            Some(before) => with_earlier(&profile, &[&before]),
            None => profile,
        });
        self.expected = Some(expected);
    }

    /// No layout could be made of what it does now: that has no point until it does something else.
    pub fn not_optimized(&mut self) {
        match self.other.clone() {
            Some(other) => drop(self.tried(other)),
            None => drop(self.begin_anew()),
        }
    }

    /// Lines are others under another layout. What the process did last, if nobody knew it.
    fn begin_anew(&mut self) -> Option<Seen> {
        self.outside = 0;
        for known in &mut self.known {
            known.in_versions = None;
            known.shape.lines = SampleSet::default();
        }
        self.other.take()
    }

    /// The number of the way of working of these samples, from before the layout, which is the current one
    /// from now on.
    fn tried(&mut self, samples: Seen) -> usize {
        let alike = |other: &Seen| !samples.functions.differs_from(&other.functions);
        let is_other = self.begin_anew().is_some_and(|other| alike(&other));
        let known = self.current.or_else(|| self.known.iter().position(|known| alike(&known.shape)));
        let index = known.filter(|_| !is_other).unwrap_or_else(|| {
            let shape = Seen { lines: SampleSet::default(), ..samples };
            self.known.push(ProgramPhase { shape, seen: self.sets, ..ProgramPhase::default() });
            self.forget_one();
            self.known.len() - 1
        });
        self.current = Some(index);
        index
    }

    /// Forgets the one that was not seen for longest if there are too many; not the newest.
    fn forget_one(&mut self) {
        let newest = self.known.len() - 1;
        if self.known.len() > MOST
            && let Some(oldest) = (0..newest).min_by_key(|i| self.known[*i].seen)
        {
            self.known.remove(oldest);
        }
    }

    /// What was counted of the known ways of working.
    pub fn profiles(&self) -> Vec<&ProfileFile> {
        self.known.iter().filter_map(|known| known.profile.as_ref()).collect()
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Sets of samples that were taken in.
    pub fn sets(&self) -> u64 {
        self.sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_address::Svma;
    use restitch_profile::ModuleProfile;

    /// A thousand samples of the way of working number `n`.
    fn work(n: u64) -> Seen {
        within(n, 0)
    }

    /// The same, in other lines of the same functions.
    fn within(n: u64, line: u64) -> Seen {
        let mut seen = Seen::default();
        for i in 0..100 {
            seen.functions.add(0, n * 1000 + i / 2, 10);
            seen.lines.add(0, (n * 1000 + i) * 10 + line, 10);
        }
        seen
    }

    fn profile(n: u8) -> ProfileFile {
        let blocks = [(Svma::new(0x1000), 1)].into();
        ProfileFile { modules: vec![ModuleProfile { build_id: vec![n], blocks, ..ModuleProfile::default() }] }
    }

    fn ids(phases: &ProgramPhases) -> Vec<u8> {
        phases.profiles().iter().flat_map(|p| &p.modules).map(|m| m.build_id[0]).collect()
    }

    #[test]
    fn what_lasts_and_nobody_knew_is_a_reason_once() {
        let mut all = ProgramPhases::default();
        all.optimized(work(0), 0.9, profile(0));
        assert_eq!(all.look(&work(0), 0.9), Finding::Known);
        assert_eq!(all.look(&work(1), 0.1), Finding::Unsure);
        assert_eq!(all.look(&work(0), 0.9), Finding::Known);
        assert_eq!(all.look(&work(1), 0.1), Finding::Unsure, "it has not lasted");
        assert_eq!(all.look(&work(2), 0.1), Finding::Unsure, "nor has this");
        assert_eq!(all.look(&work(2), 0.1), Finding::Other);
        assert_eq!(ids(&all), [0]);
        all.optimized(work(2), 0.9, profile(2));
        for _ in 0..3 {
            assert_eq!(all.look(&work(2), 0.8), Finding::Known);
            assert_eq!(all.look(&work(0), 0.8), Finding::Known);
            assert_eq!(ids(&all), [0, 2]);
        }
        assert_eq!((all.len(), all.sets()), (2, 12));
    }

    #[test]
    fn what_comes_first_is_what_was_optimized_if_it_is_in_the_layout() {
        let mut all = ProgramPhases::default();
        all.optimized(work(0), 0.9, profile(0));
        assert_eq!(all.look(&work(1), 0.7), Finding::Known, "the samples are elsewhere now");
        assert_eq!(all.look(&work(1), 0.7), Finding::Known);
        assert_eq!((all.look(&work(0), 0.7), all.look(&work(0), 0.7)), (Finding::Unsure, Finding::Other));
        let mut all = ProgramPhases::default();
        all.optimized(work(0), 0.9, profile(0));
        assert_eq!(all.look(&work(1), 0.6), Finding::Unsure, "it does something else already");
        assert_eq!(all.look(&work(1), 0.9), Finding::Other);
        assert_eq!(all.look(&work(0), 0.9), Finding::Known);
    }

    #[test]
    fn lines_are_compared_under_the_same_layout_only() {
        let mut all = ProgramPhases::default();
        all.optimized(within(0, 1), 0.9, profile(0));
        assert_eq!(all.look(&within(0, 2), 0.9), Finding::Known);
        assert_eq!(all.look(&within(0, 3), 0.9), Finding::Unsure);
        assert_eq!(all.look(&within(0, 3), 0.9), Finding::Other);
        all.optimized(within(0, 4), 0.9, profile(1));
        assert_eq!(all.len(), 2, "two ways of working, with the same functions");
        for _ in 0..2 {
            assert_eq!(all.look(&within(0, 5), 0.9), Finding::Known);
            assert_eq!(all.look(&within(0, 6), 0.9), Finding::Known);
        }
        assert_eq!(all.look(&within(0, 7), 0.9), Finding::Unsure);
    }

    #[test]
    fn a_process_that_does_nothing_at_first_is_optimized_when_it_works() {
        let mut all = ProgramPhases::default();
        assert_eq!(all.look(&work(3), 0.0), Finding::Unsure);
        assert_eq!(all.look(&work(3), 0.0), Finding::Other);
        assert_eq!(all.look(&work(3), 0.0), Finding::Other, "as long as nothing is done about it");
        all.not_optimized();
        assert_eq!(all.look(&work(3), 0.0), Finding::Known);
        assert!(all.profiles().is_empty());
    }

    #[test]
    fn a_layout_that_less_of_the_work_is_in_is_a_reason() {
        let mut all = ProgramPhases::default();
        all.optimized(work(0), 0.9, profile(0));
        assert_eq!(all.look(&work(0), 0.9), Finding::Known);
        assert_eq!(all.look(&work(0), 0.85), Finding::Known);
        assert_eq!(all.look(&work(0), 0.5), Finding::Unsure);
        assert_eq!(all.look(&work(0), 0.9), Finding::Known);
        assert_eq!(all.look(&work(0), 0.5), Finding::Unsure);
        assert_eq!(all.look(&work(0), 0.4), Finding::Outside { now: 0.4, before: 0.9 });
        all.optimized(work(0), 0.9, profile(1));
        assert_eq!(all.len(), 1, "it is the same way of working");
        assert_eq!((all.profiles().len(), ids(&all)), (1, vec![1, 0]), "one profile of both times");
        assert_eq!(all.look(&work(0), 0.6), Finding::Known, "more was not to be had");
    }

    #[test]
    fn what_was_not_seen_for_long_is_forgotten() {
        let mut all = ProgramPhases::default();
        all.optimized(work(0), 0.9, profile(0));
        all.look(&work(0), 0.9);
        for n in 1..=6 {
            all.look(&work(n), 0.1);
            assert_eq!(all.look(&work(n), 0.1), Finding::Other);
            all.optimized(work(n), 0.9, profile(n as u8));
            assert_eq!(all.look(&work(0), 0.9), Finding::Known);
        }
        assert_eq!(all.len(), MOST);
        assert_eq!(all.look(&work(6), 0.9), Finding::Known);
        assert_eq!(ids(&all), [0, 4, 5, 6]);
        assert_eq!(all.look(&work(1), 0.1), Finding::Unsure);
        assert_eq!(all.look(&work(1), 0.1), Finding::Other);
    }
}
