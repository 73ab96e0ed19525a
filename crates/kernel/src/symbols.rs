//! `/proc/kallsyms`: names and addresses.

use crate::error::KernelError;
use crate::source::Source;
use restitch_address::{Svma, SvmaRange};
use std::collections::HashMap;
use std::path::Path;

/// A name of the kernel's own image (not of a module).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Where.
    pub address: Svma,
    /// What nm says of it: `t`, `T` and `W` are code.
    pub kind: u8,
    /// The name.
    pub name: String,
}

impl Symbol {
    /// Whether it is said to be code.
    pub fn is_code(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }

    /// Whether it names the padding in front of a function, in which there is nothing or a type's number.
    pub fn is_padding(&self) -> bool {
        self.name.starts_with("__pfx_") || self.name.starts_with("__cfi_")
    }

    /// Whether it marks where a part of the text begins or ends, and not a function.
    pub fn is_boundary(&self) -> bool {
        const ENDS: [&str; 4] = ["_text_start", "_text_end", "_thunk_start", "_thunk_end"];
        const NAMES: [&str; 5] = ["_text", "_stext", "_etext", "__entry_text_start", "startup_64_end"];
        ENDS.iter().any(|end| self.name.ends_with(end)) && self.name.starts_with("__")
            || NAMES.contains(&&*self.name)
    }
}

/// All names, by address.
#[derive(Debug, Clone, Default)]
pub struct Symbols {
    all: Vec<Symbol>,
    by_name: HashMap<String, Svma>,
    /// Names of code in modules.
    pub in_modules: u64,
}

impl Symbols {
    /// Those of a kernel.
    ///
    /// # Errors
    /// If its list cannot be read, or hides the addresses.
    pub fn read(source: &Source) -> Result<Self, KernelError> {
        const LIST: &str = "proc/kallsyms";
        Self::parse(&source.text(LIST)?, &source.path(LIST))
    }

    /// Reads the list.
    ///
    /// # Errors
    /// If it is none, or shows no addresses.
    pub fn parse(text: &str, path: &Path) -> Result<Self, KernelError> {
        let mut symbols = Self::default();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let (Some(address), Some(&[kind]), Some(name)) =
                (address, words.next().map(str::as_bytes), words.next())
            else {
                let why = format!("line {}: an address, a letter and a name are wanted", number + 1);
                return Err(KernelError::damaged(path, why));
            };
            let symbol = Symbol { address: Svma::new(address), kind, name: name.into() };
            match words.next() {
                Some(_) => symbols.in_modules += u64::from(symbol.is_code()),
                None => symbols.all.push(symbol),
            }
        }
        if symbols.all.is_empty() {
            return Err(KernelError::damaged(path, "it names nothing"));
        }
        if symbols.all.iter().all(|symbol| symbol.address.get() == 0) {
            return Err(KernelError::Hidden { path: path.into() });
        }
        symbols.all.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        symbols.by_name = symbols.all.iter().map(|symbol| (symbol.name.clone(), symbol.address)).collect();
        Ok(symbols)
    }

    /// All of them.
    pub fn all(&self) -> &[Symbol] {
        &self.all
    }

    /// Those in a range.
    pub fn within(&self, range: SvmaRange) -> &[Symbol] {
        let from = self.all.partition_point(|symbol| symbol.address < range.start);
        let to = self.all.partition_point(|symbol| symbol.address < range.end);
        &self.all[from..to.max(from)]
    }

    /// Where a name is; of several places the last.
    pub fn address(&self, name: &str) -> Option<Svma> {
        self.by_name.get(name).copied()
    }

    /// The range between two names; none unless both are there, in that order.
    pub fn range(&self, start: &str, end: &str) -> Option<SvmaRange> {
        let (start, end) = (self.address(start)?, self.address(end)?);
        (start <= end).then(|| SvmaRange::between(start, end))
    }
}
