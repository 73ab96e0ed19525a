//! Detours: a function's first bytes become a jump to a routine of ours, which can still call the function.
//!
//! The instructions that the jump overwrites are moved to a *trampoline*, which runs them and goes on behind
//! them. Only what means the same at another address may be moved: no branches or calls; RIP-relative
//! operands keep their target. Each instruction keeps its length, so that a thread that stands among them has
//! its place in the trampoline at the same offset.
//!
//! Limits: a function whose first bytes hold a branch or a call, or into which its own code jumps back, or
//! that is shorter than the jump, is refused.

use crate::entry_patch::LEN;
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{Row, Run, UnwindInfo};
use restitch_image::Image;
use restitch_program::reachable_code;
use restitch_x86::patch::Patch;
use restitch_x86::{Flow, Insn, LONGEST, relocate_field, scan};

/// Most bytes of a trampoline: four bytes of other instructions, one of 15, and the jump.
pub(crate) const MOST_TRAMPOLINE: usize = LEN - 1 + LONGEST + LEN;

/// The displaced beginning of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Displaced {
    /// The function, in its module's coordinates.
    pub function: Svma,
    /// The trampoline's bytes, the jump behind the displaced instructions included.
    pub code: Vec<u8>,
    /// Offsets at which displaced instructions begin, in the function and in the trampoline alike.
    pub boundaries: Vec<u8>,
    /// The first bytes of the function.
    pub original: Patch,
}

impl Displaced {
    /// Displaces the first instructions of `function` to `to`, in the coordinates of `image`.
    ///
    /// The error says why that cannot be.
    pub fn new(image: &Image, unwind: &UnwindInfo, function: Svma, to: Svma) -> Result<Self, String> {
        let bytes = image.read_tail(function).unwrap_or_default();
        let Some(original) = Patch::beginning_of(bytes) else {
            return Err("its code is not in the file".into());
        };
        let (mut code, mut boundaries) = (Vec::new(), Vec::new());
        while code.len() < LEN {
            let (at, from) = (function + code.len() as u64, code.len());
            let rest = bytes.get(from..).unwrap_or_default();
            let (insn, field) = relocate_field(&rest[..rest.len().min(LONGEST)], at)
                .ok_or_else(|| format!("its instruction at {at} is not understood"))?;
            if insn.flow != Flow::Next {
                return Err(format!("the instruction at {at} in its first {LEN} bytes cannot be moved"));
            }
            boundaries.push(from as u8);
            code.extend_from_slice(&rest[..usize::from(insn.len)]);
            if let Some(field) = field {
                let end = to + code.len() as u64;
                let value = i32::try_from(field.target.offset_from(end)).map_err(|_| "it is too far away")?;
                let place = from + usize::from(field.offset);
                code[place..place + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
        stands_alone(image, unwind, function, code.len())?;
        let back = function + code.len() as u64;
        let jump = Patch::jump(back.offset_from(to + code.len() as u64)).ok_or("it is too far away")?;
        code.extend_from_slice(jump.bytes());
        Ok(Self { function, code, boundaries, original })
    }

    /// The unwind states of the trampoline at `at`: those of the original instructions. `None` if they are
    /// not known.
    pub fn run(&self, unwind: &UnwindInfo, at: Svma) -> Option<Run> {
        let rows = unwind.rows(unwind.find(self.function)?).ok()?;
        let behind = (self.code.len() - LEN) as u8;
        let mut out: Vec<Row> = Vec::new();
        for offset in self.boundaries.iter().chain([&behind]) {
            let state = &restitch_cfi::row_at(&rows, self.function + u64::from(*offset))?.state;
            if state.depends_on_position() {
                return None;
            }
            if out.last().is_none_or(|last| last.state != *state) {
                out.push(Row { start: at + u64::from(*offset), state: state.clone() });
            }
        }
        let range = SvmaRange::new(at, self.code.len() as u64);
        Some(Run { range, rows: out, personality: None, lsda: None, signal_frame: false })
    }
}

/// Whether the function has more than its first `len` bytes, and no branch of its own goes back among them.
fn stands_alone(image: &Image, unwind: &UnwindInfo, function: Svma, len: usize) -> Result<(), String> {
    let behind = function + len as u64;
    let branches = match extent(image, unwind, function) {
        Some(range) if behind >= range.end => {
            return Err(format!("it is shorter than the {LEN} bytes of a jump"));
        }
        Some(range) => listed(image, range)?,
        // Control falls through its first bytes, as they were displaced: so it is longer.
        None => followed(image, function)?,
    };
    let inside = branches.iter().find(|insn| {
        let (Flow::Jump(to) | Flow::Conditional(_, to) | Flow::ShortConditional(to) | Flow::Call(to)) =
            insn.flow
        else {
            return false;
        };
        to > function && to < behind
    });
    match inside {
        Some(insn) => Err(format!("its instruction at {} branches into its first {LEN} bytes", insn.at)),
        None => Ok(()),
    }
}

/// The function's range, if anything tells it: musl's own code has no unwind tables, and perhaps symbols.
fn extent(image: &Image, unwind: &UnwindInfo, function: Svma) -> Option<SvmaRange> {
    let by_table = unwind.find(function).map(|e| e.range);
    let by_symbol = || image.symbol_at(function).map(|s| s.range);
    by_table.or_else(by_symbol).filter(|r| r.start == function && !r.is_empty())
}

/// All instructions in `range`.
fn listed(image: &Image, range: SvmaRange) -> Result<Vec<Insn>, String> {
    let bytes = image.read(range.start, range.len() as usize).unwrap_or_default();
    let mut out = Vec::new();
    let unknown = |at| format!("its instruction at {at} is not understood");
    scan(bytes, range.start, |insn| out.push(insn)).map_err(unknown)?;
    Ok(out)
}

/// All instructions that control reaches from `function`.
fn followed(image: &Image, function: Svma) -> Result<Vec<Insn>, String> {
    let code = reachable_code(image, function).ok_or(
        "it has neither an unwind table entry nor a symbol with a size, and its code cannot be followed to its end",
    )?;
    Ok(code.into_iter().map(|d| d.insn).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::{compile, skipped};
    use restitch_x86::{Op, decode_one};
    use std::path::Path;

    /// A program of assembly functions, each with its unwind table entry.
    fn assembled(body: &str) -> Option<(Image, UnwindInfo)> {
        let dir = restitch_testkit::scratch();
        let source = dir.path().join("f.c");
        let text = format!(
            "__asm__(\".text\\n.globl f\\n.type f,@function\\nf: .cfi_startproc\\n{}\\n.cfi_endproc\\n.size f,.-f\\n\");\nvoid f(void);\nint value;\nint main(void) {{ f(); return value; }}\n",
            body.replace('\n', "\\n")
        );
        std::fs::write(&source, text).unwrap();
        let path = match compile(Path::new(&source), &["-O1", "-no-pie"]) {
            Ok(path) => path,
            Err(error) => {
                skipped(&error.to_string());
                return None;
            }
        };
        let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
        let at = image.eh_frame().unwrap();
        let unwind = UnwindInfo::parse(image.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
        Some((image, unwind))
    }

    fn displaced(body: &str) -> Option<Result<(Displaced, Svma, Svma), String>> {
        let (image, unwind) = assembled(body)?;
        let f = image.symbols_named("f").next().unwrap().range.start;
        let to = f + 0x10_0000;
        let value = image.symbols_named("value").next().unwrap().range.start;
        Some(Displaced::new(&image, &unwind, f, to).map(|d| (d, to, value)))
    }

    #[test]
    fn pushes_move_with_their_unwind_states() {
        let body = "push %r15\n.cfi_adjust_cfa_offset 8\npush %r14\n.cfi_adjust_cfa_offset 8\npush %r13\n.cfi_adjust_cfa_offset 8\npop %r13\npop %r14\npop %r15\nret";
        let Some((image, unwind)) = assembled(body) else { return };
        let f = image.symbols_named("f").next().unwrap().range.start;
        let to = f - 0x1000;
        let d = Displaced::new(&image, &unwind, f, to).unwrap();
        assert_eq!(d.boundaries, [0, 2, 4]);
        assert_eq!(d.code[..6], *image.read(f, 6).unwrap());
        assert_eq!(Some(d.original), image.read_tail(f).and_then(Patch::beginning_of));
        let jump = decode_one(&d.code[6..], to + 6).unwrap();
        assert_eq!(jump.insn.flow, Flow::Jump(f + 6));
        let run = d.run(&unwind, to).unwrap();
        let starts: Vec<u64> = run.rows.iter().map(|r| r.start.offset_from(to) as u64).collect();
        assert_eq!(starts, [0, 2, 4, 6]);
    }

    #[test]
    fn a_rip_relative_operand_keeps_its_target() {
        let Some(result) = displaced("mov value(%rip),%eax\nxor %ecx,%ecx\nret") else { return };
        let (d, to, value) = result.unwrap();
        let load = decode_one(&d.code, to).unwrap();
        assert!(matches!(load.op, Op::Load { mem, .. } if mem.disp == value.get() as i64), "{load:?}");
    }

    #[test]
    fn what_cannot_be_moved_is_refused() {
        for (body, why) in [
            ("nop\njmp 1f\n1: nop\nnop\nnop\nnop\nret", "cannot be moved"),
            ("push %rbp\ncall main\npop %rbp\nret", "cannot be moved"),
            ("ret\nnop\nnop\nnop\nnop\nnop\nnop", "cannot be moved"),
            (
                "push %rbp\n1: push %rbx\nxor %eax,%eax\nnop\nnop\npop %rbx\ntest %eax,%eax\njne 1b\npop %rbp\nret",
                "branches into",
            ),
            ("mov $5,%eax", "shorter"),
        ] {
            let Some(result) = displaced(body) else { return };
            let error = result.unwrap_err();
            assert!(error.contains(why), "{body}: {error}");
        }
    }

    /// A static program of musl's, whose C library has no unwind tables, without its symbols; where it has
    /// `dl_iterate_phdr`.
    fn stripped_with_musl() -> Option<(Image, UnwindInfo, Svma)> {
        let folder = restitch_testkit::scratch();
        let source = folder.path().join("m.c");
        let text = "#define _GNU_SOURCE\n#include <link.h>\nstatic int each(struct dl_phdr_info *i, size_t n, void *d) { return i->dlpi_phnum + n; }\nint main(void) { return dl_iterate_phdr(each, 0); }\n";
        std::fs::write(&source, text).unwrap();
        let path = match restitch_testkit::compile_with("musl-gcc", &source, &["-O1", "-static"]) {
            Ok(path) => path,
            Err(error) => {
                skipped(&error.to_string());
                return None;
            }
        };
        let image = |path: &Path| Image::parse(std::fs::read(path).unwrap()).unwrap();
        let function = image(&path).symbols_named("dl_iterate_phdr").next().unwrap().range.start;
        let bare = image(&restitch_testkit::strip(&path).unwrap());
        let at = bare.eh_frame().unwrap();
        let unwind = UnwindInfo::parse(bare.read(at.start, at.len() as usize).unwrap(), at.start).unwrap();
        Some((bare, unwind, function))
    }

    #[test]
    fn a_function_of_unknown_length_is_followed() {
        let Some((image, unwind, f)) = stripped_with_musl() else { return };
        assert_eq!(extent(&image, &unwind, f), None);
        let d = Displaced::new(&image, &unwind, f, f + 0x10_0000).unwrap();
        assert_eq!(d.original.bytes(), image.read(f, LEN).unwrap());
        assert_eq!(d.run(&unwind, f + 0x10_0000), None, "nothing tells its unwind states");
    }
}
