//! The modules of this process, as its loader lists them.

use crate::format::MAX_BUILD_ID;
use crate::libc::{self, ITERATE_OBJECTS, IterateObjects, PhdrInfo};
use crate::versions::{self, MOST};
use core::ffi::{c_char, c_int, c_void};

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

/// Modules of this process that may have overlays.
pub struct Modules {
    list: [Module; MOST],
    count: usize,
}

impl Modules {
    /// Those that are loaded; nothing in a process that is not single-threaded, or whose C library is not known.
    pub fn of_process() -> Option<Self> {
        let next = ITERATE_OBJECTS.get();
        if next == 0 || !libc::is_single_threaded_glibc() {
            return None;
        }
        let mut modules = Self { list: [NONE; MOST], count: 0 };
        // SAFETY: the C library's `dl_iterate_phdr`; `collect` gets the list back, which outlives the call. The modules are only noted
        // here: when their code is replaced, none of it must be running.
        unsafe {
            core::mem::transmute::<usize, IterateObjects>(next)(collect, (&raw mut modules).cast());
        }
        Some(modules)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        self.list.iter().take(self.count)
    }
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
