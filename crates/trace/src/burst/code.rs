//! Tracing versions in a process, and what can be looked up in them.

use super::BurstEnd;
use super::decode::Decoder;
use restitch_address::{Avma, AvmaRange, LoadBias, Svma};
use restitch_check::CheckedVersion;
use restitch_emit::window::{self, BurstBranch, BurstTable, Inserted, Leads};
use restitch_emit::{AddressMap, LARGE_PAGE, PieceKind};
use restitch_evaluate::Taken;
use restitch_procfs::{MappedFile, MapsFile, ProcError};
use restitch_tracee::collapse_pages;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tracing versions of a process and the memory that they share with it.
#[derive(Debug)]
pub struct BurstCode {
    tables: Arc<BurstTables>,
    /// The windows' file.
    file: File,
    /// Where to see whether modules that may go are still there.
    maps: MapsFile,
    /// By module: it is left out.
    gone: Vec<AtomicBool>,
}

/// A module and its checked tracing version.
#[derive(Debug, Clone, Copy)]
pub struct TracedModule<'a> {
    /// What is added to the module's addresses.
    pub bias: LoadBias,
    /// The version.
    pub version: &'a CheckedVersion,
    /// How to see that the module is still there, if it may go (`dlclose`).
    pub guard: Option<&'a Guard>,
}

/// What was mapped where a module is. If that has changed, other code may stand where table and versions
/// believe the module's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    seen: Vec<(Avma, MappedFile)>,
}

impl Guard {
    /// What is mapped now at the first and the last address of a module's code (it comes and goes as a
    /// whole); `None` if that is not what the module `has` at the address: another one may have come in its
    /// place since it was looked at.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn of(
        maps: &MapsFile,
        code: AvmaRange,
        has: impl Fn(Avma, &MappedFile) -> bool,
    ) -> Result<Option<Self>, ProcError> {
        let mut seen: Vec<(Avma, MappedFile)> = Vec::new();
        for at in [code.start, code.end.offset(-1)] {
            // Mostly all code is one mapping.
            if seen.iter().any(|(_, file)| file.range.contains(at)) {
                continue;
            }
            match maps.file_at(at)? {
                Some(file) if has(at, &file) => seen.push((at, file)),
                _ => return Ok(None),
            }
        }
        Ok(Some(Self { seen }))
    }

    /// Whether the same is mapped there still.
    fn holds(&self, maps: &MapsFile) -> bool {
        self.seen.iter().all(|(at, file)| maps.file_at(*at).is_ok_and(|found| found == Some(*file)))
    }
}

/// One module's version.
#[derive(Debug)]
struct BurstModule {
    bias: LoadBias,
    guard: Option<Guard>,
    range: AvmaRange,
    map: AddressMap,
    table: BurstTable,
    /// Copied stretches, and branches, by original address: address, length, the copy's address.
    ways_in: Vec<(Svma, u32, Svma)>,
}

/// What the window says of a burst.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub cursor: Avma,
    pub state: u32,
}

/// What there is to look up in tracing versions, the same in all processes that have them.
#[derive(Debug)]
pub struct BurstTables {
    modules: Vec<BurstModule>,
    /// The first module's window: records are addressed through it.
    window: Avma,
    table: Vec<u8>,
    /// What records mean.
    decoder: Decoder,
}

impl BurstTables {
    /// That of the versions.
    ///
    /// # Errors
    /// If there is no version, one is no tracing version or searches another window than the first one's, or
    /// their addresses are too many for the table.
    pub fn new(versions: &[TracedModule<'_>]) -> io::Result<Self> {
        let modules: Option<Vec<_>> = versions.iter().map(BurstModule::new).collect();
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let modules = modules.ok_or_else(|| wrong("a version records no branches"))?;
        let first = modules.first().ok_or_else(|| wrong("there is no tracing version"))?;
        let (window, bits) = (first.bias.to_actual(first.table.window.start), first.table.bits);
        let is_whole = first.table.window.len() == window::window_len(bits);
        let searches_it = |m: &BurstModule| m.table.table == window + window::TABLE && m.table.bits == bits;
        if !is_whole || !modules.iter().all(searches_it) {
            return Err(wrong("a version searches another table than that of the first one's window"));
        }
        let pairs: Vec<(Avma, Avma)> = modules.iter().flat_map(BurstModule::entries).collect();
        let table =
            window::table(&pairs, bits).ok_or_else(|| wrong("more addresses than the table can hold"))?;
        let biased: Vec<_> = modules.iter().map(|m| (m.bias, &m.table)).collect();
        let decoder = Decoder::new(&biased);
        Ok(Self { modules, window, table, decoder })
    }
}

impl BurstCode {
    /// The versions in process `pid`, and the file that all windows map, whose table it fills.
    ///
    /// # Errors
    /// If the file cannot be written, or the process has ended.
    pub fn new(pid: i32, tables: Arc<BurstTables>, file: File) -> io::Result<Self> {
        file.write_all_at(&tables.table, window::TABLE)?;
        let maps = MapsFile::open(pid).map_err(io::Error::other)?;
        let gone = tables.modules.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { tables, file, maps, gone })
    }

    /// Leaves the modules out from now on that are not where they were, or may go while a burst runs: where a
    /// process has other threads. (A thread in a burst makes no system call, so it unmaps nothing itself.)
    /// Asked in front of each burst, while no thread is in one and the one that is to begin is held. Only
    /// processes that share memory without being threads of each other are not seen.
    pub(crate) fn leave_out_what_may_go(&self, is_alone: bool) -> io::Result<()> {
        let mut news = false;
        for (module, gone) in self.tables.modules.iter().zip(&self.gone) {
            let stays = module.guard.as_ref().is_none_or(|guard| is_alone && guard.holds(&self.maps));
            news |= !stays && !gone.swap(true, Ordering::Relaxed);
        }
        if !news {
            return Ok(());
        }
        let mut table = self.tables.table.clone();
        for module in self.tables.modules.iter().zip(&self.gone).filter(|(_, gone)| is_set(gone)).map(|m| m.0)
        {
            module.entries().for_each(|(from, _)| window::strike(&mut table, from, module.table.bits));
        }
        self.file.write_all_at(&table, window::TABLE)
    }

    /// The modules that are left out, by number.
    pub(crate) fn left_out(&self) -> usize {
        self.gone.iter().filter(|gone| is_set(gone)).count()
    }

    /// Has the kernel make large pages of the windows, which are mapped in process `pid`. (It may refuse, as
    /// it does for users without privileges: look-ups are slower then, and no less right.)
    pub fn use_large_pages(&self, pid: i32) {
        for BurstModule { bias, table, .. } in &self.tables.modules {
            let window = AvmaRange::new(bias.to_actual(table.window.start), table.window.len());
            if window.start.align_up(LARGE_PAGE) == window.start && window.len() >= LARGE_PAGE {
                let _ = collapse_pages(pid, window);
            }
        }
    }

    /// Where the versions are.
    pub(crate) fn ranges(&self) -> Vec<AvmaRange> {
        self.tables.modules.iter().map(|m| m.range).collect()
    }

    /// The copy of the instruction at `at`.
    pub(crate) fn way_in(&self, at: Avma) -> Option<Avma> {
        let there = self.tables.modules.iter().zip(&self.gone).filter(|(_, gone)| !is_set(gone));
        there.map(|(module, _)| module).find_map(|m| m.way_in(at))
    }

    /// What a thread that stands in a version at `at` has to be given back.
    pub(crate) fn inserted(&self, at: Avma) -> Option<Inserted> {
        self.tables.modules.iter().find_map(|m| m.table.inserted_at(m.bias.to_stated(at)).copied())
    }

    /// The original address that leaving at `at` in the given way goes to.
    pub(crate) fn leads(&self, at: Avma, leads: Leads, rax: u64) -> io::Result<Option<Avma>> {
        let module = self.tables.modules.iter().find(|m| m.range.contains(at));
        let site = |at: Avma| {
            let module = self.tables.modules.iter().find(|m| m.range.contains(at))?;
            match module.table.inserted_at(module.bias.to_stated(at))?.leads {
                Leads::To(to) => Some(module.bias.to_actual(to)),
                _ => None,
            }
        };
        Ok(match leads {
            Leads::To(to) => module.map(|m| m.bias.to_actual(to)),
            Leads::ToRax => site(Avma::new(rax)),
            Leads::ToSite => site(Avma::new(self.word(window::SITE)?)),
            Leads::ToOriginal => Some(Avma::new(self.word(window::ORIGINAL)?)),
        })
    }

    /// The original instruction of the copied one at `at`.
    pub(crate) fn original(&self, at: Avma) -> Option<Avma> {
        let module = self.tables.modules.iter().find(|m| m.range.contains(at))?;
        Some(module.bias.to_actual(module.map.to_original(module.bias.to_stated(at))?))
    }

    /// A word of the window.
    pub(crate) fn word(&self, word: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, word)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn position(&self) -> io::Result<Position> {
        // The state first: once no burst is under way, the cursor stands still.
        let state = self.word(window::STATE)?;
        let cursor = self.word(window::CURSOR)?;
        Ok(Position { cursor: Avma::new(cursor), state: state as u32 })
    }

    /// Most records that a burst may be asked to have.
    pub fn most_records() -> usize {
        (window::MOST_RECORDS / 4) as usize
    }

    /// Makes room for `depth` records and says that a thread is in the versions; where the records begin.
    pub(crate) fn arm(&self, depth: usize) -> io::Result<Avma> {
        let room = 4 * depth.clamp(1, Self::most_records()) as u64;
        let end = (self.tables.window + window::RECORDS + window::MOST_RECORDS).align_up(window::RECORDS_END);
        let start = end.offset(-(room as i64));
        let words = [start.get().to_le_bytes(), u64::from(window::RUNNING).to_le_bytes()];
        self.file.write_all_at(words.as_flattened(), window::CURSOR)?;
        Ok(start)
    }

    pub(crate) fn set_state(&self, state: u32) -> io::Result<()> {
        self.file.write_all_at(&state.to_le_bytes(), window::STATE)
    }

    /// The bytes of the records between `start` and `end`.
    pub(crate) fn read_records(&self, start: Avma, end: Avma) -> io::Result<Vec<u8>> {
        let len = end.offset_from(start).clamp(0, window::MOST_RECORDS as i64 + 8) as usize;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, start.offset_from(self.tables.window) as u64)?;
        Ok(bytes)
    }

    /// The branches that a burst took that began at `start` and left these records, oldest first. It ends
    /// early where a record means nothing.
    pub(crate) fn branches(&self, start: Avma, records: &[u8], end: BurstEnd) -> Vec<Taken> {
        self.tables.decoder.branches(&self.tables.table, start, records, end)
    }
}

impl BurstModule {
    fn new(of: &TracedModule<'_>) -> Option<Self> {
        let TracedModule { bias, version, guard } = *of;
        let table = version.burst.clone()?;
        let ways_in = ways_in(&version.map, &[&table.branches[..], &table.unnamed].concat());
        let range = AvmaRange::new(bias.to_actual(version.range.start), version.loaded_len);
        Some(Self { bias, guard: guard.cloned(), range, map: version.map.clone(), table, ways_in })
    }

    fn entries(&self) -> impl Iterator<Item = (Avma, Avma)> + '_ {
        self.table.entries.iter().map(|(from, to)| (self.bias.to_actual(*from), self.bias.to_actual(*to)))
    }

    fn way_in(&self, at: Avma) -> Option<Avma> {
        let way = found(&self.ways_in, self.bias.to_stated(at))?;
        Some(self.bias.to_actual(way))
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// Where a thread may be put in, for each original instruction that has an equivalent in the version. Threads
/// are interrupted at branches more than elsewhere: they wait for their conditions there.
fn ways_in(map: &AddressMap, branches: &[BurstBranch]) -> Vec<(Svma, u32, Svma)> {
    let of_kind = |kind| map.pieces.iter().filter(move |p| p.kind == kind);
    let linear = of_kind(PieceKind::Linear).map(|p| (p.original, p.len, p.version));
    // The copied conditional branches, and what stands for calls and indirect branches: recording code that
    // has taken nothing yet. (The same is said of jumps to the original instruction, which come behind it.)
    let mut froms: Vec<Svma> = branches.iter().map(|branch| branch.from).collect();
    froms.sort_unstable();
    let records = |at: &Svma| froms.binary_search(at).is_ok();
    let branch = of_kind(PieceKind::Branch).map(|p| (p.original, 1, p.version));
    let site = of_kind(PieceKind::Inserted).map(|p| (p.original, 1, p.version)).filter(|w| records(&w.0));
    let mut ways: Vec<_> = linear.chain(branch).chain(site).collect();
    ways.sort_unstable_by_key(|way| (way.0, std::cmp::Reverse(way.1), way.2));
    ways.dedup_by_key(|way| way.0);
    // What is left are jumps: to stand at one is to stand at its target.
    let jumps = branches.iter().filter(|branch| found(&ways, branch.from).is_none());
    let jumps: Vec<_> =
        jumps.filter_map(|branch| Some((branch.from, 1, found(&ways, branch.to?)?))).collect();
    ways.extend(jumps);
    ways.sort_unstable();
    ways
}

/// The copy of the instruction at `at`.
fn found(ways: &[(Svma, u32, Svma)], at: Svma) -> Option<Svma> {
    let i = ways.partition_point(|w| w.0 <= at).checked_sub(1)?;
    let (original, len, version) = ways[i];
    let delta = at.offset_from(original) as u64;
    (delta < u64::from(len)).then_some(version + delta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_emit::MapPiece;

    #[test]
    fn threads_are_put_in_at_branches_too() {
        let at = Svma::new;
        let piece = |version, original, len, kind| MapPiece {
            version: at(version),
            original: at(original),
            len,
            kind,
        };
        use PieceKind::{Branch, Inserted, Linear, Opaque};
        let pieces = vec![
            piece(0x1000, 0x100, 6, Linear),
            piece(0x1006, 0x106, 6, Branch),
            // A call at 0x108, its way out, and a jump to the copy of 0x120.
            piece(0x100c, 0x108, 7, Inserted),
            piece(0x1013, 0, 30, Opaque),
            piece(0x1031, 0x108, 9, Inserted),
            piece(0x103a, 0x120, 5, Inserted),
            piece(0x1040, 0x120, 4, Linear),
            // What the original has to execute: no branch, only a way out.
            piece(0x1044, 0x124, 9, Inserted),
        ];
        let branch = |from, to: Option<u64>| BurstBranch { from: at(from), to: to.map(at) };
        let branches = [
            branch(0x106, Some(0x100)),
            branch(0x108, Some(0x999)),
            branch(0x10d, Some(0x122)),
            branch(0x110, Some(0x999)),
        ];
        let ways = ways_in(&AddressMap { pieces, places: Vec::new() }, &branches);
        let way = |original| found(&ways, at(original)).map(Svma::get);
        assert_eq!(way(0x103), Some(0x1003));
        assert_eq!(way(0x106), Some(0x1006), "a conditional branch");
        assert_eq!(way(0x107), None, "in the middle of one");
        assert_eq!(way(0x108), Some(0x100c), "a call");
        assert_eq!(way(0x10d), Some(0x1042), "a jump: its target");
        assert_eq!(way(0x110), None, "a jump to what has no copy");
        assert_eq!(way(0x120), Some(0x1040));
        assert_eq!(way(0x124), None);
    }
}
