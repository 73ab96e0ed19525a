//! Writes the text of one function.
//!
//! Every function is `fn(&mut State, u64) -> u64` and mixes its argument `x` with a second value `y` and with
//! words of the state. What makes a step hot or cold is the data alone: `State::limits` is never exceeded,
//! `State::modes` never holds the numbers that are asked for, and bits of `x` equal a given value in one of
//! 32 or 256 requests.

use crate::rng::Rng;
use std::fmt::Write;

/// Whom one function calls, handed out one by one.
pub struct Callees {
    calls: Vec<String>,
    /// Definitions of tables that the calls name.
    tables: String,
}

impl Callees {
    /// `count` calls of functions of `level`, which has `available` of them; every fourth goes through a
    /// table.
    pub fn new(rng: &mut Rng, level: usize, available: Option<usize>, count: usize, table: usize) -> Self {
        let mut made = Self { calls: Vec::new(), tables: String::new() };
        let Some(available) = available else { return made };
        for call in 0..count {
            if rng.below(4) > 0 {
                made.calls.push(format!("l{level}_{}(s, x ^ y)", rng.skewed(available)));
                continue;
            }
            let targets: Vec<String> =
                (0..table).map(|_| format!("l{level}_{}", rng.skewed(available))).collect();
            let _ = writeln!(
                made.tables,
                "static T{call}: [fn(&mut State, u64) -> u64; {table}] = [{}];",
                targets.join(", ")
            );
            let shift = rng.below(12);
            made.calls.push(format!("T{call}[((s.kind >> {shift}) & {}) as usize](s, x)", table - 1));
        }
        made
    }

    fn next(&mut self) -> Option<String> {
        self.calls.pop()
    }
}

/// Writes one function.
pub struct Writer<'a> {
    rng: &'a mut Rng,
    failures: usize,
    text: String,
}

impl<'a> Writer<'a> {
    /// A writer of a function whose error paths call one of `failures` failure functions.
    pub fn new(rng: &'a mut Rng, failures: usize) -> Self {
        Self { rng, failures, text: String::new() }
    }

    /// A handler, a stage or a helper.
    pub fn function(mut self, name: &str, callees: &mut Callees) -> String {
        self.open(name);
        self.text += &std::mem::take(&mut callees.tables);
        let steps = 4 + self.rng.below(4);
        for step in 0..steps {
            self.mix();
            self.step();
            if step >= 2
                && let Some(call) = callees.next()
            {
                let _ = writeln!(self.text, "x = x.wrapping_add({call});");
            }
        }
        while let Some(call) = callees.next() {
            let _ = writeln!(self.text, "y ^= {call};");
        }
        self.text += "x ^ y\n}\n";
        self.text
    }

    /// What an error path calls: it notes the error in the state.
    pub fn failure(mut self, index: usize) -> String {
        self.open(&format!("fail_{index}"));
        for _ in 0..3 {
            self.mix();
            self.note();
        }
        self.text += "s.errors = s.errors.wrapping_add(1);\nx ^ y\n}\n";
        self.text
    }

    fn open(&mut self, name: &str) {
        let start = self.rng.next() >> 33;
        let _ = writeln!(
            self.text,
            "#[inline(never)]\npub(crate) fn {name}(s: &mut State, mut x: u64) -> u64 {{\nlet mut y = x ^ {start};"
        );
    }

    /// A few cheap instructions that always run.
    fn mix(&mut self) {
        let (shift, turn, word) = (self.rng.below(50), 1 + self.rng.below(60), self.rng.below(64));
        let text = match self.rng.below(4) {
            0 => format!(
                "x = x.wrapping_add(s.words[((y >> {shift}) & 63) as usize]);\ny ^= x.rotate_left({turn});"
            ),
            1 => format!(
                "y = y.wrapping_add(x.rotate_left({turn}));\nx ^= s.words[{word}];\ns.words[{word}] = y;"
            ),
            2 => format!("x ^= y >> {};\ny = y.wrapping_add(s.words[{word}] ^ x);", 1 + shift),
            _ => format!("y ^= x;\nx = x.rotate_left({turn}).wrapping_add(y ^ (s.kind << {}));", shift % 24),
        };
        self.text += &text;
        self.text.push('\n');
    }

    /// One branch or switch, with what belongs to it.
    fn step(&mut self) {
        match self.rng.below(16) {
            0..=5 => self.never(),
            6..=9 => self.seldom(),
            10..=12 => self.either(),
            13 | 14 => self.switch(),
            _ => self.repeat(),
        }
    }

    /// A check that no request fails.
    fn never(&mut self) {
        let index = self.rng.below(32);
        let condition = if self.rng.below(2) == 0 {
            format!("(x & 0xffff) >= s.limits[{index}]")
        } else {
            format!("s.modes[{index}] == {}", 2 + self.rng.below(90))
        };
        let _ = writeln!(self.text, "if {condition} {{");
        self.cold();
        self.text += "}\n";
    }

    /// A check that one request in 256 fails.
    fn seldom(&mut self) {
        let (shift, value) = (self.rng.below(50), 2 + self.rng.below(250));
        let _ = writeln!(self.text, "if (x >> {shift}) & 255 == {value} {{");
        self.cold();
        self.text += "}\n";
    }

    /// Two sides, of which the longer one comes first and runs for one request in 32.
    fn either(&mut self) {
        let (shift, value) = (self.rng.below(50), 2 + self.rng.below(28));
        let _ = writeln!(self.text, "if (y >> {shift}) & 31 == {value} {{");
        for _ in 0..3 {
            self.mix();
            self.note();
        }
        self.text += "} else {\n";
        self.mix();
        self.text += "}\n";
    }

    /// Six cases (one of them for three numbers), chosen by the kind of the request.
    fn switch(&mut self) {
        let _ = writeln!(self.text, "match (s.kind >> {}) & 7 {{", self.rng.below(12));
        for case in 0..6 {
            let _ = writeln!(self.text, "{} => {{", if case == 5 { "_".into() } else { case.to_string() });
            self.mix();
            self.note();
            self.text += "}\n";
        }
        self.text += "}\n";
    }

    /// A short loop with a check in it.
    fn repeat(&mut self) {
        let _ = writeln!(
            self.text,
            "let mut n = (s.kind >> {}) & 3;\nwhile n != 0 {{\nn -= 1;",
            self.rng.below(12)
        );
        self.mix();
        self.never();
        self.text += "}\n";
    }

    /// An error path: notes the error and either gives up or goes on.
    fn cold(&mut self) {
        for _ in 0..2 + self.rng.below(3) {
            self.note();
        }
        let (failure, code) = (self.rng.below(self.failures), self.rng.next() >> 20);
        let _ = match self.rng.below(3) {
            0 => writeln!(self.text, "return fail_{failure}(s, x ^ {code});"),
            _ => writeln!(self.text, "x ^= fail_{failure}(s, y ^ {code});"),
        };
    }

    /// Bulky bookkeeping, as error messages and statistics are.
    fn note(&mut self) {
        let (slot, other) = (self.rng.below(64), self.rng.below(64));
        let (a, b) = (self.rng.next(), self.rng.next() >> 34);
        let _ = writeln!(
            self.text,
            "s.notes[{slot}] = s.notes[{slot}].wrapping_add(x ^ {a});\ns.notes[{other}] ^= y.wrapping_mul({b});"
        );
    }
}
