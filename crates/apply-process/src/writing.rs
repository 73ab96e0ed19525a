//! Writing redirects into the stopped process, page by page.
//!
//! A counting version of a large program has tens of thousands of redirects. Written one by one they cost two system
//! calls each; read, changed and written page by page they cost little more than the copies of the pages that the
//! kernel has to make anyway. A page is written in one piece, and no redirect crosses pages, so a kill leaves whole
//! redirects only.

use crate::ProcessError;
use crate::install::{Prepared, SwitchReport};
use crate::live::Live;
use crate::patches::LEN;
use restitch_address::Avma;
use restitch_tracee::Stopped;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: u64 = 4096;
/// Most bytes that one write call takes.
const MOST_RUN: usize = 1 << 20;

/// What one place is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Site {
    original: [u8; LEN],
    now: [u8; LEN],
}

/// Pages that were written, as they have to read back.
pub(crate) struct Written {
    pages: Vec<(Avma, Vec<u8>)>,
}

/// Writes what has to change and brings the journal up to date.
///
/// Restores go first within a page: an old redirect may overlap a new one.
pub(crate) fn write_patches(
    live: &mut Live,
    stopped: &Stopped,
    prepared: &Prepared<'_>,
    forbidden: &BTreeSet<Avma>,
    report: &mut SwitchReport,
) -> Result<Written, ProcessError> {
    let sites = sites(live, prepared, forbidden);
    let mut starts: Vec<Avma> = sites.iter().map(|(at, _)| at.align_down(PAGE)).collect();
    starts.dedup();
    let requests: Vec<(Avma, usize)> = starts.iter().map(|s| (*s, PAGE as usize)).collect();
    let mut contents = stopped.memory().read_many(&requests);
    let mut dirty = vec![false; starts.len()];
    let mut page = 0;
    let mut wishes: Vec<(Avma, [u8; LEN])> = Vec::new();
    for (at, site) in &sites {
        while starts[page] != at.align_down(PAGE) {
            page += 1;
        }
        let Some(bytes) = &mut contents[page] else {
            stopped.memory().read_vec(starts[page], PAGE as usize)?;
            continue;
        };
        let from = at.offset_from(starts[page]) as usize;
        let place = &mut bytes[from..from + LEN];
        if place != site.now {
            let found: [u8; LEN] = place.try_into().expect("a slice of that length");
            refuse_foreign(live, *at, found, site.original)?;
            place.copy_from_slice(&site.original);
            dirty[page] = true;
        }
        match site.now == site.original {
            true => report.restored += 1,
            false => wishes.push((*at, site.now)),
        }
    }
    page = 0;
    for (at, now) in wishes {
        while starts[page] != at.align_down(PAGE) {
            page += 1;
        }
        if let Some(bytes) = &mut contents[page] {
            let from = at.offset_from(starts[page]) as usize;
            bytes[from..from + LEN].copy_from_slice(&now);
            report.patched += 1;
        }
    }
    report.left_out += forbidden.len();
    let pages: Vec<(Avma, Vec<u8>)> = starts
        .into_iter()
        .zip(contents)
        .zip(dirty)
        .filter_map(|((start, bytes), dirty)| Some((start, bytes.filter(|_| dirty)?)))
        .collect();
    write_runs(stopped, &pages)?;
    let wanted = &prepared.patches.wanted;
    live.journal.patches.retain(|p| {
        let at = Avma::new(p.at);
        wanted.contains_key(&at) && !forbidden.contains(&at)
    });
    Ok(Written { pages })
}

/// All places that may change, sorted: what the journal lists goes back unless it is wanted.
fn sites(live: &Live, prepared: &Prepared<'_>, forbidden: &BTreeSet<Avma>) -> Vec<(Avma, Site)> {
    let mut out: BTreeMap<Avma, Site> = BTreeMap::new();
    for p in &live.journal.patches {
        out.insert(Avma::new(p.at), Site { original: p.original, now: p.original });
    }
    for (&at, &(original, now)) in prepared.patches.wanted.iter().filter(|(at, _)| !forbidden.contains(at)) {
        out.insert(at, Site { original, now });
    }
    out.into_iter().collect()
}

/// Writes `jumps` into a version, page by page. A jump that crosses pages is left out.
pub(crate) fn write_jumps(stopped: &Stopped, jumps: &[(Avma, [u8; LEN])]) -> Result<(), ProcessError> {
    let mut by_page: BTreeMap<Avma, Vec<(usize, [u8; LEN])>> = BTreeMap::new();
    for (at, bytes) in jumps {
        let page = at.align_down(PAGE);
        let from = at.offset_from(page) as usize;
        if from + LEN <= PAGE as usize {
            by_page.entry(page).or_default().push((from, *bytes));
        }
    }
    let requests: Vec<(Avma, usize)> = by_page.keys().map(|page| (*page, PAGE as usize)).collect();
    let contents = stopped.memory().read_many(&requests);
    let mut pages = Vec::with_capacity(contents.len());
    for ((page, jumps), content) in by_page.into_iter().zip(contents) {
        let Some(mut content) = content else { continue };
        for (from, bytes) in jumps {
            content[from..from + LEN].copy_from_slice(&bytes);
        }
        pages.push((page, content));
    }
    write_runs(stopped, &pages)
}

/// Writes neighbouring pages together.
fn write_runs(stopped: &Stopped, pages: &[(Avma, Vec<u8>)]) -> Result<(), ProcessError> {
    let mut run: (Avma, Vec<u8>) = (Avma::new(0), Vec::new());
    for (start, bytes) in pages {
        let follows = run.0 + run.1.len() as u64 == *start;
        if !follows || run.1.len() >= MOST_RUN {
            flush(stopped, &run)?;
            run = (*start, Vec::new());
        }
        run.1.extend_from_slice(bytes);
    }
    flush(stopped, &run)
}

fn flush(stopped: &Stopped, run: &(Avma, Vec<u8>)) -> Result<(), ProcessError> {
    if !run.1.is_empty() {
        stopped.memory().write(run.0, &run.1)?;
    }
    Ok(())
}

/// What is there has to be the file's bytes or a jump of ours into a version.
fn refuse_foreign(live: &Live, at: Avma, found: [u8; LEN], original: [u8; LEN]) -> Result<(), ProcessError> {
    let displacement = i32::from_le_bytes([found[1], found[2], found[3], found[4]]);
    let to = (at + LEN as u64).offset(displacement.into());
    let ours = found[0] == 0xe9 && live.journal.versions.iter().any(|v| v.range().contains(to));
    if found == original || ours {
        return Ok(());
    }
    Err(ProcessError::Foreign { pid: live.target.pid(), at, found: found.into(), expected: original.into() })
}

/// Reads back what was written.
pub(crate) fn verify(live: &Live, stopped: &Stopped, written: &Written) -> Result<(), ProcessError> {
    let requests: Vec<_> = written.pages.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
    let found = stopped.memory().read_many(&requests);
    let wrong: Vec<Avma> = found
        .into_iter()
        .zip(&written.pages)
        .filter(|(found, (_, bytes))| found.as_deref() != Some(&bytes[..]))
        .map(|(_, (at, _))| *at)
        .collect();
    match wrong.first() {
        None => Ok(()),
        Some(&at) => Err(ProcessError::NotVerified { pid: live.target.pid(), count: wrong.len(), at }),
    }
}
