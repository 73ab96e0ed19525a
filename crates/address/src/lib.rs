//! Addresses as types: two address spaces that cannot be mixed up.
//!
//! * [`Svma`]: *stated virtual memory address*, an address as the ELF file states it. The canonical
//!   coordinate of everything: profiles, blocks, layouts, and the place of a code version relative to its
//!   module.
//! * [`Avma`]: *actual virtual memory address*, an address in one live process.
//! * [`FileOffset`]: a byte position in a file.
//!
//! [`LoadBias`] turns an `Svma` into an `Avma` and back. Arithmetic wraps, because the `Svma` of a version
//! that is placed *below* a position-independent module (whose first `Svma` is 0) wraps around the top of the
//! address space; only [`Range`] membership and distances have to be right there, and they are.

use std::fmt;

/// Bytes of the smallest page: what mappings, permissions and copies of pages come in. (Processors of other
/// instruction sets may be run with larger ones; what is written into files goes by this.)
pub const PAGE: u64 = 4096;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The address with this numeric value.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }
            /// The numeric value: for encoding into bytes and for printing, not for arithmetic across spaces.
            pub const fn get(self) -> u64 {
                self.0
            }
            /// The signed distance in bytes from `origin` to `self`, wrapping.
            pub const fn offset_from(self, origin: Self) -> i64 {
                self.0.wrapping_sub(origin.0) as i64
            }
            /// This address moved by `bytes` (may be negative), wrapping.
            pub const fn offset(self, bytes: i64) -> Self {
                Self(self.0.wrapping_add(bytes as u64))
            }
            /// This address rounded up to a multiple of `align`, a power of two.
            pub const fn align_up(self, align: u64) -> Self {
                Self(self.0.wrapping_add(align - 1) & !(align - 1))
            }
            /// This address rounded down to a multiple of `align`, a power of two.
            pub const fn align_down(self, align: u64) -> Self {
                Self(self.0 & !(align - 1))
            }
        }
        impl std::ops::Add<u64> for $name {
            type Output = Self;
            fn add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }
        }
        impl std::ops::Sub<u64> for $name {
            type Output = Self;
            fn sub(self, bytes: u64) -> Self {
                Self(self.0.wrapping_sub(bytes))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address!(
    /// Stated virtual memory address: as the ELF file gives it, the canonical coordinate.
    Svma
);
address!(
    /// Actual virtual memory address: in one live process.
    Avma
);
address!(
    /// A byte offset in a file.
    FileOffset
);

/// The constant that turns an [`Svma`] of one module into an [`Avma`] of one process: `avma = svma + bias`,
/// wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct LoadBias(u64);

impl LoadBias {
    /// The bias that maps `stated` to `actual`.
    pub const fn between(stated: Svma, actual: Avma) -> Self {
        Self(actual.0.wrapping_sub(stated.0))
    }
    /// Where `stated` is in the process.
    pub const fn to_actual(self, stated: Svma) -> Avma {
        Avma(stated.0.wrapping_add(self.0))
    }
    /// Where `actual` is in the file's own coordinates.
    pub const fn to_stated(self, actual: Avma) -> Svma {
        Svma(actual.0.wrapping_sub(self.0))
    }
    /// The numeric value (0 for a program that is not position-independent).
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A half-open range of addresses. It may wrap around the top of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Range<A> {
    /// First address in the range.
    pub start: A,
    /// First address behind the range.
    pub end: A,
}

/// A range in canonical coordinates.
pub type SvmaRange = Range<Svma>;
/// A range in a live process.
pub type AvmaRange = Range<Avma>;

macro_rules! range_methods {
    ($addr:ident) => {
        impl Range<$addr> {
            /// The range of `len` bytes that begins at `start`.
            pub const fn new(start: $addr, len: u64) -> Self {
                Self { start, end: $addr(start.0.wrapping_add(len)) }
            }
            /// The range from `start` to `end`.
            pub const fn between(start: $addr, end: $addr) -> Self {
                Self { start, end }
            }
            /// Length in bytes.
            pub const fn len(&self) -> u64 {
                self.end.0.wrapping_sub(self.start.0)
            }
            /// Whether the range holds no address.
            pub const fn is_empty(&self) -> bool {
                self.start.0 == self.end.0
            }
            /// Whether `address` lies in the range.
            pub const fn contains(&self, address: $addr) -> bool {
                address.0.wrapping_sub(self.start.0) < self.len()
            }
            /// Whether the two ranges share an address.
            pub const fn overlaps(&self, other: &Self) -> bool {
                !self.is_empty()
                    && !other.is_empty()
                    && (self.contains(other.start) || other.contains(self.start))
            }
            /// Whether `other` lies wholly inside this range.
            pub const fn covers(&self, other: &Self) -> bool {
                let from = other.start.0.wrapping_sub(self.start.0);
                from <= self.len() && other.len() <= self.len() - from
            }
        }
    };
}
range_methods!(Svma);
range_methods!(Avma);

impl<A: fmt::Display> fmt::Display for Range<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
impl<A: fmt::Debug> fmt::Debug for Range<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}..{:?}", self.start, self.end)
    }
}

/// Declares a typed index into one of the program's dense tables.
#[macro_export]
macro_rules! typed_index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub u32);
        impl $name {
            /// The index as a `usize`, for indexing.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
            /// The typed index of element number `index`. Panics above 2^32 elements.
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("more than 2^32 elements"))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bias_goes_both_ways(stated: u64, actual: u64, other: u64) {
            let bias = LoadBias::between(Svma::new(stated), Avma::new(actual));
            prop_assert_eq!(bias.to_actual(Svma::new(stated)), Avma::new(actual));
            prop_assert_eq!(bias.to_stated(bias.to_actual(Svma::new(other))), Svma::new(other));
        }

        #[test]
        fn overlap_is_symmetric_and_agrees_with_membership(a in 0u64..64, la in 0u64..64, b in 0u64..64, lb in 0u64..64) {
            let x = SvmaRange::new(Svma::new(a.wrapping_sub(32)), la);
            let y = SvmaRange::new(Svma::new(b.wrapping_sub(32)), lb);
            let shared = (0..128u64).map(|i| Svma::new(i.wrapping_sub(32))).any(|s| x.contains(s) && y.contains(s));
            prop_assert_eq!(x.overlaps(&y), shared);
            prop_assert_eq!(y.overlaps(&x), shared);
        }
    }

    #[test]
    fn a_range_below_zero_wraps() {
        let range = SvmaRange::new(Svma::new(0).offset(-16), 32);
        assert!(
            range.contains(Svma::new(u64::MAX))
                && range.contains(Svma::new(0))
                && !range.contains(Svma::new(16))
        );
    }
}
