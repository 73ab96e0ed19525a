//! The running kernel, as it is looked at: memory and symbols.

use restitch_address::Svma;
use std::collections::{BTreeMap, HashMap};

/// A running kernel, or a copy of its memory.
pub trait Kernel {
    /// Reads memory at an address; whether all of it is there.
    fn read(&self, at: Svma, into: &mut [u8]) -> bool;
    /// Its symbols.
    fn symbols(&self) -> &Symbols;
}

/// Symbols of a kernel (`/proc/kallsyms`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Symbols {
    by_name: HashMap<String, Vec<Svma>>,
    by_address: BTreeMap<Svma, Vec<String>>,
}

impl FromIterator<(Svma, String)> for Symbols {
    fn from_iter<I: IntoIterator<Item = (Svma, String)>>(symbols: I) -> Self {
        let mut out = Self::default();
        for (address, name) in symbols {
            out.by_name.entry(name.clone()).or_default().push(address);
            out.by_address.entry(address).or_default().push(name);
        }
        out
    }
}

impl Symbols {
    /// Where the one symbol of this name is; none if there are several places.
    pub fn address(&self, name: &str) -> Option<Svma> {
        let places = self.by_name.get(name)?;
        places.iter().all(|place| *place == places[0]).then_some(places[0])
    }
    /// The names of exactly this place.
    pub fn names(&self, address: Svma) -> &[String] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }
    /// The names of what `address` is in: of the last place with a symbol up to it.
    pub fn names_around(&self, address: Svma) -> &[String] {
        self.by_address.range(..=address).next_back().map_or(&[], |(_, names)| names)
    }
    /// Where what `address` is in begins.
    pub fn start_around(&self, address: Svma) -> Option<Svma> {
        self.by_address.range(..=address).next_back().map(|(start, _)| *start)
    }
}

/// A word of 4 bytes.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A word of 8 bytes.
pub(crate) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Where a word of 4 bytes at offset `at` of an entry leads to, which counts from itself.
pub(crate) fn from_itself(entry: &[u8], entry_at: Svma, at: usize) -> Option<Svma> {
    let distance = word(entry, at)? as i32;
    Some((entry_at + at as u64).offset(distance.into()))
}
