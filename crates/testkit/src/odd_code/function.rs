//! Functions, and how unwind tables speak of them.

use super::pieces::PIECES;
use super::text::Text;

/// Which unwind table entries a function has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unwind {
    /// One that covers it.
    Own,
    /// None.
    Without,
    /// One of length zero at its start, and its own.
    EmptyToo,
    /// One that begins behind its first instruction.
    Late,
    /// One that does not cover the data behind it.
    WithoutData,
    /// One that covers data in front of it as well.
    DataInFront,
}

const UNWINDS: &[Unwind] = &[
    Unwind::Own,
    Unwind::Own,
    Unwind::Own,
    Unwind::Own,
    Unwind::Own,
    Unwind::Own,
    Unwind::Without,
    Unwind::EmptyToo,
    Unwind::Late,
    Unwind::WithoutData,
    Unwind::DataInFront,
];

/// Writes function `index`.
pub(super) fn write(text: &mut Text, index: usize) {
    let unwind = text.random.pick(UNWINDS);
    begin(text, index, unwind);
    let pieces = 2 + text.random.below(9);
    let second = text.random.below(pieces);
    for number in 0..pieces {
        if number == second {
            // (Whoever comes in here has something in the accumulator, as everybody else.)
            text.line(format!(".globl f{index}_second\nf{index}_second:"));
        }
        piece(text, index);
    }
    end(text, index, unwind);
}

fn begin(text: &mut Text, index: usize, unwind: Unwind) {
    text.line(format!("# function {index}: {unwind:?}"));
    if text.random.one_in(2) {
        text.line(".p2align 4");
    }
    text.has_unwind =
        matches!(unwind, Unwind::Own | Unwind::EmptyToo | Unwind::DataInFront | Unwind::WithoutData);
    match unwind {
        Unwind::EmptyToo => text.line(".cfi_startproc\n.cfi_endproc\n.cfi_startproc"),
        Unwind::DataInFront => {
            text.line(".cfi_startproc");
            let label = text.label();
            let data = text.data(&label, 2, 8);
            text.line(data);
        }
        Unwind::Own | Unwind::WithoutData => text.line(".cfi_startproc"),
        Unwind::Without | Unwind::Late => {}
    }
    text.line(format!(".globl f{index}\n.type f{index}, @function\nf{index}:"));
    if text.random.one_in(3) {
        text.line("endbr64");
    }
    text.line("mov %rdi, %rax");
    if unwind == Unwind::Late {
        text.line(".cfi_startproc");
        text.has_unwind = true;
    }
}

fn piece(text: &mut Text, index: usize) {
    let all: u64 = PIECES.iter().map(|(_, weight, _)| weight).sum();
    let mut at = text.random.below(all);
    for (name, weight, write) in PIECES {
        if at < *weight {
            text.line(format!("# {name}"));
            return write(text, index);
        }
        at -= weight;
    }
}

fn end(text: &mut Text, index: usize, unwind: Unwind) {
    leave(text, index);
    let behind = std::mem::take(&mut text.behind);
    let closes = text.has_unwind;
    if closes && unwind == Unwind::WithoutData {
        text.line(".cfi_endproc");
    }
    text.line(behind);
    if closes && unwind != Unwind::WithoutData {
        text.line(".cfi_endproc");
    }
    text.line(format!(".size f{index}, . - f{index}"));
    if text.random.one_in(3) {
        text.line(".byte 0xcc, 0xcc, 0xcc");
    }
}

/// Leaves the function: by a return, or into another one, or on a condition.
fn leave(text: &mut Text, index: usize) {
    let other = (index > 0).then(|| text.random.below(index as u64));
    match (text.random.below(6), other) {
        (0, Some(other)) => text.line(format!("jmp f{other}")),
        (1, Some(other)) => text.line(format!("test $2, %dil\nje f{other}\nret")),
        (2, Some(other)) => text.line(format!("xor $9, %rdi\njmp f{other}_second")),
        (3, _) => text.line("rep ret"),
        _ => text.line("ret"),
    }
}
