//! What becomes of records once they are taken: they are decoded and handed out.
//!
//! Problem: decoding a burst takes ten times as long as beginning one, and the thread that begins bursts goes before all others for as long as it
//! holds threads: where the program fills all processors, it would be kept from running while records are decoded, and nobody would
//! count that. So another thread, an ordinary one, decodes.

use super::{BurstCode, BurstEnd, BurstReport};
use crate::{Record, RecordEnd, Sink};
use restitch_address::Avma;
use restitch_evaluate::Taken;
use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

/// Places at which bursts ended or could not begin, at most so many of them.
const MOST_PLACES: usize = 4096;

/// A burst that is over, not decoded yet.
pub(super) struct Over {
    pub tid: i32,
    /// The original instruction at which it began.
    pub at: Avma,
    pub records: Vec<u8>,
    pub end: BurstEnd,
    /// Where an indirect branch went that had nowhere to go in the versions.
    pub target: Option<Avma>,
}

/// Decodes the bursts of process `pid` and hands them out until there will be no more. What they say, and nothing else, is in the report.
pub(super) fn read(pid: i32, code: &BurstCode, bursts: Receiver<Over>, sink: &mut dyn Sink) -> BurstReport {
    let mut report = BurstReport::default();
    for Over { tid, at, records, end, target } in bursts {
        let branches = code.branches(at, &records, end);
        let without_copy = matches!(end, BurstEnd::NoCopy | BurstEnd::NoTarget);
        if let Some(at) = target.or(branches.last().map(|b| b.to)).filter(|_| without_copy) {
            note(&mut report.ended_at, at);
        }
        *report.bursts.entry(end).or_default() += 1;
        report.branches += branches.len() as u64;
        let end = match end {
            BurstEnd::Full => RecordEnd::Full,
            BurstEnd::Signal => RecordEnd::Signal,
            _ => RecordEnd::UnknownCode,
        };
        if !branches.is_empty() {
            let density = density(&branches);
            sink.record(Record { pid, tid, branches: &branches, density, end });
        }
    }
    report
}

/// Counts a place, if there are not too many already.
pub(super) fn note(places: &mut BTreeMap<Avma, u64>, at: Avma) {
    if places.len() < MOST_PLACES || places.contains_key(&at) {
        *places.entry(at).or_default() += 1;
    }
}

/// Taken branches for each instruction that was executed between them, about: instructions have four bytes on average.
fn density(branches: &[Taken]) -> f64 {
    const INSTRUCTION: f64 = 4.0;
    const LONGEST_RUN: i64 = 1 << 16;
    let run = |pair: &[Taken]| {
        let len = pair[1].from.offset_from(pair[0].to);
        if (0..LONGEST_RUN).contains(&len) { len as f64 / INSTRUCTION + 1.0 } else { 1.0 }
    };
    let instructions: f64 = branches.windows(2).map(run).sum();
    branches.len().saturating_sub(1) as f64 / instructions.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn density_is_branches_for_each_instruction() {
        let taken = |from: u64, to: u64| Taken { from: Avma::new(from), to: Avma::new(to) };
        // Runs of 12 bytes before each branch: three instructions and the branch.
        let loops = [taken(12, 0), taken(12, 0), taken(12, 0)];
        assert!((density(&loops) - 0.25).abs() < 1e-9);
        assert!((density(&[taken(5, 5), taken(5, 5)]) - 1.0).abs() < 1e-9);
        assert_eq!(density(&loops[..1]), 0.0);
        assert_eq!(density(&[]), 0.0);
    }
}
