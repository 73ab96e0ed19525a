//! Distances within which layouts bring transfers, level by level (Lavaee, Criswell and Ding, CC 2019,
//! section 2.5).
//!
//! Each level stands for something that near code shares: a page, a cache, the reach of a TLB. The paper's
//! list is the default; a machine's own follows from the sizes of its caches and pages
//! ([`Distances::of_levels`]).

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// The paper's distances in bytes (section 2.5): page; instruction cache; a part and the whole of the L2;
/// reach of the TLB; large page.
pub const DISTANCES: [u64; 6] = [4 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 2 << 20];

/// As many levels as a list has at most.
const MOST: usize = 12;

/// Distances in bytes, ascending, each once, none of them 0; at least one and at most twelve.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Distances {
    bytes: [u64; MOST],
    count: usize,
}

/// A text is no list of distances.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDistances {
    /// A part of it is no size.
    #[error("\"{0}\" is no size in bytes (such as 4096, 32K or 2M)")]
    NoSize(String),
    /// Sizes do not ascend, or one is 0.
    #[error("distances have to ascend, beginning above 0")]
    Unordered,
    /// Too many, or none.
    #[error("there have to be 1 to {MOST} distances")]
    Count,
}

impl Distances {
    /// A list.
    ///
    /// # Errors
    /// If it does not ascend, is empty, or has more than twelve distances.
    pub fn new(bytes: &[u64]) -> Result<Self, BadDistances> {
        if bytes.is_empty() || bytes.len() > MOST {
            return Err(BadDistances::Count);
        }
        if bytes[0] == 0 || !bytes.is_sorted_by(|a, b| a < b) {
            return Err(BadDistances::Unordered);
        }
        let mut own = [0; MOST];
        own[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { bytes: own, count: bytes.len() })
    }

    /// The distances that the sizes of a machine's structures say (caches, pages, reaches of TLBs; bytes, in
    /// any order). Those of 0 bytes are left out, as are the largest if there are more than twelve; the
    /// paper's list, if none is left.
    pub fn of_levels(levels: &[u64]) -> Self {
        let mut levels: Vec<u64> = levels.iter().copied().filter(|&l| l > 0).collect();
        levels.sort_unstable();
        levels.dedup();
        levels.truncate(MOST);
        Self::new(&levels).unwrap_or_default()
    }

    /// The distances in bytes, ascending.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes[..self.count]
    }
}

impl Default for Distances {
    fn default() -> Self {
        let mut bytes = [0; MOST];
        bytes[..DISTANCES.len()].copy_from_slice(&DISTANCES);
        Self { bytes, count: DISTANCES.len() }
    }
}

impl fmt::Debug for Distances {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Distances({self})")
    }
}

/// Sizes with colons between them, as [`Distances::from_str`] reads them: `4K:32K:2M`.
impl Display for Distances {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, &bytes) in self.bytes().iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            match bytes {
                b if b % (1 << 20) == 0 => write!(f, "{colon}{}M", b >> 20)?,
                b if b % (1 << 10) == 0 => write!(f, "{colon}{}K", b >> 10)?,
                b => write!(f, "{colon}{b}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Distances {
    type Err = BadDistances;

    fn from_str(text: &str) -> Result<Self, BadDistances> {
        let sizes: Result<Vec<u64>, BadDistances> = text.split(':').map(size).collect();
        Self::new(&sizes?)
    }
}

fn size(text: &str) -> Result<u64, BadDistances> {
    let bad = || BadDistances::NoSize(text.to_owned());
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(unit).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_and_written() {
        let list: Distances = "4K:32k:131072:2M".parse().unwrap();
        assert_eq!(list.bytes(), [4096, 32768, 131_072, 2 << 20]);
        assert_eq!(list.to_string(), "4K:32K:128K:2M");
        assert_eq!(Distances::default().bytes(), DISTANCES);
    }

    #[test]
    fn what_is_no_list_is_refused_with_a_reason() {
        for (text, reason) in [
            ("4K:", "is no size"),
            ("x", "is no size"),
            ("-4", "is no size"),
            ("99999999999999999999", "is no size"),
            ("18446744073709551615M", "is no size"),
            ("4K:4K", "ascend"),
            ("0", "ascend"),
            ("2M:4K", "ascend"),
            ("1:2:3:4:5:6:7:8:9:10:11:12:13", "1 to 12"),
        ] {
            let error = text.parse::<Distances>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn levels_in_any_order_make_a_list_that_is_read_as_it_was_written(levels: Vec<u64>) {
            let list = Distances::of_levels(&levels);
            prop_assert_eq!(list.to_string().parse::<Distances>().unwrap(), list);
        }
    }
}
