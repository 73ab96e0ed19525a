//! Where in the original code there is room for a patch, and where that of a function goes.
//!
//! A patch overwrites five bytes. Nothing but a thread that already stands there may come to the bytes behind
//! the first one: no call returns there and no block starts there, and no static probe is among all five,
//! since a tracer would write a breakpoint into them. (A block that only control from above reaches would do
//! no harm now, but an older version that left it in the original code jumps to it. The strict rule costs
//! less than two entries in a thousand.)
//!
//! Probes of the kernel (uprobes) and breakpoints of debuggers are set on the first instruction of a
//! function, or behind those that make its frame. So these stay, where there is room for the patch behind
//! them.

use crate::lookup::Lookup;
use crate::request::Request;
use restitch_address::{PAGE, Svma, SvmaRange};
use restitch_program::{FuncId, Program};
use restitch_x86::entry::frame_made;
use restitch_x86::kernel::KernelEntry;
use restitch_x86::patch::Patch;
use restitch_x86::{Flow, LONGEST, decode_one};

/// How many instructions may stay in front of an entry's patch: those that make a frame and a static probe
/// behind them.
const PROLOGUE: usize = 4;

/// The places behind the first instructions of a function where its patch may go, the best one first: behind
/// what makes a frame, behind the first one, behind static probes.
pub(crate) fn behind_the_first(request: &Request<'_>, lookup: &Lookup<'_>, id: FuncId) -> Vec<Svma> {
    let function = request.program.function(id);
    let start = function.range.start;
    let block = lookup.starting_at(start).map(|id| request.program.block(id));
    let (Some(block), Some(bytes)) = (block, request.image.read_tail(start)) else { return Vec::new() };
    let behind = behind_plain(bytes, start);
    let is_behind_probe =
        |at: &&Svma| !request.image.static_probes_in(SvmaRange::new(at.offset(-1), 1)).is_empty();
    let probed = behind.iter().skip(1).filter(is_behind_probe);
    let made = frame_made(bytes).map(|len| start + len as u64);
    let places = made.iter().chain(behind.first()).chain(probed).copied();
    // In a process no patch crosses a page (a killed writer would leave half of it).
    let whole = |at: Svma| request.bias.is_none() || at.get() % PAGE + Patch::LEN as u64 <= PAGE;
    let fits = |at: &Svma| *at < block.end() && whole(*at) && has_room(request, *at, function.range);
    places.filter(fits).collect()
}

/// Whether a patch at `at` harms nobody; `function` is the range of its function.
pub(crate) fn has_room(request: &Request<'_>, at: Svma, function: SvmaRange) -> bool {
    let bytes = SvmaRange::new(at, Patch::LEN as u64);
    function.covers(&bytes)
        && is_free(request.program, bytes)
        && !returns_into(request.program, bytes)
        && request.image.static_probes_in(bytes).is_empty()
}

/// Whether no block starts behind the first byte.
fn is_free(program: &Program, bytes: SvmaRange) -> bool {
    let next = program.blocks.partition_point(|b| b.start <= bytes.start);
    program.blocks.get(next).is_none_or(|b| b.start >= bytes.end)
}

/// The addresses behind each of the instructions at `at`, up to [`PROLOGUE`] and as long as each goes on to
/// the next one by itself, without the kernel.
fn behind_plain(bytes: &[u8], at: Svma) -> Vec<Svma> {
    let mut behind = Vec::with_capacity(PROLOGUE);
    let mut next = at;
    while behind.len() < PROLOGUE
        && let Some(rest) = bytes.get(next.offset_from(at) as usize..)
        && let Some(decoded) = decode_one(rest, next)
        && decoded.insn.flow == Flow::Next
        && !is_system_call(rest)
    {
        next = next + u64::from(decoded.insn.len);
        behind.push(next);
    }
    behind
}

/// Whether `bytes` begin with `syscall`, `sysenter` or `int`.
fn is_system_call(bytes: &[u8]) -> bool {
    KernelEntry::beginning_of(bytes).is_some_and(|entry| entry != KernelEntry::Trap)
}

/// Whether a call returns to a byte of `bytes` behind the first one.
fn returns_into(program: &Program, bytes: SvmaRange) -> bool {
    let first = program.calls.partition_point(|call| call.at + (LONGEST as u64) < bytes.start);
    program.calls[first..].iter().take_while(|call| call.at < bytes.end).any(|call| {
        let back = call.at + u64::from(call.len);
        bytes.contains(back) && back != bytes.start
    })
}
