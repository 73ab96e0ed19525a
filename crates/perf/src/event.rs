//! Opening events.

use perf_event_open_sys as sys;
use restitch_address::Avma;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub(crate) use sys::bindings;
pub(crate) type Attributes = bindings::perf_event_attr;

/// Attributes of an event of this type, user code only, not started.
pub(crate) fn attributes(kind: u32, config: u64) -> Attributes {
    let mut attributes =
        Attributes { type_: kind, size: size_of::<Attributes>() as u32, config, ..Attributes::default() };
    attributes.set_disabled(1);
    attributes.set_exclude_kernel(1);
    attributes.set_exclude_hv(1);
    attributes
}

/// CPU cycles of the hardware.
pub(crate) fn cycles() -> Attributes {
    let config = bindings::PERF_COUNT_HW_CPU_CYCLES;
    attributes(bindings::PERF_TYPE_HARDWARE, config.into())
}

/// The CPU clock, a timer of the kernel's own.
pub(crate) fn cpu_clock() -> Attributes {
    attributes(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_CPU_CLOCK.into())
}

/// A breakpoint on the instruction at `at`.
pub(crate) fn execution_breakpoint(at: Avma) -> Attributes {
    let mut attributes = attributes(bindings::PERF_TYPE_BREAKPOINT, 0);
    attributes.bp_type = bindings::HW_BREAKPOINT_X;
    attributes.__bindgen_anon_3.bp_addr = at.get();
    // The kernel demands `sizeof(long)` for execution breakpoints.
    attributes.__bindgen_anon_4.bp_len = 8;
    attributes.__bindgen_anon_1.sample_period = 1;
    attributes
}

/// An open event.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// Opens an event for one thread (0: this one), on one CPU or (-1) wherever it runs, alone or in a group.
    pub(crate) fn open(
        attributes: &Attributes,
        tid: i32,
        cpu: i32,
        group: Option<&Event>,
    ) -> io::Result<Self> {
        let mut attributes = *attributes;
        let group = group.map_or(-1, |leader| leader.raw());
        let flags = bindings::PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: the kernel reads `attributes`, a live local whose `size` field is its size, and may write
        // that field.
        let fd = unsafe { sys::perf_event_open(&raw mut attributes, tid, cpu, group, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, open and owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Another descriptor of the same event, which lives as long as one of them.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    fn check(result: i32) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Starts the event, and those that children have inherited.
    pub(crate) fn enable(&self) -> io::Result<()> {
        // SAFETY: an ioctl on an owned descriptor whose argument is a number.
        Self::check(unsafe { sys::ioctls::ENABLE(self.raw(), 0) })
    }

    /// Halts the event, and those that children have inherited.
    pub(crate) fn disable(&self) -> io::Result<()> {
        // SAFETY: an ioctl on an owned descriptor whose argument is a number.
        Self::check(unsafe { sys::ioctls::DISABLE(self.raw(), 0) })
    }

    /// Sends the event's records to another event's ring.
    pub(crate) fn redirect_to(&self, other: &Event) -> io::Result<()> {
        // SAFETY: an ioctl on an owned descriptor whose argument is another open descriptor.
        Self::check(unsafe { sys::ioctls::SET_OUTPUT(self.raw(), other.raw()) })
    }

    /// Reads `buffer.len()` words.
    pub(crate) fn read_words(&self, buffer: &mut [u64]) -> io::Result<()> {
        let wanted = size_of_val(buffer);
        // SAFETY: the kernel writes at most `wanted` bytes, the size of the exclusively borrowed buffer of
        // integers.
        let read = unsafe { libc::read(self.raw(), buffer.as_mut_ptr().cast(), wanted) };
        match usize::try_from(read) {
            Ok(read) if read == wanted => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Lets this process open as many files as it may ask for.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the live local only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
