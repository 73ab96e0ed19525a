//! From loaded modules to overlays, and from overlays to mapped versions.

use crate::format::{COUNTS_HEADER, Counts, MAX_BUILD_ID, Meta, PAGE, TOLD_AT};
use crate::identify;
use crate::libc::{self, ITERATE_OBJECTS, IterateObjects, PhdrInfo};
use crate::sys::{self, EXECUTE, File, NO_REPLACE, PRIVATE, READ, SHARED, WRITE};
use crate::versions::{self, MOST, Version};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// A loaded module that may have an overlay.
#[derive(Clone, Copy)]
pub struct Module {
    pub bias: u64,
    /// `p_vaddr` and `p_filesz` of its one executable segment.
    pub segment: (u64, u64),
    /// That segment can be read.
    pub readable: bool,
    /// Its build id, or the identity of its content.
    pub build_id: [u8; MAX_BUILD_ID],
    /// 0 if it has none.
    pub build_id_len: usize,
    /// Its path as the loader knows it, which lives as long as the module; that of the program is empty.
    pub path: *const c_char,
}

const NONE: Module = Module {
    bias: 0,
    segment: (0, 0),
    readable: false,
    build_id: [0; MAX_BUILD_ID],
    build_id_len: 0,
    path: core::ptr::null(),
};

struct Modules {
    list: [Module; MOST],
    count: usize,
}

/// Longest path of a file, with its zero byte.
pub const PATH: usize = 512;

/// Looks for overlays of all modules, and maps what is there.
pub fn install_all() {
    let next = ITERATE_OBJECTS.get();
    let Some((mut path, folder)) = folder() else { return };
    if next == 0 || !libc::is_single_threaded_glibc() {
        return;
    }
    let mut modules = Modules { list: [NONE; MOST], count: 0 };
    // SAFETY: the C library's `dl_iterate_phdr`; `collect` gets the list back, which outlives the call. The modules are only noted
    // here: when their code is replaced, none of it must be running.
    unsafe {
        core::mem::transmute::<usize, IterateObjects>(next)(collect, (&raw mut modules).cast());
    }
    for module in modules.list.iter().take(modules.count) {
        match module.build_id_len {
            0 => identify::by_file(module, &mut path, folder).and_then(|m| install(&m, &mut path, folder)),
            _ => install(module, &mut path, folder),
        };
    }
}

/// Tells observers that all modules were looked at which this process has begun with: what is mapped from now on was opened by the program itself.
pub fn tell() {
    let own = versions::own_path();
    if !own.is_null() {
        // SAFETY: the path that the loader knows this library by ends in a zero byte.
        if let Some(file) = unsafe { sys::open_text(own.cast()) } {
            file.show(TOLD_AT);
        }
    }
}

/// The path of the folder that this library lies in, in front of more room, and its length.
fn folder() -> Option<([u8; PATH], usize)> {
    let own = versions::own_path();
    if own.is_null() {
        return None;
    }
    let mut path = [0; PATH];
    let mut behind_slash = 0;
    for (i, slot) in path.iter_mut().enumerate().take(PATH - 200) {
        // SAFETY: the path ends in a zero byte, which has not been reached yet.
        let byte = unsafe { own.add(i).read() } as u8;
        if byte == 0 {
            return (behind_slash > 0).then_some((path, behind_slash));
        }
        *slot = byte;
        if byte == b'/' {
            behind_slash = i + 1;
        }
    }
    None
}

/// Notes a module with one executable segment.
///
/// # Safety
/// Called by `dl_iterate_phdr` with [`Modules`].
unsafe extern "C" fn collect(info: *mut PhdrInfo, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: see above.
    let (modules, info) = unsafe { (&mut *data.cast::<Modules>(), &*info) };
    if info.addr == versions::own_base() {
        return 0;
    }
    let mut module = Module { bias: info.addr, path: info.name, ..NONE };
    let mut executable = 0;
    for i in 0..usize::from(info.header_count) {
        // `Elf64_Phdr`: p_type, p_flags; then p_offset, p_vaddr, p_paddr, p_filesz, p_memsz.
        // SAFETY: the table has so many entries of 56 bytes.
        let header = unsafe { info.headers.add(56 * i).cast::<[u64; 7]>().read_unaligned() };
        let (kind, flags) = (header[0] as u32, (header[0] >> 32) as u32);
        let (start, file_len, memory_len) = (header[2], header[4], header[5]);
        match kind {
            1 if flags & 1 != 0 => {
                executable += 1;
                module.segment = (start, file_len);
                module.readable = flags & 4 != 0;
                if file_len != memory_len || flags & 2 != 0 {
                    return 0;
                }
            }
            4 if module.build_id_len == 0 => {
                // SAFETY: PT_NOTE of a loaded module lies in its mapped part.
                unsafe { note(&mut module, info.addr.wrapping_add(start), memory_len) };
            }
            _ => {}
        }
    }
    if executable == 1
        && let Some(slot) = modules.list.get_mut(modules.count)
    {
        *slot = module;
        modules.count += 1;
    }
    0
}

/// Looks for the build id among the notes at `at`.
///
/// # Safety
/// `len` bytes must be mapped there.
unsafe fn note(module: &mut Module, mut at: u64, len: u64) {
    let end = at + len;
    while end - at >= 12 {
        // SAFETY: within the notes.
        let [name_len, content_len, kind] = unsafe { (at as *const [u32; 3]).read_unaligned() };
        let (name_at, padded) = (at + 12, |n: u32| (u64::from(n) + 3) & !3);
        let content_at = name_at + padded(name_len);
        let next = content_at + padded(content_len);
        if next > end {
            return;
        }
        // SAFETY: within the notes, as was compared.
        let is_gnu = name_len == 4 && unsafe { (name_at as *const [u8; 4]).read() } == *b"GNU\0";
        if kind == 3 && is_gnu && content_len as usize <= MAX_BUILD_ID {
            for (i, slot) in module.build_id.iter_mut().enumerate().take(content_len as usize) {
                // SAFETY: within the notes.
                *slot = unsafe { ((content_at + i as u64) as *const u8).read() };
            }
            module.build_id_len = content_len as usize;
            return;
        }
        at = next;
    }
}

/// Completes a path: the folder, a module's identity, an ending, a zero byte.
fn name<'p>(path: &'p mut [u8; PATH], folder: usize, module: &Module, ending: &[u8]) -> &'p [u8] {
    let id = module.build_id.iter().take(module.build_id_len);
    name_of(path, folder, id.copied(), ending)
}

/// Completes a path: the folder, bytes in hexadecimal digits, an ending, a zero byte.
pub fn name_of<'p>(
    path: &'p mut [u8; PATH],
    folder: usize,
    id: impl Iterator<Item = u8>,
    ending: &[u8],
) -> &'p [u8] {
    let digit = |n: u8| if n < 10 { b'0' + n } else { b'a' + n - 10 };
    let digits = id.flat_map(|b| [digit(b >> 4), digit(b & 15)]);
    let mut len = folder;
    for (slot, byte) in path.iter_mut().skip(folder).zip(digits.chain(ending.iter().copied()).chain([0])) {
        *slot = byte;
        len += 1;
    }
    path.get(..len).unwrap_or(&[])
}

/// Whether the file belongs to this user or to root, and nobody else may write to it.
pub fn is_trusted(file: &File) -> Option<u64> {
    let status = file.status()?;
    let regular = status.mode & 0o170_000 == 0o100_000;
    let trusted = (status.owner == sys::user() || status.owner == 0) && status.mode & 0o022 == 0;
    (regular && trusted).then_some(status.len)
}

/// Maps the overlay of a module, if it has one that fits.
fn install(module: &Module, path: &mut [u8; PATH], folder: usize) -> Option<()> {
    let file = sys::open(name(path, folder, module, b".overlay"), false)?;
    let len = is_trusted(&file)?;
    let mut page = [0; PAGE as usize];
    file.read(&mut page, len.checked_sub(PAGE)?)?;
    let meta = Meta::decode(&page)?;
    let same_module = meta.build_id == module.build_id
        && meta.build_id_len == module.build_id_len as u64
        && (meta.segment_start, meta.segment_len) == module.segment;
    if !same_module || meta.file_len != len {
        return None;
    }
    let actual = |stated: u64| module.bias.wrapping_add(stated);
    let (start, text) = (actual(meta.version_start), actual(meta.text_start));
    // SAFETY: replaces nothing.
    if !unsafe { file.map(start, meta.version_len, READ | EXECUTE, PRIVATE | NO_REPLACE, 0) } {
        return None;
    }
    let version = Version {
        start,
        end: start.wrapping_add(meta.version_len),
        eh_frame_hdr: actual(meta.eh_frame_hdr),
        module: actual(meta.segment_start),
        link_map: versions::link_map_of(actual(meta.segment_start)),
    };
    // SAFETY: there is one thread. The code that is replaced is that of a module whose functions do not run: on the stack are the
    // loader, which has no overlay, and this library. Its new bytes are the same but for jumps over instructions that the
    // version has copies of.
    unsafe {
        if !versions::add(version) {
            sys::unmap(start, meta.version_len);
            return None;
        }
        let counters = map_counters(&meta, module, path, folder);
        let done = counters && file.map(text, meta.text_len, READ | EXECUTE, PRIVATE, meta.text_offset);
        if !done {
            versions::remove_last();
            sys::unmap(start, meta.version_len);
        }
    }
    Some(())
}

/// The counts files that this process counts in: where they are mapped.
static COUNTING: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

/// Maps the counters of a counting version, if there is a ticket left.
///
/// # Safety
/// There must be one thread.
unsafe fn map_counters(meta: &Meta, module: &Module, path: &mut [u8; PATH], folder: usize) -> bool {
    if meta.counters_len == 0 {
        return true;
    }
    // SAFETY: as promised by the caller.
    unsafe { try_map_counters(meta, module, path, folder) }.is_some()
}

/// # Safety
/// There must be one thread.
unsafe fn try_map_counters(meta: &Meta, module: &Module, path: &mut [u8; PATH], folder: usize) -> Option<()> {
    let file = sys::open(name(path, folder, module, b".counts"), true)?;
    let len = is_trusted(&file)?;
    let mut page = [0; PAGE as usize];
    file.read(&mut page, 0)?;
    let head = Counts::decode(&page)?;
    let fits = head.identity == meta.identity && head.len == meta.counters_len;
    if !fits || len != COUNTS_HEADER + head.len {
        return None;
    }
    // The head lies in front of the counters, in memory as in the file.
    let at = module.bias.wrapping_add(meta.counters_start).wrapping_sub(COUNTS_HEADER);
    // SAFETY: replaces nothing.
    if !unsafe { file.map(at, len, READ | WRITE, SHARED | NO_REPLACE, 0) } {
        return None;
    }
    // SAFETY: mapped a moment ago, for as long as the process lives; aligned; everybody changes it by atomic operations only.
    let tickets = unsafe { AtomicI64::from_ptr((at + Counts::TICKETS_AT) as *mut i64) };
    let slot = COUNTING.iter().find(|s| s.load(Ordering::Relaxed) == 0);
    if tickets.fetch_sub(1, Ordering::Relaxed) <= 0 || slot.is_none() {
        tickets.fetch_add(1, Ordering::Relaxed);
        // SAFETY: nobody counts there.
        unsafe { sys::unmap(at, len) };
        return None;
    }
    slot?.store(at as usize, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr((at + Counts::STARTED_AT) as *mut u64) }.fetch_add(1, Ordering::Relaxed);
    Some(())
}

/// The process ends in order.
pub fn count_end() {
    for at in COUNTING.iter().map(|s| s.swap(0, Ordering::Relaxed)).take_while(|at| *at != 0) {
        // SAFETY: mapped by `try_map_counters`, for as long as the process lives.
        let ended = unsafe { AtomicU64::from_ptr((at + Counts::ENDED_AT as usize) as *mut u64) };
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

const _: () = assert!(size_of::<c_char>() == 1);
