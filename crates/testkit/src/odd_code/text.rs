//! Assembler text that is being written.

use crate::random::Random;
use std::fmt::Write;

/// The text so far, and what the function that is being written needs to know.
pub(super) struct Text {
    pub out: String,
    pub random: Random,
    labels: usize,
    /// What follows the function's last instruction, in its range.
    pub behind: String,
    /// Whether the function has unwind directives.
    pub has_unwind: bool,
    /// Bytes pushed since the function's entry.
    pub pushed: usize,
    /// Whether the loader may write into code.
    pub text_relocations: bool,
    /// Whether code may have addresses as 32-bit numbers.
    pub fixed: bool,
}

impl Text {
    pub fn new(random: Random, text_relocations: bool, fixed: bool) -> Self {
        Self {
            out: String::new(),
            random,
            labels: 0,
            behind: String::new(),
            has_unwind: false,
            pushed: 0,
            text_relocations,
            fixed,
        }
    }

    /// A line of its own.
    pub fn line(&mut self, line: impl AsRef<str>) {
        self.out.push_str(line.as_ref());
        self.out.push('\n');
    }

    /// A new label's name.
    pub fn label(&mut self) -> String {
        self.labels += 1;
        format!(".L{}", self.labels)
    }

    /// Pushes a register, with the directive for unwinders.
    pub fn push(&mut self, register: &str) {
        self.line(format!("push {register}"));
        self.adjust(8);
    }

    /// Pops a register.
    pub fn pop(&mut self, register: &str) {
        self.line(format!("pop {register}"));
        self.adjust(-8);
    }

    /// Says to unwinders that the stack has grown by so many bytes.
    pub fn adjust(&mut self, bytes: isize) {
        self.pushed = self.pushed.wrapping_add_signed(bytes);
        if self.has_unwind {
            self.line(format!(".cfi_adjust_cfa_offset {bytes}"));
        }
    }

    /// `count` words of `size` bytes, as data: numbers of any kind, among them such that are instructions,
    /// filler, or small.
    pub fn data(&mut self, label: &str, count: usize, size: usize) -> String {
        let mut text = format!("{label}:\n");
        let kind = self.random.below(5);
        for _ in 0..count {
            let bits = match kind {
                0 => self.random.bits(),
                1 => self.random.below(256),
                2 => 0x9090_9090_9090_9090,
                3 => self.random.pick(&[
                    0x90c3_c0ff_c8ff_c0ff,
                    0x0000_4800_0000_48e8,
                    0xcccc_cccc_cccc_ccc3,
                    0x00eb_00eb_00eb_00eb,
                    0x4890_4890_4890_4890,
                ]),
                _ => self.random.bits() & 0x0f0f_0f0f_0f0f_0f0f,
            };
            let (directive, mask) = match size {
                1 => (".byte", 0xff),
                4 => (".long", 0xffff_ffff),
                _ => (".quad", u64::MAX),
            };
            let _ = writeln!(text, "{directive} {:#x}", bits & mask);
        }
        text
    }
}
