//! A process and the modules that it has mapped.

use crate::error::ProcessError;
use crate::overlay::overlay_in;
use crate::vdso;
use restitch_address::{Avma, AvmaRange, LoadBias, PAGE, Svma};
use restitch_apply::Why;
use restitch_image::{Image, Segment};
use restitch_procfs::{self as procfs, Mapping, MappingName, ProcError, ProcessId};
use restitch_tracee::TraceError;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One ELF file that the process executes code of, or the vdso.
#[derive(Debug, Clone)]
pub struct Module {
    /// Its path, in the process's own view; `[vdso]`, which is no path, if it is that.
    pub path: PathBuf,
    /// The file; of the vdso, what is in memory.
    pub image: Arc<Image>,
    /// Which file that is, as the maps name it.
    pub identity: procfs::FileIdentity,
    /// From stated to actual addresses.
    pub bias: LoadBias,
    /// From its first to behind its last byte in memory.
    pub range: AvmaRange,
}

impl Module {
    /// The stated address of `at`, if it lies in this module's address range.
    pub fn stated(&self, at: Avma) -> Option<Svma> {
        self.range.contains(at).then(|| self.bias.to_stated(at))
    }

    /// The module whose code a process has just mapped, or had before it ended; nothing if that is no program
    /// or library. (A file that another process has at this path is known by its device and inode; where a
    /// stacked file system makes these up, only processes that are still there can be asked.)
    pub fn of_mapping(pid: i32, code: &Mapping, images: &mut ImageCache) -> Option<Self> {
        load(pid, &[code], images).ok().flatten()
    }

    /// Whether another process has the same content there: the same file, or equal bytes. (A build id does
    /// not tell: it stays when a file is changed.)
    pub fn has_content_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.image, &other.image) || self.image.data() == other.image.data()
    }

    /// Whether it is the kernel's image in the process (`[vdso]`), which is of no file: it may be copied to
    /// be traced, and is never changed.
    pub fn is_vdso(&self) -> bool {
        vdso::is_vdso(&self.path)
    }
}

/// How often a process that opens and closes libraries is looked at again.
const MOST_LOOKS: u32 = 4;

/// Files that were read, for looking at several processes, or at one again and again. A file that changes in
/// place while the cache lives is seen as it was.
#[derive(Debug, Clone, Default)]
pub struct ImageCache {
    known: BTreeMap<FileState, Arc<Image>>,
    vdso: vdso::Known,
}

/// A file as a process maps it, its length, and when it was changed last: what is written into a file that
/// was read makes it another one.
type FileState = (procfs::Device, u64, PathBuf, [i64; 3]);

impl ImageCache {
    /// What process `pid` has mapped at `code`.
    fn image(&mut self, pid: i32, code: &Mapping) -> Result<Arc<Image>, Why> {
        let mut file = match procfs::open_mapped(pid, code) {
            Ok(opened) => opened.file,
            // By another name it is on the same file system.
            Err(error @ ProcError::Unserved { .. }) => {
                return self.last_known(code).ok_or_else(|| error.into());
            }
            // The process has ended: what has this name here, if it is the same file.
            Err(error) => match open_here(code) {
                Some(file) => file,
                // Nor is the file there any more: it was what it was when it was read.
                None => return self.last_known(code).ok_or_else(|| error.into()),
            },
        };
        let status = file.metadata()?;
        let state = [status.len() as i64, status.ctime(), status.ctime_nsec()];
        let key = (code.device, code.inode, path_of(code), state);
        if let Some(image) = self.known.get(&key) {
            return Ok(image.clone());
        }
        let bytes = restitch_apply::read_opened(&mut file, restitch_apply::MOST_BYTES)?;
        let image = Arc::new(Image::parse(bytes)?);
        self.known.insert(key, image.clone());
        Ok(image)
    }

    /// The file of this device, inode and path, in one of the states that it was read in.
    fn last_known(&self, code: &Mapping) -> Option<Arc<Image>> {
        let key = |state| (code.device, code.inode, path_of(code), state);
        self.known.range(key([i64::MIN; 3])..=key([i64::MAX; 3])).next_back().map(|(_, image)| image.clone())
    }
}

/// The file that a mapping shows, by the name that it has there.
fn open_here(mapping: &Mapping) -> Option<File> {
    let file = procfs::open_regular(mapping.path()?).ok()?;
    procfs::FileIdentity::of(&file).ok()?.matches(mapping).then_some(file)
}

/// A process, seen from outside: nothing is stopped or changed.
#[derive(Debug, Clone)]
pub struct Target {
    /// The process.
    pub process: ProcessId,
    /// Its modules, by address, the vdso among them; those that could not be read are left out.
    pub modules: Vec<Module>,
    /// Index of the program itself in `modules`.
    pub program: usize,
    /// The program's code lies in memory that is no mapping of its file: the program has moved it (onto large
    /// pages, say). What there is of its file is mapped still.
    pub(crate) text_moved: bool,
}

impl Target {
    /// Looks at process `pid`.
    ///
    /// # Errors
    /// If the process has ended, cannot be read, or its program is no x86-64 ELF file.
    pub fn open(pid: i32) -> Result<Self, ProcessError> {
        Self::open_with(pid, &mut ImageCache::default())
    }

    /// The same with files that were read before.
    ///
    /// # Errors
    /// As for [`Target::open`].
    pub fn open_with(pid: i32, images: &mut ImageCache) -> Result<Self, ProcessError> {
        Self::open_even_moved(pid, images)?.with_text_of_its_file()
    }

    /// The same, or the reason why it is not to be changed.
    pub(crate) fn with_text_of_its_file(self) -> Result<Self, ProcessError> {
        match self.text_moved {
            false => Ok(self),
            true => {
                let path = self.modules[self.program].path.clone();
                Err(ProcessError::TextMoved { pid: self.pid(), program: path })
            }
        }
    }

    /// The same of a process that may have moved its program's code away from the file, which is not to be
    /// changed any more, but to be given its original code back.
    pub(crate) fn open_even_moved(pid: i32, images: &mut ImageCache) -> Result<Self, ProcessError> {
        let process = ProcessId::of(pid)?;
        let mut maps = procfs::maps(pid)?;
        if let Some(overlay) = overlay_in(&maps) {
            return Err(ProcessError::Overlaid { pid, overlay });
        }
        let vector = procfs::auxv(pid)?;
        let headers = vector.program_headers();
        let (mut modules, mut unread) = load_all(pid, &maps, images)?;
        for _ in 0..MOST_LOOKS {
            if unread.is_empty() {
                break;
            }
            // Another file may have been mapped between the look at the maps and that at the file.
            let now = procfs::maps(pid)?;
            if now == maps {
                break;
            }
            maps = now;
            (modules, unread) = load_all(pid, &maps, images)?;
        }
        let is_program = |m: &Module| headers.is_some_and(|at| m.range.contains(at));
        let moved = match modules.iter().any(is_program) {
            true => None,
            false => load_moved(pid, &maps, headers, vector.entry(), images),
        };
        let text_moved = moved.is_some();
        modules.extend(moved);
        modules.sort_by_key(|m| m.range.start);
        let Some(program) = modules.iter().position(is_program) else {
            let its = unread.into_iter().find(|file| headers.is_some_and(|at| file.is_at(at)));
            return Err(its.and_then(|file| file.error(pid)).unwrap_or_else(|| no_program(process)));
        };
        Ok(Self { process, modules, program, text_moved })
    }

    /// The module that holds `at`.
    pub fn module_at(&self, at: Avma) -> Option<usize> {
        let i = self.modules.partition_point(|m| m.range.start <= at).checked_sub(1)?;
        self.modules[i].range.contains(at).then_some(i)
    }

    /// What the file holds from `at` on, to the end of its segment.
    pub(crate) fn code_at(&self, at: Avma) -> Option<&[u8]> {
        let module = &self.modules[self.module_at(at)?];
        module.image.read_tail(module.bias.to_stated(at))
    }

    /// The indices of those modules that are no longer mapped where they were, by `maps` of the process: the
    /// program has closed them, and opened them elsewhere perhaps.
    pub(crate) fn moved_modules(&self, maps: &[Mapping]) -> Vec<usize> {
        let is_there = |i: usize| {
            let module = &self.modules[i];
            is_in_place(module, maps) || self.text_moved && i == self.program && is_left(module, maps)
        };
        (0..self.modules.len()).filter(|i| !is_there(*i)).collect()
    }

    /// Whether the process executes another program by now.
    pub fn has_executed(&self) -> bool {
        let maps = procfs::maps(self.pid()).unwrap_or_default();
        // One that has ended has no mappings.
        let program = &self.modules[self.program];
        !maps.is_empty()
            && self.process.is_alive()
            && !is_in_place(program, &maps)
            && !is_left(program, &maps)
    }

    /// The vdso, if the process has one that could be read.
    pub fn vdso(&self) -> Option<usize> {
        self.modules.iter().position(Module::is_vdso)
    }

    /// The process number.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }
}

/// Why no program was found in a process. One that has ended has no mappings any more, and one that is ending
/// loses them before it is a zombie.
pub(crate) fn no_program(process: ProcessId) -> ProcessError {
    seen_without_program(process).unwrap_or_else(ProcessError::from)
}

/// The same, as far as that can be seen.
fn seen_without_program(process: ProcessId) -> Result<ProcessError, ProcError> {
    let pid = process.pid;
    let has_one_thread = unless_gone(procfs::threads(pid))?.is_none_or(|threads| threads.len() <= 1);
    let has_nothing = has_one_thread
        && unless_gone(procfs::maps(pid))?.is_none_or(|maps| maps.is_empty())
        && !unless_gone(procfs::status(pid))?.is_some_and(|status| status.kernel_thread);
    Ok(if !process.is_alive() {
        TraceError::Zombie { pid }.into()
    } else if has_nothing {
        TraceError::Vanished { tid: pid, operation: "looking for its program" }.into()
    } else if restitch_tracee::is_32_bit_file(pid) {
        TraceError::ThirtyTwoBit { pid }.into()
    } else {
        ProcessError::NoProgram { pid }
    })
}

/// What was read of a process; `None` if that has ended.
fn unless_gone<T>(read: Result<T, ProcError>) -> Result<Option<T>, ProcError> {
    match read {
        Err(error) if error.is_gone() => Ok(None),
        read => read.map(Some),
    }
}

/// A file with code that could not be used.
struct Unread {
    path: PathBuf,
    ranges: Vec<AvmaRange>,
    why: Why,
}

impl Unread {
    fn is_at(&self, at: Avma) -> bool {
        self.ranges.iter().any(|range| range.contains(at))
    }

    /// Whether it could not be read just now, whatever the file is: restitch has come to a limit, or the file
    /// system does not answer.
    fn is_for_now(&self) -> bool {
        if matches!(self.why.downcast_ref(), Some(ProcError::Unserved { .. })) {
            return true;
        }
        let errors =
            std::iter::successors(Some(&*self.why as &dyn std::error::Error), |error| (*error).source());
        let is_own = |error: &std::io::Error| {
            matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
        };
        errors.filter_map(|error| error.downcast_ref::<std::io::Error>()).any(is_own)
    }

    /// That the program of process `pid` could not be used, unless that has ended.
    fn error(self, pid: i32) -> Option<ProcessError> {
        let Self { path, why, .. } = self;
        let why = match why.downcast::<ProcError>() {
            Ok(error) => return (!error.is_gone()).then(|| (*error).into()),
            Err(why) => why,
        };
        Some(match why.downcast::<std::io::Error>() {
            Ok(source) if source.raw_os_error().is_some() => {
                ProcError::Io { pid, path, source: *source }.into()
            }
            Ok(other) => ProcessError::BadProgram { pid, program: path, why: other },
            Err(why) => ProcessError::BadProgram { pid, program: path, why },
        })
    }
}

fn path_of(mapping: &Mapping) -> PathBuf {
    mapping.path().map(PathBuf::from).unwrap_or_default()
}

/// Mappings of regular files that have code mapped, grouped by file and run of addresses.
fn by_file(maps: &[Mapping]) -> BTreeMap<(u32, u32, u64, PathBuf), Vec<&Mapping>> {
    let mut files: BTreeMap<_, Vec<&Mapping>> = BTreeMap::new();
    for m in maps {
        if let MappingName::File { path, .. } = &m.name
            && m.inode != 0
        {
            files.entry((m.device.major, m.device.minor, m.inode, path.clone())).or_default().push(m);
        }
    }
    files.retain(|_, group| group.iter().any(|m| m.permissions.execute && !m.permissions.shared));
    files
}

/// Most bytes of a path that calls of the kernel take (`PATH_MAX` of linux/limits.h, without the zero at the
/// end). Memory maps name files by longer ones, which were reached from a folder on the way.
const LONGEST_PATH: usize = 4095;

/// Whether a process can open the file by its name, as it has to for its original pages.
fn can_be_opened(path: &Path) -> Result<(), Why> {
    match path.as_os_str().len() {
        0..=LONGEST_PATH => Ok(()),
        len => Err(format!(
            "its path has {len} bytes, and the kernel opens files by paths of up to {LONGEST_PATH}; start it \
             from a folder that is not as deep"
        )
        .into()),
    }
}

/// Reads the file and finds where it is loaded. `None` for files that are not modules (versions of ours
/// included).
fn load(pid: i32, mappings: &[&Mapping], images: &mut ImageCache) -> Result<Option<Module>, Why> {
    let candidates: Vec<&Mapping> = mappings.iter().copied().filter(|m| m.permissions.execute).collect();
    let Some(&code) = candidates.first() else { return Ok(None) };
    if crate::state::version_files::is_version_file(&path_of(code)) {
        return Ok(None);
    }
    can_be_opened(&path_of(code))?;
    let image = images.image(pid, code)?;
    // A killed restitch may have left a replacement mapping of the code: the module is where its other
    // segments are too.
    let (code, bias) = candidates
        .into_iter()
        .rev()
        .filter_map(|code| Some((code, bias_of(&image, code)?)))
        .max_by_key(|(_, bias)| segments_at(&image, *bias, mappings))
        .ok_or("its executable mapping fits no segment of the file")?;
    Ok(Some(module_of(code, image, bias)))
}

/// The module that `mapping` is part of, at this bias.
fn module_of(mapping: &Mapping, image: Arc<Image>, bias: LoadBias) -> Module {
    let (mut low, mut high) = (Avma::new(u64::MAX), Avma::new(0));
    for s in image.segments() {
        low = low.min(bias.to_actual(s.range.start).align_down(PAGE));
        high = high.max(bias.to_actual(s.range.end).align_up(PAGE));
    }
    let identity = procfs::FileIdentity { device: mapping.device, inode: mapping.inode };
    Module { path: path_of(mapping), image, identity, bias, range: AvmaRange::between(low, high) }
}

/// The program, if its headers are mapped of a file, and its entry point lies in code that is of none.
fn load_moved(
    pid: i32,
    maps: &[Mapping],
    headers: Option<Avma>,
    entry: Option<Avma>,
    images: &mut ImageCache,
) -> Option<Module> {
    let at = |at: Avma| maps.iter().find(|m| m.range.contains(at));
    let (of_file, code) = (at(headers?)?, at(entry?)?);
    let is_of_file = |m: &Mapping| (m.device, m.inode) == (of_file.device, of_file.inode);
    if of_file.inode == 0 || !code.permissions.execute || is_of_file(code) {
        return None;
    }
    let image = images.image(pid, of_file).ok()?;
    let bias = bias_where(&image, of_file, |s| !s.writable)?;
    let module = module_of(of_file, image, bias);
    module.range.contains(code.range.start).then_some(module)
}

/// The vdso, if the process has one. Its image says nothing of the pages behind its last byte.
fn load_vdso(pid: i32, maps: &[Mapping], images: &mut ImageCache) -> Option<Module> {
    let (code, image, identity) = images.vdso.read(pid, maps)?;
    let (bias, range) = (bias_of(&image, code)?, code.range);
    let end = image.segments().iter().map(|s| bias.to_actual(s.range.end)).max()?;
    let fits = range.start < end && end <= range.end;
    fits.then(|| Module { path: vdso::NAME.into(), image, identity, bias, range })
}

/// The modules among `maps`, and the files that could not be used.
///
/// # Errors
/// If that is for want of something that restitch needs itself, as of open files.
fn load_all(
    pid: i32,
    maps: &[Mapping],
    images: &mut ImageCache,
) -> Result<(Vec<Module>, Vec<Unread>), ProcessError> {
    let (mut modules, mut unread) = (Vec::new(), Vec::new());
    for mappings in by_file(maps).into_values() {
        match load(pid, &mappings, images) {
            Ok(Some(module)) => modules.push(module),
            Ok(None) => {}
            Err(why) => {
                let ranges = mappings.iter().map(|m| m.range).collect();
                unread.push(Unread { path: path_of(mappings[0]), ranges, why });
            }
        }
    }
    if let Some(at) = unread.iter().position(Unread::is_for_now)
        && let Some(error) = unread.swap_remove(at).error(pid)
    {
        return Err(error);
    }
    modules.extend(load_vdso(pid, maps, images));
    Ok((modules, unread))
}

/// What was added to the file's addresses, if the executable mapping `code` shows one of its segments.
fn bias_of(image: &Image, code: &Mapping) -> Option<LoadBias> {
    bias_where(image, code, |s| s.executable)
}

/// The same for one of those segments that are `wanted`.
fn bias_where(image: &Image, code: &Mapping, wanted: impl Fn(&Segment) -> bool) -> Option<LoadBias> {
    let stated = image.segments().iter().filter(|s| wanted(s)).find_map(|s| {
        let skew = s.range.start.get() % PAGE;
        let first = s.file_offset.get() - skew;
        let inside = code.offset.get().checked_sub(first).filter(|d| *d < s.file_len + skew)?;
        Some(s.range.start - skew + inside)
    });
    stated.map(|stated| LoadBias::between(stated, code.range.start))
}

/// Whether the module's code is mapped where it was. `maps` are sorted by address. (The kernel's image
/// stays.)
fn is_in_place(module: &Module, maps: &[Mapping]) -> bool {
    let is_its_code = |m: &Mapping| {
        let identity = procfs::FileIdentity { device: m.device, inode: m.inode };
        identity == module.identity && m.permissions.execute && bias_of(&module.image, m) == Some(module.bias)
    };
    let from = maps.partition_point(|m| m.range.end <= module.range.start);
    let mut inside = maps[from..].iter().take_while(|m| m.range.start < module.range.end);
    module.is_vdso() || inside.any(is_its_code)
}

/// Whether something of the module's file is mapped where it was, be it no code.
fn is_left(module: &Module, maps: &[Mapping]) -> bool {
    let is_part = |m: &Mapping| {
        let identity = procfs::FileIdentity { device: m.device, inode: m.inode };
        identity == module.identity && bias_where(&module.image, m, |s| !s.writable) == Some(module.bias)
    };
    maps.iter().any(is_part)
}

/// How many segments of the file are mapped where they are at this bias.
fn segments_at(image: &Image, bias: LoadBias, mappings: &[&Mapping]) -> usize {
    let is_mapped = |at: Avma| mappings.iter().any(|m| m.range.contains(at));
    image.segments().iter().filter(|s| is_mapped(bias.to_actual(s.range.start))).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::{compile, require, scratch};

    #[test]
    fn the_vdso_is_a_module_where_the_maps_have_it() {
        let pid = std::process::id() as i32;
        let maps = procfs::maps(pid).expect("our own");
        let line = maps.iter().find(|m| m.is_special(vdso::NAME));
        let target = Target::open(pid).expect("our own");
        let found = target.vdso().map(|index| &target.modules[index]);
        assert_eq!(found.map(|module| module.range), line.map(|line| line.range));
        if let Some(module) = found {
            assert_eq!(target.module_at(module.range.start), target.vdso());
            assert_eq!(module.bias.to_actual(module.image.segments()[0].range.start), module.range.start);
        }
    }

    #[test]
    fn paths_that_no_call_takes_are_told() {
        let path = |len: usize| PathBuf::from("d".repeat(len));
        assert!(can_be_opened(&path(LONGEST_PATH)).is_ok());
        let refused = can_be_opened(&path(LONGEST_PATH + 1)).expect_err("too long");
        assert!(refused.to_string().contains("4096 bytes"), "{refused}");
    }

    /// Threads that wait, and memory that takes a while to give back.
    const ENDING: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *wait(void *unused) { (void)unused; pause(); return NULL; }
int main(void) {
    pthread_t thread;
    for (int i = 0; i < 24; i++) pthread_create(&thread, NULL, wait, NULL);
    memset(malloc(32 << 20), 1, 32 << 20);
    _exit(0);
}
"#;

    /// In all moments between its last instruction and its end as a zombie: who has no memory any more is not
    /// alive.
    #[test]
    fn a_process_without_memory_is_not_alive() {
        let folder = scratch();
        let source = folder.path().join("ending.c");
        std::fs::write(&source, ENDING).expect("writable");
        let program = require!(compile(&source, &["-O1", "-pthread"]).ok(), "gcc");
        for _ in 0..40 {
            let mut child = std::process::Command::new(&program).spawn().expect("it starts");
            let id = ProcessId::of(child.id() as i32).expect("not collected yet");
            let without_memory = || procfs::maps(id.pid).is_ok_and(|maps| maps.is_empty());
            // Before its program was mapped it has memory, too: a copy of ours.
            while !without_memory() {
                std::hint::spin_loop();
            }
            assert!(!id.is_alive() && procfs::has_ended(id.pid));
            child.wait().expect("it ended");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_said_to_have_ended() {
        let mut child = std::process::Command::new("/bin/true").spawn().expect("it starts");
        let pid = child.id() as i32;
        let id = ProcessId::of(pid).expect("not collected yet");
        while id.is_alive() {
            std::thread::yield_now();
        }
        let error = Target::open(pid).expect_err("it is a zombie");
        child.wait().expect("it ended");
        assert!(error.to_string().contains("ended"), "{error}");
    }
}
