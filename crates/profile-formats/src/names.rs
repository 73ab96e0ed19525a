//! Functions by the names that BOLT gives them, and back.
//!
//! BOLT (`RewriteInstance::discoverFileObjects`) calls a global symbol by its name, and a local one `name/N`,
//! where N counts the local symbols of this name in the order of their addresses; `name/FILE/N` names it as
//! well. A function that only an unwind entry knows is `__BOLT_FDE_FUNCat` and its address in hexadecimal. So
//! profiles can be exchanged with BOLT for stripped files too (which it works on with `--allow-stripped`).
//!
//! A file may give any bytes as a name: one with control characters, which would end a line of these formats
//! or reach a terminal, is none.

use restitch_address::Svma;
use restitch_image::{Binding, Image};
use restitch_program::{Movability, Program};
use std::collections::{BTreeMap, HashMap};

/// What BOLT calls a function that has an unwind entry and no symbol.
const NAMELESS: &str = "__BOLT_FDE_FUNCat";

/// The functions of a module by name.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Start address and name, sorted.
    functions: BTreeMap<Svma, String>,
    /// All names of BOLT's form.
    addresses: HashMap<String, Svma>,
    /// PLT stubs: start address and `function@PLT`.
    stubs: BTreeMap<Svma, String>,
    /// Names without BOLT's numbers, where they are unique.
    plain: HashMap<String, Option<Svma>>,
}

impl Names {
    /// Whether `name` is one of those that BOLT invents for functions without a symbol.
    pub fn is_nameless(name: &str) -> bool {
        name.starts_with(NAMELESS)
    }

    /// The names of `program`'s functions, from the symbols of `image`, the file that it was made of.
    pub fn new(image: &Image, program: &Program) -> Self {
        let mut names = Self::default();
        let mut seen: HashMap<&str, u32> = HashMap::new();
        let is_start =
            |at: Svma| program.function_at(at).is_some_and(|f| program.function(f).range.start == at);
        for symbol in image.symbols_with_aliases() {
            let local = symbol.binding == Binding::Local;
            let number = seen.entry(&symbol.name).or_default();
            *number += u32::from(local);
            let full = if local { format!("{}/{number}", symbol.name) } else { symbol.name.to_string() };
            let at = symbol.range.start;
            if symbol.is_function() && image.is_executable(at) {
                names.add(at, &symbol.name, full, is_start(at));
            }
        }
        for slot in image.plt_slots() {
            let Some(name) = slot.name.as_ref().filter(|name| !has_controls(name)) else { continue };
            let name = format!("{name}@PLT");
            names.addresses.entry(name.clone()).or_insert(slot.stub.start);
            names.stubs.insert(slot.stub.start, name);
        }
        for function in &program.functions {
            let at = function.range.start;
            if !names.functions.contains_key(&at) {
                let name = format!("{NAMELESS}{:x}", at.get());
                names.add(at, &name.clone(), name, true);
            }
        }
        names
    }

    /// Names from pairs of start address and name, for programs without a file.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (Svma, &'a str)>) -> Self {
        let mut names = Self::default();
        pairs.into_iter().for_each(|(at, name)| names.add(at, name, name.into(), true));
        names
    }

    fn add(&mut self, at: Svma, plain: &str, full: String, is_start: bool) {
        if has_controls(plain) {
            return;
        }
        let unique = self.plain.entry(plain.into()).or_insert(Some(at));
        if *unique != Some(at) {
            *unique = None;
        }
        self.addresses.entry(full.clone()).or_insert(at);
        if is_start {
            self.functions.entry(at).or_insert(full);
        }
    }

    /// BOLT's name of the function that starts at `at`.
    pub fn name_at(&self, at: Svma) -> Option<&str> {
        self.functions.get(&at).map(String::as_str)
    }

    /// The name without BOLT's number: what a linker calls it. None for a function without a symbol.
    pub fn linker_name_at(&self, at: Svma) -> Option<&str> {
        let name = self.name_at(at)?;
        let plain = match name.rsplit_once('/') {
            Some((plain, number)) if number.bytes().all(|b| b.is_ascii_digit()) => plain,
            _ => name,
        };
        (!name.starts_with(NAMELESS)).then_some(plain)
    }

    /// The same for lists of words: none if there are spaces in it, or what begins a comment.
    pub fn word_at(&self, at: Svma) -> Option<&str> {
        self.linker_name_at(at).filter(|name| !name.contains(|c: char| c.is_whitespace() || c == '#'))
    }

    /// Where the function of this name starts. Also understood: `name/FILE/N`, several names joined by
    /// ` (*N)` as BOLT prints them, and a plain name that is unique.
    pub fn address_of(&self, name: &str) -> Option<Svma> {
        let name = name.split_once("(*").map_or(name, |(name, _)| name);
        if let Some(at) = self.addresses.get(name) {
            return Some(*at);
        }
        if let Some(hex) = name.strip_prefix(NAMELESS) {
            return u64::from_str_radix(hex, 16).ok().map(Svma::new);
        }
        let plain = name.split_once('/').map_or(name, |(plain, _)| plain);
        self.plain.get(plain).copied().flatten()
    }

    /// BOLT's name for the place `at`: a function or PLT stub, and the distance from its start.
    pub fn place(&self, program: &Program, at: Svma) -> Option<(&str, u64)> {
        if let Some(stub) = self.stubs.get(&at) {
            return Some((stub, 0));
        }
        let function = program.function(program.function_at(at)?);
        let linkage = function.movability == Movability::Linkage;
        let start = function.range.start;
        self.name_at(start).filter(|_| !linkage).map(|name| (name, at.get() - start.get()))
    }
}

fn has_controls(name: &str) -> bool {
    name.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_tear_lines_is_no_name() {
        let at = Svma::new;
        let names = Names::of([
            (at(16), "a\n1 b"),
            (at(32), "a\x1b[31m"),
            (at(48), "two words"),
            (at(64), "a#b"),
            (at(80), "ä"),
        ]);
        let both = |start| (names.name_at(at(start)), names.word_at(at(start)));
        assert_eq!((both(16), both(32)), ((None, None), (None, None)));
        assert_eq!((both(48), both(64)), ((Some("two words"), None), (Some("a#b"), None)));
        assert_eq!(both(80), (Some("ä"), Some("ä")));
    }

    #[test]
    fn names_lead_to_addresses_and_back() {
        let at = Svma::new;
        let names = Names::of([(at(16), "main"), (at(32), "helper/1"), (at(64), "helper/2")]);
        assert_eq!(names.name_at(at(32)), Some("helper/1"));
        assert_eq!(names.linker_name_at(at(64)), Some("helper"));
        assert_eq!(names.address_of("helper/2"), Some(at(64)));
        assert_eq!(names.address_of("main(*2)"), Some(at(16)));
        assert_eq!(names.address_of("__BOLT_FDE_FUNCat1f0"), Some(at(0x1f0)));
        assert_eq!(names.address_of("other"), None);
        let program =
            Program::from_text("function 0x20..0x40 - movable\n 0x20 +32 entry return/1\n").unwrap();
        assert_eq!(names.place(&program, at(40)), Some(("helper/1", 8)));
        assert_eq!(names.place(&program, at(16)), None);
    }
}
