//! What is used of the C library, found by weak symbols and by `dlsym`. Null where it has none.

use core::arch::asm;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The address of a weak symbol.
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: reads this library's own global offset table.
        unsafe {
            asm!(concat!(".weak ", $name), concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"), out(reg) address,
                 options(nostack, preserves_flags, readonly, pure));
        }
        address
    }};
}

/// `struct dl_phdr_info` since glibc 2.4.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PhdrInfo {
    pub addr: u64,
    pub name: *const c_char,
    pub headers: *const u8,
    pub header_count: u16,
    pub adds: u64,
    pub subs: u64,
    pub tls_modid: usize,
    pub tls_data: *mut c_void,
}

/// `Dl_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AddressInfo {
    pub file: *const c_char,
    pub base: *mut c_void,
    pub symbol: *const c_char,
    pub symbol_at: *mut c_void,
}

pub type EachObject = unsafe extern "C" fn(*mut PhdrInfo, usize, *mut c_void) -> c_int;
pub type IterateObjects = unsafe extern "C" fn(EachObject, *mut c_void) -> c_int;
pub type FindObject = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;
pub type FindSymbol = unsafe extern "C" fn(*const c_void, *mut AddressInfo) -> c_int;
pub type FindSymbol1 =
    unsafe extern "C" fn(*const c_void, *mut AddressInfo, *mut *mut c_void, c_int) -> c_int;

/// `struct dl_find_object` (glibc manual, "Dynamic Linker Introspection").
#[repr(C)]
pub struct FoundObject {
    pub flags: u64,
    pub start: *const c_void,
    pub end: *const c_void,
    pub link_map: *const c_void,
    pub eh_frame: *const c_void,
}

/// A function of the next library in search order, found once.
pub struct Next {
    address: AtomicUsize,
    name: &'static [u8],
}

impl Next {
    /// `name` ends in a zero byte.
    pub const fn new(name: &'static [u8]) -> Self {
        Self { address: AtomicUsize::new(0), name }
    }

    /// Its address; 0 if there is none. Once the library is initialized nothing is looked up any more:
    /// `dlsym` takes a lock, and a forked child may have inherited it from a thread that it does not have.
    pub fn get(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 if !INITIALIZED.load(Ordering::Relaxed) => self.find(),
            known => known,
        }
    }

    pub fn find(&self) -> usize {
        const NEXT: *mut c_void = -1isize as *mut c_void;
        let dlsym = weak!("dlsym");
        if dlsym == 0 || self.name.last() != Some(&0) {
            return 0;
        }
        // SAFETY: the C library's `dlsym`; the name ends in a zero byte. The call is made from this library,
        // so that "next" means behind it.
        let found = unsafe {
            let dlsym: extern "C" fn(*mut c_void, *const c_char) -> *mut c_void = core::mem::transmute(dlsym);
            dlsym(NEXT, self.name.as_ptr().cast())
        };
        self.address.store(found as usize, Ordering::Relaxed);
        found as usize
    }
}

/// Whether everything has been looked up.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Everything has been looked up.
pub fn initialized() {
    INITIALIZED.store(true, Ordering::Relaxed);
}

pub static FIND_OBJECT: Next = Next::new(b"_dl_find_object\0");
pub static ITERATE_OBJECTS: Next = Next::new(b"dl_iterate_phdr\0");
pub static FIND_SYMBOL: Next = Next::new(b"dladdr\0");
pub static FIND_SYMBOL1: Next = Next::new(b"dladdr1\0");

/// Finds all, while the process is in one thread and no signal handler runs. Whether this library stands in
/// front of the C library: else unwinders ask that one, which knows of no versions.
pub fn find() -> bool {
    for next in [&FIND_OBJECT, &ITERATE_OBJECTS, &FIND_SYMBOL, &FIND_SYMBOL1] {
        next.find();
    }
    ITERATE_OBJECTS.get() != 0
}

/// Whether this is glibc, of a version that tells about threads, and the process has but one.
pub fn is_single_threaded_glibc() -> bool {
    let (version, single) = (weak!("gnu_get_libc_version"), weak!("__libc_single_threaded"));
    // SAFETY: `char __libc_single_threaded` since glibc 2.32.
    version != 0 && single != 0 && unsafe { *(single as *const c_char) } != 0
}

/// Sixteen random bytes that the kernel gives each program that begins (getauxval(3), `AT_RANDOM`).
pub fn random_bytes() -> Option<[u8; 16]> {
    const AT_RANDOM: usize = 25;
    let getauxval = weak!("getauxval");
    if getauxval == 0 {
        return None;
    }
    // SAFETY: the C library's `getauxval`, which reads the auxiliary vector.
    let at = unsafe {
        let getauxval: extern "C" fn(usize) -> usize = core::mem::transmute(getauxval);
        getauxval(AT_RANDOM)
    };
    // SAFETY: the kernel's sixteen bytes on the stack, which stay there. Read as they are: nobody writes
    // them.
    (at != 0).then(|| unsafe { (at as *const [u8; 16]).read() })
}

/// Where the C library keeps the environment: `char **environ`.
pub fn environment_slot() -> Option<*mut *const *const u8> {
    let environ = weak!("environ");
    (environ != 0).then_some(environ as *mut *const *const u8)
}

/// The environment as programs see it; null if there is none.
pub fn environment() -> *const *const u8 {
    // SAFETY: see `environment_slot`.
    environment_slot().map_or(core::ptr::null(), |slot| unsafe { *slot })
}
