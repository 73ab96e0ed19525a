//! What becomes of records once they are taken: they are decoded and handed out.
//!
//! Problem: decoding a burst takes ten times as long as beginning one, and the thread that begins bursts goes
//! before all others for as long as it holds threads: where the program fills all processors, it would be
//! kept from running while records are decoded, and nobody would count that. So another thread, an ordinary
//! one, decodes.

use super::{BurstCode, BurstEnd, BurstReport};
use crate::report::{Record, RecordEnd, Sink};
use restitch_address::Avma;
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

/// Decodes the bursts of process `pid` and hands them out until there will be no more. What they say, and
/// nothing else, is in the report.
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
            sink.record(Record { pid, tid, branches: &branches, end });
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
