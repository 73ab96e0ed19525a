//! Which functions of a kernel were called, and from where, as its function tracer lists it.

use crate::functions::{FunctionId, Functions};
use restitch_address::Svma;
use std::collections::{BTreeMap, HashMap};

/// Calls that the function tracer has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Called {
    /// By the tracer's place in the function, and by where it returns to.
    calls: HashMap<[Svma; 2], u64>,
}

/// A call, and how often it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenCall {
    /// What was called.
    pub callee: FunctionId,
    /// Where it returns to. Who goes on to a function by a jump is not seen: it is the caller's caller then.
    pub returns_to: Svma,
    /// How often.
    pub count: u64,
}

/// What was called from one place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenTargets {
    /// Functions of the kernel's own text, and how often each was.
    pub functions: BTreeMap<FunctionId, u64>,
    /// How often functions of modules were.
    pub in_modules: u64,
}

impl Called {
    /// Reads the tracer's raw form (`trace_options`: `raw`, `nocontext-info`): lines of two addresses in
    /// hexadecimal. Other lines, as of what was lost, say nothing.
    pub fn parse(text: &str) -> Self {
        let mut called = Self::default();
        for pair in text.lines().filter_map(pair) {
            *called.calls.entry(pair).or_insert(0) += 1;
        }
        called
    }

    /// Takes in what was seen at another time.
    pub fn extend(&mut self, other: Self) {
        for (call, count) in other.calls {
            *self.calls.entry(call).or_insert(0) += count;
        }
    }

    /// What was called, by where it returns to.
    pub fn by_return(&self, functions: &Functions) -> HashMap<Svma, SeenTargets> {
        let mut seen: HashMap<Svma, SeenTargets> = HashMap::new();
        for ([place, returns_to], count) in &self.calls {
            let targets = seen.entry(*returns_to).or_default();
            match functions.at(*place) {
                Some(function) => *targets.functions.entry(function).or_insert(0) += count,
                None => targets.in_modules += count,
            }
        }
        seen
    }

    /// The calls of functions of the kernel's own text.
    pub fn of(&self, functions: &Functions) -> Vec<SeenCall> {
        let seen = self.calls.iter().filter_map(|([place, returns_to], count)| {
            Some(SeenCall { callee: functions.at(*place)?, returns_to: *returns_to, count: *count })
        });
        let mut seen: Vec<SeenCall> = seen.collect();
        seen.sort_unstable();
        seen
    }
}

fn pair(line: &str) -> Option<[Svma; 2]> {
    let mut words = line.split_whitespace();
    let mut address = || u64::from_str_radix(words.next()?, 16).ok().map(Svma::new);
    let pair = [address()?, address()?];
    words.next().is_none().then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Places;
    use crate::symbols::Symbols;
    use std::path::Path;

    #[test]
    fn calls_are_counted_by_function_and_by_where_they_return_to() {
        let list = "1000 T _stext\n1000 T _text\n1000 t first\n1010 t second\n1020 T _etext\n";
        let symbols = Symbols::parse(list, Path::new("list")).expect("a list");
        let places = Places::find(&symbols).expect("a text");
        let functions = Functions::find(&symbols, &places, |_, _| false);
        let text = "# tracer: function\n#\n1004 1018\n1010 5000\nCPU:0 [LOST 7 EVENTS]\n1004 1018\n\
                    9000 1018\n1004 1017\n1004 1018 1\n";
        let called = Called::parse(text);
        let seen = called.of(&functions);
        let seen: Vec<_> = seen.iter().map(|s| (s.callee.0, s.returns_to.get(), s.count)).collect();
        assert_eq!(seen, [(0, 0x1017, 1), (0, 0x1018, 2), (1, 0x5000, 1)]);
        let mut twice = called.clone();
        twice.extend(called);
        twice.extend(Called::parse("1010 1018\n"));
        let first = |function: u32, count: u64| (FunctionId(function), count);
        let there = SeenTargets { functions: [first(0, 4), first(1, 1)].into(), in_modules: 2 };
        assert_eq!(twice.by_return(&functions).get(&Svma::new(0x1018)), Some(&there));
    }
}
