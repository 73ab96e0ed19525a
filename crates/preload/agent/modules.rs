//! The modules of this process, as its loader lists them.

use crate::format::MAX_BUILD_ID;
use crate::libc::{self, ITERATE_OBJECTS, IterateObjects, PhdrInfo};
use crate::sys::{self, File};
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
    path: *const c_char,
    /// Its program headers, which live as long, and how many there are.
    headers: *const u8,
    header_count: usize,
}

/// A segment that is loaded: `p_offset`, `p_vaddr`, `p_filesz` and permissions.
pub struct Load {
    pub offset: u64,
    pub start: u64,
    pub file_len: u64,
    pub readable: bool,
    pub writable: bool,
}

impl Module {
    /// The same, with the identity of its content.
    pub fn identified(&self, build_id: [u8; MAX_BUILD_ID], build_id_len: usize) -> Self {
        Self { build_id, build_id_len, ..*self }
    }

    /// What is loaded of its file, in the order of the program headers.
    pub fn loads(&self) -> impl Iterator<Item = Load> {
        let headers = (0..self.header_count).map(|i| {
            // SAFETY: the loader's table has so many entries, and lives as long as the module.
            unsafe { header(self.headers, i) }
        });
        headers.filter(|h| h[0] as u32 == 1).map(|h| {
            let flags = h[0] >> 32;
            Load { offset: h[1], start: h[2], file_len: h[4], readable: flags & 4 != 0, writable: flags & 2 != 0 }
        })
    }

    /// The path of its file, which ends in a zero byte: for the program, whatever is executed.
    pub fn path(&self) -> Option<*const u8> {
        if self.path.is_null() {
            return None;
        }
        // SAFETY: the loader's names end in zero bytes.
        let is_program = unsafe { self.path.read() } == 0;
        Some(if is_program { c"/proc/self/exe".as_ptr() } else { self.path }.cast())
    }

    /// The file that its path names.
    pub fn file(&self) -> Option<File> {
        // SAFETY: it ends in a zero byte.
        unsafe { sys::open_text(self.path()?) }
    }
}

/// `Elf64_Phdr` number `i` of a table: p_type, p_flags; then p_offset, p_vaddr, p_paddr, p_filesz, p_memsz.
///
/// # Safety
/// There have to be so many, of 56 bytes each.
unsafe fn header(headers: *const u8, i: usize) -> [u64; 7] {
    // SAFETY: promised by the caller.
    unsafe { headers.add(56 * i).cast::<[u64; 7]>().read_unaligned() }
}

const NONE: Module = Module {
    bias: 0,
    segment: (0, 0),
    readable: false,
    build_id: [0; MAX_BUILD_ID],
    build_id_len: 0,
    path: core::ptr::null(),
    headers: core::ptr::null(),
    header_count: 0,
};

/// Modules of this process that may have overlays.
pub struct Modules {
    list: [Module; MOST],
    count: usize,
}

impl Modules {
    /// Those that are loaded; nothing in a process that is not single-threaded, or whose C library is not
    /// known.
    pub fn of_process() -> Option<Self> {
        let next = ITERATE_OBJECTS.get();
        if next == 0 || !libc::is_single_threaded_glibc() {
            return None;
        }
        let mut modules = Self { list: [NONE; MOST], count: 0 };
        // SAFETY: the C library's `dl_iterate_phdr`; `collect` gets the list back, which outlives the call.
        // The modules are only noted here: when their code is replaced, none of it must be running.
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
    let (headers, header_count) = (info.headers, usize::from(info.header_count));
    let mut module = Module { bias: info.addr, path: info.name, headers, header_count, ..NONE };
    let mut executable = 0;
    for i in 0..header_count {
        // SAFETY: the table has so many entries.
        let header = unsafe { header(headers, i) };
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
