//! The versions that were mapped, and who asks for them: unwinders, and programs that ask what is at an
//! address.
//!
//! The functions here stand in front of the C library's by symbol interposition. The table is filled before
//! the program's first instruction and never changes, so that they need no lock.

use crate::format::{AGENT_NAME, AGENT_OF_EVERY_KIND};
use crate::libc::{
    AddressInfo, EachObject, FIND_OBJECT, FIND_SYMBOL, FIND_SYMBOL1, FindObject, FindSymbol, FindSymbol1,
    FoundObject, ITERATE_OBJECTS, IterateObjects, PhdrInfo,
};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A mapped version.
#[derive(Clone, Copy)]
pub struct Version {
    pub start: u64,
    pub end: u64,
    pub eh_frame_hdr: u64,
    /// An address of its module.
    pub module: u64,
    /// Its module's `struct link_map`; null if it is not known.
    pub link_map: *const c_void,
}

/// Most versions in a process.
pub const MOST: usize = 64;

const NONE: Version = Version { start: 0, end: 0, eh_frame_hdr: 0, module: 0, link_map: null() };

struct Table(UnsafeCell<[Version; MOST]>);
// SAFETY: written by `add` alone, which is called in one thread before there are others; entries are read
// below COUNT only.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([NONE; MOST]));
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Adds a version.
///
/// # Safety
/// There must be one thread.
pub unsafe fn add(version: Version) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    // SAFETY: nobody reads the row yet, and nobody else writes.
    let rows = unsafe { &mut *TABLE.0.get() };
    let Some(row) = rows.get_mut(count) else { return false };
    *row = version;
    COUNT.store(count + 1, Ordering::Release);
    true
}

/// Takes back the version that was added last.
///
/// # Safety
/// There must be one thread, and nobody may run in the version.
pub unsafe fn remove_last() {
    let count = COUNT.load(Ordering::Relaxed);
    COUNT.store(count.saturating_sub(1), Ordering::Release);
}

fn versions() -> &'static [Version] {
    let count = COUNT.load(Ordering::Acquire);
    // SAFETY: rows below COUNT do not change once the program runs.
    let rows: &'static [Version; MOST] = unsafe { &*TABLE.0.get() };
    rows.get(..count).unwrap_or(&[])
}

fn version_at(address: u64) -> Option<&'static Version> {
    versions().iter().find(|v| v.start <= address && address < v.end)
}

/// `int _dl_find_object(void *pc, struct dl_find_object *result)`: what libgcc's unwinder asks, also from
/// signal handlers.
///
/// # Safety
/// As glibc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _dl_find_object(pc: *mut c_void, result: *mut FoundObject) -> c_int {
    if let Some(v) = version_at(pc as u64) {
        let (start, end) = (v.start as *const c_void, v.end as *const c_void);
        let eh_frame = v.eh_frame_hdr as *const c_void;
        // SAFETY: `result` points to a structure that begins like this one.
        unsafe { result.write(FoundObject { flags: 0, start, end, link_map: v.link_map, eh_frame }) };
        return 0;
    }
    let next = FIND_OBJECT.get();
    if next == 0 {
        return -1;
    }
    // SAFETY: the C library's function of this name.
    unsafe { core::mem::transmute::<usize, FindObject>(next)(pc, result) }
}

struct Iteration {
    callback: EachObject,
    data: *mut c_void,
    /// Objects that the C library has still to tell; `None` before the first one. At 0 versions are told.
    left: Option<usize>,
}

/// `int dl_iterate_phdr(callback, void *data)`: what other unwinders ask. The agent is left out, since nobody
/// has asked for it. Versions come behind the last object, since sanitizers want to be the first library of
/// all (`FindFirstDSOCallback` of compiler-rt's `asan_linux.cpp`), and while the C library still holds its
/// lock, as old unwinders keep what they found without one of their own.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dl_iterate_phdr(callback: EachObject, data: *mut c_void) -> c_int {
    let next = ITERATE_OBJECTS.get();
    if next == 0 {
        return 0;
    }
    let mut iteration = Iteration { callback, data, left: None };
    // SAFETY: the C library's function of this name; `each` gets the iteration back, which outlives the call.
    unsafe { core::mem::transmute::<usize, IterateObjects>(next)(each, (&raw mut iteration).cast()) }
}

/// # Safety
/// Called by [`dl_iterate_phdr`]'s original with an [`Iteration`].
unsafe extern "C" fn each(info: *mut PhdrInfo, size: usize, data: *mut c_void) -> c_int {
    // SAFETY: see above.
    let (iteration, object) = unsafe { (&mut *data.cast::<Iteration>(), info.read()) };
    let left = iteration.left.unwrap_or_else(count_objects);
    iteration.left = Some(left.saturating_sub(1));
    let adds = object.adds + versions().len() as u64;
    let mut copy = PhdrInfo { adds, ..object };
    if object.addr != own_base() {
        // SAFETY: the program's callback, called as the C library would.
        let result = unsafe { (iteration.callback)(&raw mut copy, size, iteration.data) };
        if result != 0 {
            return result;
        }
    }
    // Where objects were added meanwhile (musl), they come behind the versions.
    // SAFETY: the iteration runs.
    if left == 1 { unsafe { each_version(iteration, &copy, size) } } else { 0 }
}

/// How many objects the C library tells. It is asked while it tells the first one: glibc's lock is recursive,
/// musl holds none then and forgets no object.
fn count_objects() -> usize {
    let next = ITERATE_OBJECTS.get();
    let mut count = 0usize;
    if next != 0 {
        // SAFETY: the C library's function of this name; `count_one` gets the count back.
        unsafe {
            core::mem::transmute::<usize, IterateObjects>(next)(count_one, (&raw mut count).cast());
        }
    }
    count
}

/// # Safety
/// Called by the C library for [`count_objects`].
unsafe extern "C" fn count_one(_: *mut PhdrInfo, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: see above: `data` is the count.
    unsafe { *data.cast::<usize>() += 1 };
    0
}

/// Tells the versions; `like` is an object that has been told.
///
/// # Safety
/// The iteration must be one that runs.
unsafe fn each_version(iteration: &Iteration, like: &PhdrInfo, size: usize) -> c_int {
    for v in versions() {
        // SAFETY: a version begins with an ELF header: e_phoff at 32, e_phnum at 56.
        let (offset, count) =
            unsafe { (((v.start + 32) as *const u64).read(), ((v.start + 56) as *const u16).read()) };
        let mut info = PhdrInfo {
            addr: v.start,
            name: NAME.as_ptr().cast(),
            headers: (v.start + offset) as *const u8,
            header_count: count,
            tls_modid: 0,
            tls_data: null_mut(),
            ..*like
        };
        // SAFETY: as above.
        let result = unsafe { (iteration.callback)(&raw mut info, size, iteration.data) };
        if result != 0 {
            return result;
        }
    }
    0
}

/// Versions have no name that could be opened.
static NAME: [u8; 19] = *b"[restitch version]\0";

/// Where this library is loaded.
pub fn own_base() -> u64 {
    let base: u64;
    // SAFETY: the address of this library's own ELF header, a symbol of the linker's.
    unsafe {
        core::arch::asm!(".hidden __ehdr_start", "lea {}, [rip + __ehdr_start]", out(reg) base,
                         options(nostack, preserves_flags, nomem, pure));
    }
    base
}

/// `int dladdr(const void *address, Dl_info *info)`: an address in a version is one of its module.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dladdr(address: *const c_void, info: *mut AddressInfo) -> c_int {
    let next = FIND_SYMBOL.get();
    if next == 0 {
        return 0;
    }
    let version = version_at(address as u64);
    let place = version.map_or(address, |v| v.module as *const c_void);
    // SAFETY: the C library's function of this name.
    let found = unsafe { core::mem::transmute::<usize, FindSymbol>(next)(place, info) };
    // SAFETY: as above.
    unsafe { without_symbol(version, found, info) };
    found
}

/// `int dladdr1(const void *address, Dl_info *info, void **extra, int flags)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dladdr1(
    address: *const c_void,
    info: *mut AddressInfo,
    extra: *mut *mut c_void,
    flags: c_int,
) -> c_int {
    let next = FIND_SYMBOL1.get();
    if next == 0 {
        return 0;
    }
    let version = version_at(address as u64);
    let place = version.map_or(address, |v| v.module as *const c_void);
    // SAFETY: the C library's function of this name.
    let found = unsafe { core::mem::transmute::<usize, FindSymbol1>(next)(place, info, extra, flags) };
    // SAFETY: as above.
    unsafe { without_symbol(version, found, info) };
    found
}

/// The module of an address in a version is known, the symbol is not.
///
/// # Safety
/// `info` must be valid if `found` is not 0.
unsafe fn without_symbol(version: Option<&Version>, found: c_int, info: *mut AddressInfo) {
    if version.is_some() && found != 0 && !info.is_null() {
        // SAFETY: promised by the caller.
        unsafe {
            (*info).symbol = null();
            (*info).symbol_at = null_mut();
        }
    }
}

static OWN_PATH: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// The path that this library was loaded from, with its zero byte; null if nobody knows.
pub fn own_path() -> *const c_char {
    OWN_PATH.load(Ordering::Relaxed)
}

/// What stands in `LD_PRELOAD` for this library; null if nobody knows. Where it was loaded by a name for its
/// kind of processes, that is the name for all kinds.
pub fn preload_text() -> *const u8 {
    PRELOAD_TEXT.load(Ordering::Relaxed)
}

static PRELOAD_TEXT: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// What all names of the agent begin with.
const EVERY_KIND_BEGIN: &str = "librestitch-";
/// Longest text for `LD_PRELOAD`, with its zero byte.
const MOST_TEXT: usize = 320;

struct Text(UnsafeCell<[u8; MOST_TEXT]>);
// SAFETY: written by `find_preload_text` alone, while there is one thread; read behind PRELOAD_TEXT only.
unsafe impl Sync for Text {}
static TEXT: Text = Text(UnsafeCell::new([0; MOST_TEXT]));

/// Finds [`preload_text`].
fn find_preload_text(own: *const u8) {
    // SAFETY: the path ends in a zero byte, up to which it is read.
    let bytes = || (0..).map(|i| unsafe { own.add(i).read() }).take_while(|b| *b != 0);
    let mut name_at = 0;
    bytes().enumerate().filter(|(_, b)| *b == b'/').for_each(|(i, _)| name_at = i + 1);
    let is_plain = bytes().skip(name_at).eq(AGENT_NAME.bytes());
    if is_plain || !bytes().skip(name_at).take(EVERY_KIND_BEGIN.len()).eq(EVERY_KIND_BEGIN.bytes()) {
        PRELOAD_TEXT.store(own.cast_mut(), Ordering::Relaxed);
        return;
    }
    // SAFETY: there is one thread, and nobody has the address yet.
    let text = unsafe { &mut *TEXT.0.get() };
    let whole = bytes().take(name_at).chain(AGENT_OF_EVERY_KIND.bytes());
    let mut len = 0;
    for (slot, byte) in text.iter_mut().take(MOST_TEXT - 1).zip(whole) {
        *slot = byte;
        len += 1;
    }
    if len == name_at + AGENT_OF_EVERY_KIND.len() {
        PRELOAD_TEXT.store(text.as_mut_ptr(), Ordering::Relaxed);
    }
}

/// Finds [`own_path`] and [`preload_text`].
pub fn find_own_path() {
    let next = FIND_SYMBOL.get();
    let mut info = AddressInfo { file: null(), base: null_mut(), symbol: null(), symbol_at: null_mut() };
    if next == 0 {
        return;
    }
    // SAFETY: the C library's `dladdr`, with an address of this library. The name lives as long as the
    // library.
    let found = unsafe {
        core::mem::transmute::<usize, FindSymbol>(next)(own_base() as *const c_void, &raw mut info)
    };
    if found != 0 {
        OWN_PATH.store(info.file.cast_mut(), Ordering::Relaxed);
        find_preload_text(info.file.cast());
    }
}

/// The `struct link_map` of the object that holds `address`; null if nobody knows.
///
/// Where there is one, `_dl_find_object` is asked: it looks the address up in a sorted table, while `dladdr1`
/// reads all of the object's symbols to find one that nobody wants (in libLLVM and libclang-cpp some
/// megabytes, at the start of each process).
pub fn link_map_of(address: u64) -> *const c_void {
    match link_map_by_address(address) {
        map if map.is_null() => link_map_by_symbol(address),
        map => map,
    }
}

fn link_map_by_address(address: u64) -> *const c_void {
    let next = FIND_OBJECT.get();
    if next == 0 {
        return null();
    }
    // `struct dl_find_object` has five words and seven reserved ones.
    let mut found = [0u64; 16];
    // SAFETY: the C library's function of this name writes that structure, for which there is room; all bytes
    // are zero where it does not.
    unsafe {
        let find = core::mem::transmute::<usize, FindObject>(next);
        let is_found = find(address as *mut c_void, found.as_mut_ptr().cast()) == 0;
        if is_found { (*found.as_ptr().cast::<FoundObject>()).link_map } else { null() }
    }
}

fn link_map_by_symbol(address: u64) -> *const c_void {
    const LINK_MAP: c_int = 2;
    let next = FIND_SYMBOL1.get();
    let mut info = AddressInfo { file: null(), base: null_mut(), symbol: null(), symbol_at: null_mut() };
    let mut map: *mut c_void = null_mut();
    if next == 0 {
        return null();
    }
    // SAFETY: the C library's `dladdr1`; RTLD_DL_LINKMAP stores a `struct link_map *`.
    let found = unsafe {
        let dladdr1 = core::mem::transmute::<usize, FindSymbol1>(next);
        dladdr1(address as *const c_void, &raw mut info, &raw mut map, LINK_MAP)
    };
    if found == 0 { null() } else { map }
}
