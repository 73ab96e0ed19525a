//! Replays records: which file was where when a sample was taken.

use std::collections::{BTreeMap, HashMap};

use restitch_address::FileOffset;

use super::records::{Event, Found, Mapping, Sample};
use super::{Fields, FileStack, ImportedModule, ImportedSamples, MappedFile};

/// A part of a process's address space: its end, the file offset of its start, and its file, if it is one.
#[derive(Clone, Copy)]
struct Area {
    end: u64,
    offset: u64,
    module: Option<usize>,
}

type AddressSpace = BTreeMap<u64, Area>;
type Place = (usize, FileOffset);

#[derive(Default)]
struct Replay {
    spaces: HashMap<u32, AddressSpace>,
    /// Mappings so far.
    mapped: u64,
    by_file: HashMap<MappedFile, usize>,
    samples: ImportedSamples,
    /// The files whose stacks are kept, and they.
    kept: Option<(Vec<MappedFile>, Vec<FileStack>)>,
}

pub(super) fn replay(data: &[u8], found: &Found) -> ImportedSamples {
    run(Replay::default(), data, found).samples
}

/// The branch stacks that have something of `files`.
pub(super) fn stacks(data: &[u8], found: &Found, files: &[MappedFile]) -> Vec<FileStack> {
    let replay = Replay { kept: Some((files.to_vec(), Vec::new())), ..Replay::default() };
    run(replay, data, found).kept.map(|(_, stacks)| stacks).unwrap_or_default()
}

fn run(mut replay: Replay, data: &[u8], found: &Found) -> Replay {
    for (_, event) in &found.events {
        match event {
            Event::Map(mapping) => replay.map(mapping),
            Event::Fork { pid, parent } if pid != parent => {
                let inherited = replay.spaces.get(parent).cloned().unwrap_or_default();
                replay.spaces.insert(*pid, inherited);
            }
            Event::Fork { .. } => {}
            Event::Exec { pid } => drop(replay.spaces.remove(pid)),
            Event::Sample(sample) => replay.sample(data, sample),
        }
    }
    let samples = &mut replay.samples;
    (samples.lost, samples.malformed) = (found.lost, found.malformed);
    replay
}

impl Replay {
    fn map(&mut self, mapping: &Mapping) {
        let module = is_a_file(&mapping.path).then(|| self.module(mapping));
        let end = mapping.start.saturating_add(mapping.len);
        let space = self.spaces.entry(mapping.pid).or_default();
        cut(space, mapping.start, end);
        if end > mapping.start {
            space.insert(mapping.start, Area { end, offset: mapping.page_offset, module });
        }
    }

    fn module(&mut self, mapping: &Mapping) -> usize {
        let Mapping { path, build_id, inode, .. } = mapping.clone();
        let file = MappedFile { path, build_id, inode };
        let modules = &mut self.samples.modules;
        let index = *self.by_file.entry(file.clone()).or_insert_with(|| {
            let (path, build_id) = (file.path.clone(), file.build_id.clone());
            modules.push(ImportedModule { path, build_id, file, ..ImportedModule::default() });
            modules.len() - 1
        });
        self.mapped += 1;
        modules[index].last_mapped = self.mapped;
        index
    }

    fn place(&self, pid: u32, address: u64) -> Option<Place> {
        let (start, area) = self.spaces.get(&pid)?.range(..=address).next_back()?;
        let offset = area.offset.wrapping_add(address - start);
        (address < area.end).then_some((area.module?, FileOffset::new(offset)))
    }

    fn sample(&mut self, data: &[u8], sample: &Sample) {
        self.samples.samples += 1;
        if let Some(ip) = sample.ip {
            match self.place(sample.pid, ip) {
                Some((module, at)) => {
                    *self.samples.modules[module].ips.entry(at).or_default() += 1;
                }
                None => self.samples.unmapped += 1,
            }
        }
        if sample.records == 0 {
            return;
        }
        self.samples.branch_stacks += 1;
        let mut fields = Fields::new(data.get(sample.stack..).unwrap_or_default());
        let mut newer: Option<(Place, Option<Place>)> = None;
        let mut places = Vec::new();
        for _ in 0..sample.records {
            let record = fields.u64().zip(fields.u64()).zip(fields.u64());
            let Some(((from, to), _flags)) = record else { break };
            let (from, to) = (self.place(sample.pid, from), self.place(sample.pid, to));
            if let (Some(from), Some(to)) = (from, to) {
                self.count_branch(from, to);
            }
            if let (Some(start), Some((end, out))) = (to, newer) {
                self.count_range(from, start, end, out);
            }
            newer = from.map(|from| (from, to));
            if self.kept.is_some() {
                places.push((from, to));
            }
        }
        self.keep(&places);
    }

    fn keep(&mut self, newest_first: &[(Option<Place>, Option<Place>)]) {
        let Some((files, stacks)) = &mut self.kept else { return };
        let modules = &self.samples.modules;
        let own = |place: Option<Place>| place.filter(|p| files.contains(&modules[p.0].file)).map(|p| p.1);
        let stack: FileStack = newest_first.iter().rev().map(|&(from, to)| (own(from), own(to))).collect();
        if stack.iter().any(|(from, to)| from.is_some() || to.is_some()) {
            stacks.push(stack);
        }
    }

    fn count_branch(&mut self, from: Place, to: Place) {
        if from.0 == to.0 {
            *self.samples.modules[from.0].branches.entry((from.1, to.1)).or_default() += 1;
        }
    }

    /// What ran between two branches: from the target of the older one to the newer one.
    fn count_range(&mut self, from: Option<Place>, start: Place, end: Place, out: Option<Place>) {
        if start.0 == end.0 && start.1 <= end.1 {
            let module = &mut self.samples.modules[start.0];
            *module.ranges.entry((start.1, end.1)).or_default() += 1;
            let own = |place: Option<Place>| place.filter(|p| p.0 == start.0).map(|p| p.1);
            module.turns.add((own(from), start.1, end.1, own(out)), 1);
        }
    }
}

/// Whether a mapping's name is a file: not `[vdso]`, `//anon`, or nameless memory.
fn is_a_file(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("//")
}

/// Removes `start..end` from the areas.
fn cut(space: &mut AddressSpace, start: u64, end: u64) {
    let touched: Vec<(u64, Area)> = space
        .range(..end)
        .rev()
        .take_while(|(_, area)| area.end > start)
        .map(|(at, area)| (*at, *area))
        .collect();
    for (at, area) in touched {
        space.remove(&at);
        if at < start {
            space.insert(at, Area { end: start, ..area });
        }
        if area.end > end {
            space.insert(end, Area { offset: area.offset.wrapping_add(end - at), ..area });
        }
    }
}
