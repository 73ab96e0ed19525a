//! How often instructions were executed.

use crate::error::CountsError;
use restitch_address::Svma;
use std::collections::HashMap;

/// Counts of executed instructions, by address. Those that are not there were not executed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    by_address: HashMap<Svma, u64>,
}

impl FromIterator<(Svma, u64)> for Counts {
    fn from_iter<I: IntoIterator<Item = (Svma, u64)>>(counts: I) -> Self {
        Self { by_address: counts.into_iter().collect() }
    }
}

impl Counts {
    /// Reads lines of an address in hexadecimal, a length in bytes, and a count, as the laboratory's guests
    /// write them.
    ///
    /// # Errors
    /// If a line is no such one.
    pub fn parse(text: &str) -> Result<Self, CountsError> {
        let counts = text.lines().enumerate().map(|(number, line)| {
            let mut words = line.split_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let len = words.next().and_then(|word| word.parse::<u32>().ok());
            let count = words.next().and_then(|word| word.parse().ok());
            match (address, len, count, words.next()) {
                (Some(address), Some(_), Some(count), None) => Ok((Svma::new(address), count)),
                _ => Err(CountsError { line: number + 1 }),
            }
        });
        counts.collect()
    }

    /// Takes in what was counted besides; where both know an address, the new count is taken.
    pub fn extend(&mut self, others: &Self) {
        self.by_address.extend(&others.by_address);
    }

    /// Where the instructions are that were executed, in no order.
    pub fn executed(&self) -> impl Iterator<Item = Svma> {
        self.by_address.iter().filter(|(_, count)| **count > 0).map(|(at, _)| *at)
    }

    /// How often the instruction at an address was executed.
    pub fn at(&self, address: Svma) -> u64 {
        self.by_address.get(&address).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_what_is_none_is_named() {
        let counts = Counts::parse("ffffffff81000000\t4\t17\nffffffff81000004 1 5\n").expect("counts");
        let at = |address| counts.at(Svma::new(address));
        assert_eq!([at(0xffff_ffff_8100_0000), at(0xffff_ffff_8100_0004), at(7)], [17, 5, 0]);
        for (text, line) in [("ffff 1 2\nffff 1\n", 2), ("x 1 2", 1), ("1 1 1 1", 1), ("\n", 1)] {
            assert_eq!(Counts::parse(text), Err(CountsError { line }), "{text}");
        }
        assert_eq!(Counts::parse(""), Ok(Counts::default()));
    }
}
