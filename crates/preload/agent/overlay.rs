//! From loaded modules to overlays, and from overlays to mapped versions.

use crate::files::Folder;
use crate::format::{COUNTS_HEADER, Counts, HELD_AT, Meta, PAGE, TOLD_AT};
use crate::identify;
use crate::libc;
use crate::modules::{Module, Modules};
use crate::original::is_original;
use crate::sys::{self, EXECUTE, NO_REPLACE, PRIVATE, READ, SHARED, WRITE};
use crate::versions::{self, MOST, Version};
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Looks for overlays of all modules, and maps what is there.
pub fn install_all() {
    let Some(folder) = Folder::own() else { return };
    let Some(modules) = Modules::of_process() else { return };
    for module in modules.iter() {
        match module.build_id_len {
            0 => identify::by_file(module, &folder).and_then(|(m, content)| install(&m, Some(content), &folder)),
            _ => install(module, None, &folder),
        };
    }
}

/// Tells observers that all modules were looked at which this process has begun with: what is mapped from now
/// on was opened by the program itself.
pub fn tell() {
    let own = versions::own_path();
    if !own.is_null() {
        // SAFETY: the path that the loader knows this library by ends in a zero byte.
        if let Some(file) = unsafe { sys::open_text(own.cast()) } {
            file.show(TOLD_AT);
        }
    }
}

/// Maps the overlay of a module, if it has one that fits. `noted` is the hash of what is loaded of it, if its
/// file is known.
fn install(module: &Module, noted: Option<u64>, folder: &Folder) -> Option<()> {
    let (file, len) = folder.open(module, b".overlay", false)?;
    let mut page = [0; PAGE as usize];
    file.read(&mut page, len.checked_sub(PAGE)?)?;
    let meta = Meta::decode(&page)?;
    let same_module = meta.build_id == module.build_id
        && meta.build_id_len == module.build_id_len as u64
        && (meta.segment_start, meta.segment_len) == module.segment;
    if !same_module || meta.file_len != len {
        return None;
    }
    if !is_original(module, noted, meta.original, folder) {
        return None;
    }
    if is_held_out(&meta) {
        file.show(HELD_AT);
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
    // SAFETY: there is one thread. The code that is replaced is that of a module whose functions do not run:
    // on the stack are the loader, which has no overlay, and this library. Its new bytes are the same but for
    // jumps over instructions that the version has copies of.
    unsafe {
        if !versions::add(version) {
            sys::unmap(start, meta.version_len);
            return None;
        }
        let counters = map_counters(&meta, module, folder);
        let done = counters && file.map(text, meta.text_len, READ | EXECUTE, PRIVATE, meta.text_offset);
        if !done {
            versions::remove_last();
            sys::unmap(start, meta.version_len);
        }
    }
    Some(())
}

/// Whether this process is one of those that run the original code for comparison. The kernel's random bytes
/// decide, for each module anew: nothing else that the process does depends on it.
fn is_held_out(meta: &Meta) -> bool {
    if meta.held_out == 0 {
        return false;
    }
    let Some(random) = libc::random_bytes() else { return false };
    // FNV-1a.
    let all = random.iter().chain(&meta.build_id);
    let hash = all.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash >> 56 < meta.held_out
}

/// The counts files that this process counts in: where they are mapped.
static COUNTING: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

/// Maps the counters of a counting version, if there is a ticket left.
///
/// # Safety
/// There must be one thread.
unsafe fn map_counters(meta: &Meta, module: &Module, folder: &Folder) -> bool {
    if meta.counters_len == 0 {
        return true;
    }
    // SAFETY: as promised by the caller.
    unsafe { try_map_counters(meta, module, folder) }.is_some()
}

/// # Safety
/// There must be one thread.
unsafe fn try_map_counters(meta: &Meta, module: &Module, folder: &Folder) -> Option<()> {
    let (file, len) = folder.open(module, b".counts", true)?;
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
    // SAFETY: mapped a moment ago, for as long as the process lives; aligned; everybody changes it by atomic
    // operations only.
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
