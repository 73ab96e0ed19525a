//! Which pages of a process are in memory or swapped out, in time that goes by what is there and not by what
//! is reserved.
//!
//! **Problem.** Thread sanitizer, collectors of garbage and WebAssembly engines reserve terabytes that they
//! never touch. The page map has eight bytes for every page of them: 8 GB for 4 TB.
//!
//! **Idea.** Since Linux 6.7 the kernel walks the page table itself and gives ranges (`PAGEMAP_SCAN`): what
//! has no table costs nothing. Before, mappings in which `smaps` knows of nothing are left out
//! ([`Residents`]), and the page map of the others is read piece by piece.

use crate::bounded;
use crate::error::ProcError;
use crate::holder::shared_path;
use crate::maps::Mapping;
use crate::pages::{PageState, Pagemap};
use restitch_address::{Avma, AvmaRange, PAGE};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes whose page map entries are read at once where the kernel does not scan.
const STRETCH: u64 = 64 << 20;
/// Ranges that are asked for at once. The kernel works by that many (`PAGEMAP_WALK_SIZE`, in pages); where it
/// gives more in one answer, Linux 6.18 still says that it stopped behind the first 512 of them, and would
/// give the others again.
const REGIONS: usize = 512;

/// Pages one after another that are in memory, or swapped out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// The addresses.
    pub range: AvmaRange,
    /// Whether they are swapped out.
    pub is_swapped: bool,
}

/// Which pages of a mapping are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All.
    All,
    /// Those of the process's own: of a private mapping of a file, those that were written to.
    Own,
}

/// `struct pm_scan_arg` (`linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` (`linux/fs.h`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

impl Pagemap {
    /// Whether the kernel finds what is there by itself; else [`Self::runs`] takes 20 ns for each page that
    /// is mapped, whether it is there or not.
    pub fn scans(&self) -> bool {
        !self.cannot_scan.load(Relaxed) && self.scan(AvmaRange::new(Avma::new(0), PAGE), Wanted::All).is_ok()
    }

    /// The first runs of `wanted` pages of `range` that are in memory or swapped out, in order, and what of
    /// `range` was not looked at yet (empty at the end).
    ///
    /// # Errors
    /// If the process has ended.
    pub fn runs(&self, range: AvmaRange, wanted: Wanted) -> Result<(Vec<PageRun>, AvmaRange), ProcError> {
        if !self.cannot_scan.load(Relaxed) {
            match self.scan(range, wanted) {
                Ok(found) => return Ok(found),
                Err(error) if is_unknown(&error) => self.cannot_scan.store(true, Relaxed),
                Err(error) => return Err(ProcError::from_io(self.pid, &self.path, error)),
            }
        }
        self.runs_by_entries(range, wanted)
    }

    /// By `PAGEMAP_SCAN`.
    fn scan(&self, range: AvmaRange, wanted: Wanted) -> io::Result<(Vec<PageRun>, AvmaRange)> {
        let mut regions = vec![Region::default(); REGIONS];
        let either = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
        // This has to be set once it was inverted.
        let not = if wanted == Wanted::Own { PAGE_IS_FILE } else { 0 };
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start: range.start.get(),
            end: range.end.get(),
            regions: regions.as_mut_ptr() as u64,
            regions_len: REGIONS as u64,
            category_inverted: not,
            category_mask: not,
            category_anyof_mask: either,
            return_mask: either,
            ..ScanArgument::default()
        };
        // SAFETY: the kernel reads and writes one structure of the size that stands in it, and at most
        // `regions_len` regions behind the pointer in it; both live for the call, and nothing else refers to
        // them meanwhile.
        let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        let runs: Vec<PageRun> = regions.iter().take(found).map(Region::run).collect();
        let seen = runs.last().map_or(argument.walk_end, |last| argument.walk_end.max(last.range.end.get()));
        let reached = seen.clamp(range.start.get(), range.end.get());
        // The kernel goes on; if it did not, this must not go on for ever.
        match reached == range.start.get() && found == 0 && !range.is_empty() {
            true => Err(io::Error::from_raw_os_error(libc::ENOTTY)),
            false => Ok((runs, AvmaRange::between(Avma::new(reached), range.end))),
        }
    }

    /// By the entries of the first [`STRETCH`] of `range`.
    fn runs_by_entries(
        &self,
        range: AvmaRange,
        wanted: Wanted,
    ) -> Result<(Vec<PageRun>, AvmaRange), ProcError> {
        let now = AvmaRange::new(range.start, range.len().min(STRETCH));
        let mut out: Vec<PageRun> = Vec::new();
        let states = self.states(now)?;
        let is_wanted = |state: &PageState| match wanted {
            Wanted::All => state.present || state.swapped,
            Wanted::Own => state.is_own(),
        };
        for (i, state) in states.iter().enumerate().filter(|(_, state)| is_wanted(state)) {
            let page = AvmaRange::new(now.start + i as u64 * PAGE, PAGE);
            match out.last_mut() {
                Some(last) if last.range.end == page.start && last.is_swapped == state.swapped => {
                    last.range.end = page.end;
                }
                _ => out.push(PageRun { range: page, is_swapped: state.swapped }),
            }
        }
        Ok((out, AvmaRange::between(now.end, range.end)))
    }
}

impl Region {
    fn run(&self) -> PageRun {
        let range = AvmaRange::between(Avma::new(self.start), Avma::new(self.end.max(self.start)));
        PageRun { range, is_swapped: self.categories & PAGE_IS_SWAPPED != 0 }
    }
}

/// Whether the kernel does not know the question: it is too old, or something in between (a sandbox) does not
/// pass it on.
fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::EACCES)
    )
}

/// How much of each mapping is in memory or swapped out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Residents(BTreeMap<Avma, (Avma, u64)>);

impl Residents {
    /// That of the mappings of process `pid`, by `smaps`: the kernel looks at every page that is there.
    ///
    /// # Errors
    /// If the process is gone or may not be read.
    pub fn of(pid: i32) -> Result<Self, ProcError> {
        let path = shared_path(pid, "smaps");
        let failed = |e| ProcError::from_io(pid, &path, e);
        Self::parse(BufReader::new(File::open(&path).map_err(failed)?)).map_err(failed)
    }

    fn parse(reader: impl BufRead) -> io::Result<Self> {
        let (mut out, mut current) = (BTreeMap::new(), None);
        for line in bounded::lines(reader) {
            let line = line?;
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                // The zero page, which anybody may map, is not counted: it holds nothing.
                Some("Rss:" | "Swap:" | "Private_Hugetlb:" | "Shared_Hugetlb:") => {
                    let kib = words.next().and_then(|n| n.parse::<u64>().ok());
                    if let Some((_, bytes)) = current.and_then(|at| out.get_mut(&at)) {
                        *bytes = kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024).saturating_add(*bytes));
                    }
                }
                Some(first) if !first.ends_with(':') => {
                    let ends = first.split_once('-');
                    let number = |text| u64::from_str_radix(text, 16).ok().map(Avma::new);
                    let ends = ends.and_then(|(from, to)| Some((number(from)?, number(to)?)));
                    current = ends.map(|(from, to)| {
                        out.insert(from, (to, 0));
                        from
                    });
                }
                _ => {}
            }
        }
        Ok(Self(out))
    }

    /// Whether something may be in `mapping`: so it is if that was not there when this was read.
    pub fn may_hold(&self, mapping: &Mapping) -> bool {
        let known = self.0.get(&mapping.range.start).filter(|(end, _)| *end == mapping.range.end);
        known.is_none_or(|(_, bytes)| *bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::parse_maps;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    /// Addresses without memory, of this process.
    struct Reserved(AvmaRange);

    impl Reserved {
        fn new(len: u64) -> Self {
            let (kind, access) = (
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                libc::PROT_READ | libc::PROT_WRITE,
            );
            // SAFETY: a new private mapping at a place of the kernel's choice.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, access, kind, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            // SAFETY: the mapping is ours; large pages would make more pages present than were written.
            unsafe { libc::madvise(at, len as usize, libc::MADV_NOHUGEPAGE) };
            Self(AvmaRange::new(Avma::new(at as u64), len))
        }

        /// Writes to the page at `offset`, and gives its addresses.
        fn touch(&self, offset: u64) -> AvmaRange {
            let page = AvmaRange::new(self.0.start + offset / PAGE * PAGE, PAGE);
            // SAFETY: inside of the mapping, which nobody else knows of.
            unsafe { (page.start.get() as *mut u8).write_volatile(1) };
            page
        }
    }

    impl Drop for Reserved {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, and no reference into it was made.
            unsafe { libc::munmap(self.0.start.get() as *mut _, self.0.len() as usize) };
        }
    }

    fn all_runs(map: &Pagemap, range: AvmaRange) -> Vec<PageRun> {
        let (mut rest, mut out) = (range, Vec::<PageRun>::new());
        while !rest.is_empty() {
            let (runs, after) = map.runs(rest, Wanted::All).expect("this process lives");
            assert!(after.len() < rest.len(), "it does not go on");
            out.extend(runs);
            rest = after;
        }
        out
    }

    fn own(cannot_scan: bool) -> Pagemap {
        let mut map = Pagemap::open(std::process::id() as i32).expect("readable");
        map.cannot_scan = AtomicBool::new(cannot_scan);
        map
    }

    #[test]
    fn both_ways_find_the_same_pages() {
        let reserved = Reserved::new(1 << 30);
        let mut pages: Vec<AvmaRange> = (0..50).map(|i| reserved.touch(i * i * 400_000)).collect();
        pages.push(reserved.touch((1 << 30) - 1));
        for cannot_scan in [true, false] {
            let found = all_runs(&own(cannot_scan), reserved.0);
            let expected: Vec<PageRun> =
                pages.iter().map(|range| PageRun { range: *range, is_swapped: false }).collect();
            assert_eq!(found, expected, "without a scan: {cannot_scan}");
        }
    }

    /// Of a file that is mapped privately, pages 2 and 3 are read, and 1 and 5 written to; it is closed then.
    #[test]
    fn own_pages_of_a_file_s_mapping_are_found_whatever_its_protection() {
        let len = 8 * PAGE as usize;
        // SAFETY: makes a file in memory, which is ours.
        let file = unsafe { libc::memfd_create(c"own".as_ptr(), 0) };
        // SAFETY: the descriptor is ours.
        assert_eq!(unsafe { libc::ftruncate(file, len as i64) }, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_PRIVATE, file, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let reserved = Reserved(AvmaRange::new(Avma::new(at as u64), len as u64));
        for page in [2, 3] {
            // SAFETY: inside of the mapping, which nobody else knows of.
            unsafe { ((reserved.0.start + page * PAGE).get() as *const u8).read_volatile() };
        }
        let pages = [1, 5].map(|page| reserved.touch(page * PAGE));
        // SAFETY: the mapping and the descriptor are ours, and nobody looks at the memory any more.
        unsafe { (libc::mprotect(at, len, libc::PROT_NONE), libc::close(file)) };
        let expected = pages.map(|range| PageRun { range, is_swapped: false });
        for cannot_scan in [true, false] {
            let (found, rest) = own(cannot_scan).runs(reserved.0, Wanted::Own).expect("this process lives");
            assert_eq!(found, expected, "without a scan: {cannot_scan}");
            assert!(rest.is_empty());
        }
    }

    /// More runs than the kernel gives at once.
    #[test]
    fn what_does_not_fit_into_one_answer_is_asked_for_again() {
        let reserved = Reserved::new(64 << 20);
        let pages: Vec<AvmaRange> = (0..3000).map(|i| reserved.touch(2 * i * PAGE)).collect();
        let found: Vec<AvmaRange> = all_runs(&own(false), reserved.0).iter().map(|run| run.range).collect();
        let differ = found.iter().zip(&pages).position(|(found, page)| found != page);
        assert_eq!((found.len(), differ), (pages.len(), None), "{:?}", differ.map(|i| found[i]));
    }

    /// 32 TB, which no test could look through page by page.
    #[test]
    fn what_is_only_reserved_costs_nothing() {
        let map = own(false);
        if !map.scans() {
            eprintln!("SKIPPED: the kernel has no PAGEMAP_SCAN");
            return;
        }
        let reserved = Reserved::new(32 << 40);
        let page = reserved.touch(17 << 40);
        assert_eq!(all_runs(&map, reserved.0), [PageRun { range: page, is_swapped: false }]);
    }

    #[test]
    fn mappings_that_hold_nothing_are_known() {
        let reserved = [Reserved::new(1 << 40), Reserved::new(1 << 40)];
        reserved[1].touch(5 << 30);
        let pid = std::process::id() as i32;
        let residents = Residents::of(pid).expect("readable");
        let maps = crate::maps(pid).expect("readable");
        let at = |r: &Reserved| maps.iter().find(|m| m.range.contains(r.0.start)).expect("it is mapped");
        assert!(residents.may_hold(at(&reserved[1])));
        // The kernel may have joined both.
        assert!(at(&reserved[0]) == at(&reserved[1]) || !residents.may_hold(at(&reserved[0])));
    }

    #[test]
    fn what_smaps_says_is_summed_for_each_mapping() {
        let text = b"1000-2000 rw-p 0 00:00 0 \nSize: 4 kB\nRss: 0 kB\nSwap: 4 kB\nSwapPss: 0 kB\n\
                     3000-4000 rw-p 0 00:00 0 \nRss: 0 kB\nSwap: 0 kB\nVmFlags: rd\n\
                     5000-6000 rw-p 0 00:00 0 [x: \xff]\nRss: many kB\n";
        let residents = Residents::parse(&text[..]).expect("it is text");
        let holds = |line: &str| residents.may_hold(&parse_maps(line.as_bytes()).expect("a line")[0]);
        assert!(holds("1000-2000 rw-p 0 00:00 0\n") && !holds("3000-4000 rw-p 0 00:00 0\n"));
        assert!(holds("3000-5000 rw-p 0 00:00 0\n") && holds("7000-8000 rw-p 0 00:00 0\n"), "not known");
        assert!(holds("5000-6000 rw-p 0 00:00 0\n"), "not understood");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "([0-9a-f]{1,6}-[0-9a-f]{1,6} |Rss: |Swap: |[0-9a-z :\n]{0,9}){0,30}") {
            let _ = Residents::parse(text.as_bytes());
        }
    }
}
