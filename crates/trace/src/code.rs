//! The target's code, decoded as it is met.
//!
//! Code is read from the process itself, so patched code and the vdso are seen as they are. Only code that the process
//! cannot write is used: what a just-in-time compiler has made may change at any time. (The vsyscall page cannot
//! be read; the kernel returns from it by itself, and the record ends there.)

use crate::data::{Data, Pages};
use restitch_address::{Avma, AvmaRange, LoadBias, Svma};
use restitch_evaluate::{Code, Memory as Reader, Run};
use restitch_procfs::{self as procfs, Mapping, MappingName};
use restitch_tracee::Memory;
use restitch_x86::{Semantic, decode_semantic};
use std::collections::HashMap;
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
    runs: HashMap<Avma, Box<[Semantic]>>,
    /// Bytes of code, kept as long as the runs.
    pages: Pages,
    read_at: Instant,
}

impl LiveCode {
    pub fn open(pid: i32) -> Result<Self, crate::BranchTraceError> {
        let memory = Memory::open_read_only(pid)?;
        let regions = regions(&procfs::maps(pid)?);
        Ok(Self { memory, regions, runs: HashMap::new(), pages: Pages::default(), read_at: Instant::now() })
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

    fn decode(&mut self, at: Avma) -> Option<Box<[Semantic]>> {
        if self.region_at(at).is_none() && self.read_at.elapsed() > REFRESH {
            self.refresh();
        }
        let left = self.region_at(at)?.range.end.offset_from(at) as usize;
        let mut bytes = [0; PIECE];
        let bytes = &mut bytes[..left.min(PIECE)];
        let mut data = Data { pages: &mut self.pages, memory: &self.memory };
        data.read(at, bytes).then_some(())?;
        let run = decode_run(bytes, at);
        (!run.is_empty()).then_some(run)
    }
}

/// Decodes up to the first branch. An instruction that the end of `bytes` may have cut off is left to the next run.
fn decode_run(bytes: &[u8], at: Avma) -> Box<[Semantic]> {
    let (mut run, mut done) = (Vec::new(), 0);
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
    run.into()
}

impl Code for LiveCode {
    fn run(&mut self, at: Avma) -> Option<Run<'_>> {
        if !self.runs.contains_key(&at) {
            let run = self.decode(at)?;
            self.runs.insert(at, run);
        }
        self.runs.get(&at).map(|run| Run { instructions: run, bias: LoadBias::default() })
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
