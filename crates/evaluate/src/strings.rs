//! `pcmpistri`: the comparison of strings of SSE4.2, which the C library uses to search for sets of
//! characters.
//!
//! Reference: Intel SDM volume 2, section 4.1, "Imm8 control byte operation for PCMPESTRI / ...".

use crate::state::Flags;
use crate::wide::{Wide, low};
use restitch_x86::Flag;

/// What the instruction gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// ecx.
    pub index: u32,
    pub flags: Flags,
}

/// Elements of a string of implicit length, as signed or unsigned numbers, and how many come before a zero.
struct Text {
    elements: Vec<i32>,
    valid: usize,
}

impl Text {
    fn of(wide: &Wide, control: u8) -> Self {
        let size = if control & 1 != 0 { 2 } else { 1 };
        let number = |i: usize| {
            let bits = wide.element(i, size).unwrap_or(0);
            match (control & 2 != 0, size) {
                (false, _) => bits as i32,
                (true, 1) => i32::from(bits as i8),
                (true, _) => i32::from(bits as i16),
            }
        };
        let elements: Vec<i32> = (0..16 / usize::from(size)).map(number).collect();
        let valid = elements.iter().position(|e| *e == 0).unwrap_or(elements.len());
        Self { elements, valid }
    }
}

/// `None` if not all of the operands is known.
pub(crate) fn find(a: &Wide, b: &Wide, control: u8) -> Option<Found> {
    (a.known & b.known & low(16) == low(16)).then_some(())?;
    let (set, text) = (Text::of(a, control), Text::of(b, control));
    let number = text.elements.len();
    let result = match control >> 2 & 3 {
        0 => each(&text, |j| (0..set.valid).any(|i| set.elements[i] == text.elements[j])),
        1 => each(&text, |j| {
            let inside =
                |i: usize| set.elements[i] <= text.elements[j] && text.elements[j] <= set.elements[i + 1];
            (0..set.valid / 2).any(|pair| inside(2 * pair))
        }),
        2 => equal_each(&set, &text),
        _ => (0..number).filter(|&j| begins_at(&set, &text, j)).fold(0, |mask, j| mask | 1 << j),
    };
    let all = (1u32 << number) - 1;
    let result = match control >> 4 & 3 {
        1 => !result & all,
        3 => result ^ ((1 << text.valid) - 1),
        _ => result,
    };
    let index = match (result, control & 0x40 != 0) {
        (0, _) => number as u32,
        (_, false) => result.trailing_zeros(),
        (_, true) => 31 - result.leading_zeros(),
    };
    let mut flags = Flags::from_rflags(0);
    flags.set(Flag::Carry, Some(result != 0));
    flags.set(Flag::Zero, Some(text.valid < number));
    flags.set(Flag::Sign, Some(set.valid < number));
    flags.set(Flag::Overflow, Some(result & 1 != 0));
    Some(Found { index, flags })
}

/// The valid elements of which something holds.
fn each(text: &Text, holds: impl Fn(usize) -> bool) -> u32 {
    (0..text.valid).filter(|&j| holds(j)).fold(0, |mask, j| mask | 1 << j)
}

/// Behind the ends of both strings elements are equal, behind the end of one they differ.
fn equal_each(a: &Text, b: &Text) -> u32 {
    let equal = |i: usize| match (i < a.valid, i < b.valid) {
        (true, true) => a.elements[i] == b.elements[i],
        (false, false) => true,
        _ => false,
    };
    (0..a.elements.len()).filter(|&i| equal(i)).fold(0, |mask, i| mask | 1 << i)
}

/// Whether the first string stands at `j` of the second one, as far as that goes.
fn begins_at(set: &Text, text: &Text, j: usize) -> bool {
    let places = (j..text.elements.len()).zip(0..set.valid);
    places.into_iter().all(|(at, i)| at < text.valid && set.elements[i] == text.elements[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Wide {
        let mut wide = Wide::ZERO;
        wide.bytes[..text.len()].copy_from_slice(text.as_bytes());
        wide
    }

    #[test]
    fn characters_of_a_set_are_found() {
        // As strcspn does it: unsigned bytes, any of the set, lowest index.
        let found = find(&wide(",;"), &wide("ab;c"), 0).unwrap();
        assert_eq!((found.index, found.flags.get(Flag::Carry)), (2, Some(true)));
        assert_eq!(found.flags.get(Flag::Zero), Some(true));
        let none = find(&wide(",;"), &wide("abcdefghijklmnop"), 0).unwrap();
        assert_eq!(
            (none.index, none.flags.get(Flag::Carry), none.flags.get(Flag::Zero)),
            (16, Some(false), Some(false))
        );
        // As strspn: the first that is not in the set.
        assert_eq!(find(&wide("ab"), &wide("abac"), 0x10).unwrap().index, 3);
        // As strcmp: the first difference.
        assert_eq!(find(&wide("same"), &wide("sane"), 0x18).unwrap().index, 2);
        // As strstr.
        assert_eq!(find(&wide("na"), &wide("banana"), 0x0c).unwrap().index, 2);
        assert_eq!(find(&wide("az"), &wide("01x"), 0x04).unwrap().index, 2);
        assert_eq!(find(&wide("na"), &Wide::UNKNOWN, 0), None);
    }
}
