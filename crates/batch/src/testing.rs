//! What tests give the readers of the cache: any bytes in the place of a note, and of counts.

use crate::cache::Entry;
use crate::job::{counts_in, overlap};
use crate::observe::Usage;
use crate::progress::{Progress, Step};
use crate::suspended::Suspended;
use crate::usage::{Past, Stored};
use restitch_preload::{COUNTS_HEADER, Counts};
use std::path::Path;

/// Small notes of each kind, to begin with.
pub fn notes() -> Vec<Vec<u8>> {
    let build = super::build::Build { id: "0a0b".into(), content: 7 };
    let mut suspended =
        Suspended::new("/bin/a".into(), build, [(4096, 3)].into(), Progress::of(Some(1 << 40)));
    suspended.missing = vec![1, 2];
    let entry = r#"{"path":"/bin/a","build_id":"0a0b","profiled_runs":4,"profiled_at":1790000000,"cost_seconds":0.5,"layout":"original","content":7,
        "original":{"runs":4,"samples":1000,"pairs":249000,"coarse":0},"trial":{"begun":true,"held_out":{"runs":30,"seconds":3.0,"squares":0.4},
        "optimized":{"runs":300,"seconds":31.0,"squares":3.4},"outcome":null}}"#;
    let usage = r#"{"format":1,"modules":{"/bin/a":{"file":[1,2],"last":3,"samples":4,"begun":5,"ended":6,"whole":7,"pairs":8,"wanted":true,
        "uncounted":9,"runs":10,"places":{"4096":11}}}}"#;
    vec![serde_json::to_vec(&suspended).unwrap_or_default(), entry.into(), usage.into()]
}

/// A note of whatever kind: what reads it and computes with it neither panics nor goes on for ever.
pub fn read_note(data: &[u8]) {
    if let Some(suspended) = Suspended::parse(data, "0a0b") {
        grow(suspended.progress.clone(), suspended.counted);
        let _ = suspended.original.plus(suspended.original);
    }
    if let Ok(mut entry) = serde_json::from_slice::<Entry>(data) {
        entry.trial.look(entry.optimized.runs, false);
        let _ = (
            entry.trial.said_of(Path::new("a")),
            super::is_old(&entry),
            entry.original.plus(entry.optimized),
        );
        let _ = Usage::default().plus(entry.original);
    }
    if let Ok(stored) = serde_json::from_slice::<Stored>(data) {
        for past in stored.modules.values() {
            let Past { totals, .. } = past;
            let both = totals.plus(*totals);
            let _ = (both.typical(), both.whole_runs(), both.seconds(), both.is_known(), past.places());
        }
    }
}

/// A counts file of whatever content: the counting comes to an end, and sums of what is taken from it do not
/// overflow.
pub fn read_counts(data: &[u8]) {
    let _ = Counts::decode(data);
    let word = |at: u64| {
        let bytes = data.get(at as usize..at as usize + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let values = counts_in(data.get(COUNTS_HEADER as usize..).unwrap_or_default());
    let sum = values.iter().sum::<u64>();
    assert!((0.0..=1.001).contains(&overlap(&values, &values)), "{sum}");
    let mut progress = Progress::default();
    progress.next(word(Counts::STARTED_AT), word(Counts::ENDED_AT), values.len() as f64);
    grow(progress, word(Counts::STARTED_AT));
}

/// Lets more runs count until that is enough.
fn grow(mut progress: Progress, runs: u64) {
    for _ in 0..100 {
        let more = match progress.next(runs, runs, runs as f64) {
            Step::Grant(more) => more,
            Step::Compare if !progress.is_enough(Some(0.0)) => progress.double(),
            _ => return,
        };
        progress.grant(more);
    }
}
