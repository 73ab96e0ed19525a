//! The target's code, decoded as it is met.
//!
//! Code is read from the process itself, so patched code and the vdso are seen as they are. Only code that
//! the process cannot write is used: what a just-in-time compiler has made may change at any time. (The
//! vsyscall page cannot be read; the kernel returns from it by itself, and the record ends there.)

use crate::data::{Data, Pages};
use restitch_address::{Avma, AvmaRange, LoadBias, Svma};
use restitch_evaluate::{Code, Memory as Reader, Run};
use restitch_procfs::{self as procfs, Mapping, MappingName};
use restitch_tracee::Memory;
use restitch_x86::{Semantic, decode_semantic};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// How often the mappings are read again when unknown code is met.
const REFRESH: Duration = Duration::from_millis(250);
/// Bytes decoded at once.
const PIECE: usize = 192;

/// A piece of code whose contents do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Region {
    range: AvmaRange,
    inode: u64,
    offset: u64,
}

/// The code of one process.
#[derive(Debug)]
pub(crate) struct LiveCode {
    memory: Memory,
    regions: Vec<Region>,
    runs: Runs,
    /// Bytes of code, kept as long as the runs.
    pages: Pages,
    read_at: Instant,
}

impl LiveCode {
    pub fn open(pid: i32) -> Result<Self, crate::error::BranchTraceError> {
        let memory = Memory::open_read_only(pid)?;
        let regions = regions(&procfs::maps(pid)?);
        Ok(Self { memory, regions, runs: Runs::default(), pages: Pages::default(), read_at: Instant::now() })
    }

    /// Looks again at what is mapped; forgets decoded code if something that was there is gone or another.
    fn refresh(&mut self) {
        self.read_at = Instant::now();
        let Ok(maps) = procfs::maps(self.memory.pid()) else { return };
        let now = regions(&maps);
        if !self.regions.iter().all(|old| now.contains(old)) {
            self.runs.clear();
            self.pages.clear();
        }
        self.regions = now;
    }

    /// Looks again if it has been a while.
    pub fn refresh_now_and_then(&mut self) {
        if self.read_at.elapsed() > 4 * REFRESH {
            self.refresh();
        }
    }

    fn region_at(&self, at: Avma) -> Option<&Region> {
        let i = self.regions.partition_point(|r| r.range.start <= at).checked_sub(1)?;
        self.regions.get(i).filter(|r| r.range.contains(at))
    }

    /// Decodes the run at `at` and keeps it.
    fn decode(&mut self, at: Avma) -> Option<u32> {
        if self.region_at(at).is_none() && self.read_at.elapsed() > REFRESH {
            self.refresh();
        }
        let left = self.region_at(at)?.range.end.offset_from(at) as usize;
        let mut bytes = [0; PIECE];
        let bytes = &mut bytes[..left.min(PIECE)];
        let mut data = Data { pages: &mut self.pages, memory: &self.memory };
        data.read(at, bytes).then_some(())?;
        self.runs.add(at, |run| decode_run(bytes, at, run))
    }
}

/// Decodes up to the first branch. An instruction that the end of `bytes` may have cut off is left to the
/// next run.
fn decode_run(bytes: &[u8], at: Avma, run: &mut Vec<Semantic>) {
    let mut done = 0;
    while done < bytes.len() {
        // Live code is decoded in the coordinates of a module that is loaded where it is stated.
        let Some(semantic) = decode_semantic(&bytes[done..], Svma::new(at.get() + done as u64)) else {
            break;
        };
        done += usize::from(semantic.len);
        run.push(semantic);
        if semantic.is_transfer() {
            break;
        }
    }
}

impl Code for LiveCode {
    fn run(&mut self, at: Avma) -> Option<Run<'_>> {
        let run = match self.runs.find(at) {
            Some(run) => run,
            None => self.decode(at)?,
        };
        Some(Run { instructions: self.runs.enter(run), bias: LoadBias::default() })
    }
}

/// A run, and the two runs that were found behind it last.
#[derive(Debug, Clone, Copy)]
struct Decoded {
    /// Its instructions in [`Runs::instructions`].
    first: u32,
    end: u32,
    next: [(Avma, u32); 2],
}

/// The decoded runs. Evaluation is mostly waiting for what lies here, since caches forget it between two
/// records: instructions of one run stand together, behind those of the one that was met before, and a run
/// knows where those are that follow it.
#[derive(Debug, Default)]
struct Runs {
    instructions: Vec<Semantic>,
    runs: Vec<Decoded>,
    by_start: FxHashMap<Avma, u32>,
    /// The run that was entered last.
    last: Option<u32>,
}

/// Where no run begins.
const NOBODY: (Avma, u32) = (Avma::new(0), 0);

impl Runs {
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// The run that begins at `at`.
    fn find(&mut self, at: Avma) -> Option<u32> {
        let followed = self.last.map(|last| self.runs[last as usize].next).into_iter().flatten();
        if let Some((_, run)) = followed.filter(|next| *next != NOBODY).find(|(start, _)| *start == at) {
            return Some(run);
        }
        let run = *self.by_start.get(&at)?;
        if let Some(last) = self.last {
            let next = &mut self.runs[last as usize].next;
            *next = [(at, run), next[0]];
        }
        Some(run)
    }

    /// Keeps the run at `at` with the instructions that `decode` adds; none if there are none.
    fn add(&mut self, at: Avma, decode: impl FnOnce(&mut Vec<Semantic>)) -> Option<u32> {
        let first = self.instructions.len() as u32;
        decode(&mut self.instructions);
        let (end, run) = (self.instructions.len() as u32, self.runs.len() as u32);
        (end > first).then_some(())?;
        self.runs.push(Decoded { first, end, next: [NOBODY; 2] });
        self.by_start.insert(at, run);
        Some(run)
    }

    fn enter(&mut self, run: u32) -> &[Semantic] {
        self.last = Some(run);
        let Decoded { first, end, .. } = self.runs[run as usize];
        &self.instructions[first as usize..end as usize]
    }
}

fn regions(maps: &[Mapping]) -> Vec<Region> {
    let usable = |m: &&Mapping| {
        let fixed = matches!(m.name, MappingName::File { .. }) || m.is_special("[vdso]");
        fixed && m.permissions.execute && !m.permissions.write && !m.permissions.shared
    };
    let region = |m: &Mapping| Region { range: m.range, inode: m.inode, offset: m.offset.get() };
    maps.iter().filter(usable).map(region).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever came before, the run that is found at an address is the one that was kept for it.
        #[test]
        fn what_followed_a_run_is_no_other_run(order in proptest::collection::vec(0u64..12, 0..200), forget in 0usize..200) {
            let mut runs = Runs::default();
            let mut known = std::collections::BTreeMap::new();
            for (i, number) in order.into_iter().enumerate() {
                if i == forget {
                    (runs, known) = (Runs::default(), std::collections::BTreeMap::new());
                }
                let at = Avma::new(0x1000 * number);
                let code = vec![0x90; 1 + number as usize];
                prop_assert_eq!(runs.find(at), known.get(&at).copied());
                let run = match known.get(&at) {
                    Some(&run) => run,
                    None => runs.add(at, |to| decode_run(&code, at, to)).expect("it has instructions"),
                };
                known.insert(at, run);
                let found = runs.enter(run);
                prop_assert_eq!(found.len(), code.len());
                prop_assert_eq!(found[0].at, Svma::new(at.get()));
            }
        }
    }

    #[test]
    fn nothing_is_kept_where_nothing_is_decoded() {
        let mut runs = Runs::default();
        assert_eq!(runs.add(Avma::new(0x1000), |_| {}), None);
        assert_eq!(runs.find(Avma::new(0x1000)), None);
    }
}
