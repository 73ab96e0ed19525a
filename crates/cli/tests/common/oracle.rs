//! Whether `restitch status` tells what is in a process.

use super::{PATIENCE, Restitch, code, look};
use restitch_testkit::wait_until;
use std::collections::{BTreeMap, BTreeSet};

/// What `status` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub original: bool,
    pub places: usize,
    /// Number, kind, whether retired.
    pub versions: Vec<(u32, String, bool)>,
    pub left_counting: bool,
}

/// Reads the output for one process.
pub fn parse(text: &str) -> Said {
    let mut said = Said::default();
    for line in text.lines() {
        said.original |= line.ends_with(": original code");
        said.left_counting |= line.contains("left in a counting version");
        if let Some(rest) = line.strip_prefix("  version ") {
            let number = rest.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
            let kind = if line.contains(": counting,") { "counting" } else { "optimized" };
            said.versions.push((number, kind.to_owned(), line.ends_with(", retired")));
        } else if let Some(rest) =
            line.strip_suffix(" places patched").or(line.strip_suffix(" place patched"))
        {
            let number = rest.rsplit(' ').next().unwrap_or_default().replace(',', "");
            said.places = number.parse().expect("a number");
        }
    }
    said
}

/// Asserts that `status` says of process `pid` what its memory says. No restitch works on it; what a thread
/// that a killed one had borrowed still does by itself, when it gets a processor, is waited for.
#[track_caller]
pub fn assert_truthful(restitch: &Restitch, pid: u32, when: &str) {
    let memory = || (look::ours(pid), look::differences(pid));
    let at_rest = || {
        let before = memory();
        let status = restitch.status(pid);
        let after = memory();
        (before == after).then_some((status, after))
    };
    let (status, (mapped, mut places)) = wait_until(PATIENCE, at_rest).expect("it comes to rest");
    status.expect(code::DONE);
    let said = parse(&status.stdout);
    let in_versions = |to: u64| mapped.iter().any(|l| l.start <= to && to < l.end);
    places.retain(|p| p.target().is_some_and(in_versions));
    let told = format!("{when}: {}\n{} places differ, mapped: {mapped:?}", status.stdout, places.len());
    assert_eq!(said.original, places.is_empty() && mapped.is_empty(), "{told}");
    assert_eq!(said.places > 0, !places.is_empty(), "{told}");
    let numbers = numbers(restitch);
    let in_force: BTreeSet<u32> = places
        .iter()
        .filter_map(|p| p.target())
        .filter_map(|to| numbers.get(&mapped.iter().find(|l| l.start <= to && to < l.end)?.start).copied())
        .collect();
    for version in in_force.iter() {
        let line = said.versions.iter().find(|v| v.0 == *version);
        assert!(line.is_some_and(|v| !v.2), "version {version} is in force; {told}");
    }
    let counting = said.versions.iter().any(|v| in_force.contains(&v.0) && v.1 == "counting");
    assert_eq!(said.left_counting, counting, "{told}");
}

/// The numbers of versions by their first addresses, from the journals.
fn numbers(restitch: &Restitch) -> BTreeMap<u64, u32> {
    let mut out = BTreeMap::new();
    for path in restitch.journals() {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let journal: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        for v in journal["versions"].as_array().into_iter().flatten() {
            if let (Some(start), Some(number)) = (v["start"].as_u64(), v["number"].as_u64()) {
                out.insert(start, number as u32);
            }
        }
    }
    out
}
