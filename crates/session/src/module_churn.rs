//! Modules that the program closes, or opens elsewhere, while it is attached to or recorded, and places for
//! new code that it takes itself.
//!
//! A server that reads its configuration anew does that once, and is begun with once more. A program whose
//! modules come and go all the time would have no end of it: those are left out then. A place that the
//! program has mapped something in since it was chosen (a run time with many threads that allocate) is
//! another one the next time.

use crate::left_out::LeftOut;
use restitch_apply_process::ProcessError;
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::modules::Chosen;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Does `work` on a process, and begins again where its modules have moved meanwhile, or the places of
/// versions were taken, as often as that has a point.
///
/// # Errors
/// Those of `work`.
pub(crate) fn until_modules_stay<T>(
    watcher: &mut dyn Watcher,
    mut work: impl FnMut(&ModuleChurn, &mut dyn Watcher) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    let mut churn = ModuleChurn::default();
    loop {
        match work(&churn, watcher) {
            Err(SessionError::Process(ProcessError::Moved { pid, modules })) => {
                let begins_again = churn.add(&modules);
                let error = ProcessError::Moved { pid, modules };
                if !begins_again {
                    return Err(error.into());
                }
                watcher.note(&again(&error));
            }
            Err(SessionError::Process(error @ ProcessError::PlaceTaken { .. })) if churn.takes_place() => {
                watcher.note(&again(&error));
            }
            result => return result,
        }
    }
}

/// What is told in place of the advice to try again.
fn again(error: &ProcessError) -> String {
    let said = error.to_string();
    format!("{}; it begins again", said.trim_end_matches(". Try again"))
}

/// Modules that have moved while they were worked on.
#[derive(Debug, Default)]
pub(crate) struct ModuleChurn {
    modules: BTreeSet<PathBuf>,
    /// How often that has happened.
    times: u32,
    /// How often the program has taken the place of a version.
    places: u32,
}

impl ModuleChurn {
    /// After so many times they are modules that come and go.
    const BY_CHANCE: u32 = 2;
    /// So often it begins again where a place was taken.
    const MOST_PLACES: u32 = 3;
    /// In the end nothing but the program itself is left, which stays.
    const MOST: u32 = 8;

    /// Adds modules that were found to have moved. Whether beginning again has a point: it has not if they
    /// were left out already.
    fn add(&mut self, modules: &[PathBuf]) -> bool {
        let known = self.modules.len();
        self.modules.extend(modules.iter().cloned());
        self.times += 1;
        self.times <= Self::BY_CHANCE || self.modules.len() > known && self.times < Self::MOST
    }

    /// Notes that the program has taken a place. Whether beginning again has a point.
    fn takes_place(&mut self) -> bool {
        self.places += 1;
        self.places <= Self::MOST_PLACES
    }

    /// Takes modules that come and go out of `chosen`.
    pub fn leave_out(&self, chosen: &mut Vec<Chosen>, left_out: &mut LeftOut) {
        const WHY: &str =
            "the program closes it, or opens it elsewhere, time and again meanwhile, so it stays as it is";
        if self.times < Self::BY_CHANCE {
            return;
        }
        let comes_and_goes = |c: &mut Chosen| self.modules.contains(&c.path);
        chosen.extract_if(.., comes_and_goes).for_each(|c| left_out.add(&c.path, c.samples, WHY.into()));
    }

    /// What the user is to know of it in the end.
    pub fn warning(&self) -> Option<String> {
        let first = self.modules.first()?.display();
        let others = match self.modules.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let times = if self.times == 1 { "once".into() } else { format!("{} times", self.times) };
        Some(format!(
            "the program has closed {first}{others}, or opened it elsewhere, meanwhile: all was begun again, {times}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Notes(Vec<String>);

    impl Watcher for Notes {
        fn phase(&mut self, _: &str, _: Option<f64>) {}
        fn note(&mut self, text: &str) {
            self.0.push(text.into());
        }
    }

    #[test]
    fn places_that_are_taken_are_tried_elsewhere() {
        let taken = || Err(SessionError::Process(ProcessError::PlaceTaken { pid: 7 }));
        let (mut notes, mut tries) = (Notes(Vec::new()), 0);
        let done = until_modules_stay(&mut notes, |_, _| {
            tries += 1;
            if tries < 3 { taken() } else { Ok(tries) }
        });
        assert_eq!(done.expect("the third place"), 3);
        assert!(
            notes.0.len() == 2 && notes.0[0].ends_with("nothing was changed; it begins again"),
            "{:?}",
            notes.0
        );
        let mut tries = 0;
        let never = until_modules_stay(&mut notes, |_, _| -> Result<i32, _> {
            tries += 1;
            taken()
        });
        assert!(never.expect_err("no place").to_string().contains("Try again"));
        assert_eq!(tries, 4, "there is a bound");
    }

    #[test]
    fn beginning_again_has_an_end() {
        let [a, b] = ["/a", "/b"].map(|path| vec![PathBuf::from(path)]);
        let mut churn = ModuleChurn::default();
        assert_eq!(churn.warning(), None);
        assert!(churn.add(&a) && churn.add(&a), "by chance");
        assert!(churn.add(&[&a[..], &b].concat()), "one that nobody knew of");
        assert!(!churn.add(&a), "it was left out");
        assert!(churn.warning().is_some_and(|w| w.contains("/a and 1 more") && w.contains("4 times")));
        let mut churn = ModuleChurn::default();
        let begins_again = |n: u32| churn.add(&[format!("/{n}").into()]);
        assert_eq!((0..20).map(begins_again).position(|again| !again), Some(7), "there is a bound");
    }
}
