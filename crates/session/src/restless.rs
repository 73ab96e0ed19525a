//! Modules that the program closes, or opens elsewhere, while it is attached to.
//!
//! A server that reads its configuration anew does that once, and is attached to from the beginning again. A program whose modules come and go all the
//! time would have no end of it: those are left out then.

use crate::left_out::LeftOut;
use crate::modules::Chosen;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Modules that have moved while they were worked on.
#[derive(Debug, Default)]
pub(crate) struct Restless {
    modules: BTreeSet<PathBuf>,
    /// How often that has happened.
    times: u32,
}

impl Restless {
    /// After so many times they are modules that come and go.
    const MOST: u32 = 2;

    /// Whether beginning again has a point.
    pub fn may_begin_again(&self) -> bool {
        self.times < Self::MOST
    }

    /// Adds modules that were found to have moved.
    pub fn add(&mut self, modules: Vec<PathBuf>) {
        self.modules.extend(modules);
        self.times += 1;
    }

    /// Takes modules that come and go out of `chosen`.
    pub fn leave_out(&self, chosen: &mut Vec<Chosen>, left_out: &mut LeftOut) {
        const WHY: &str = "the program closes it, or opens it elsewhere, time and again while it is attached to, so it stays as it is";
        if self.may_begin_again() {
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
            "the program has closed {first}{others}, or opened it elsewhere, meanwhile: it was attached to from the beginning again, {times}"
        ))
    }
}
