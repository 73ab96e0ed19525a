//! How functions begin.

/// `endbr64`: where indirect branches may lead to. Nothing is executed between it and what follows, so a
/// redirect stands behind it.
const ENTRY_MARKER: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Bytes of the marker of indirect branch targets that `code` begins with; 0 if there is none.
pub fn entry_marker(code: &[u8]) -> usize {
    if code.starts_with(&ENTRY_MARKER) { ENTRY_MARKER.len() } else { 0 }
}

/// Bytes of the instructions at the start of a function that make its frame: the marker or not,
/// `push %rbp; mov %rsp,%rbp`.
pub fn frame_made(code: &[u8]) -> Option<usize> {
    const FRAME: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];
    let marker = entry_marker(code);
    let makes = FRAME.iter().any(|frame| code[marker..].starts_with(frame));
    makes.then_some(marker + FRAME[0].len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Flow, first_insn};
    use restitch_address::Svma;

    #[test]
    fn the_marker_is_one_instruction_that_does_nothing() {
        let insn = first_insn(&ENTRY_MARKER, Svma::new(0)).expect("an instruction");
        assert_eq!((usize::from(insn.len), insn.flow, insn.padding), (ENTRY_MARKER.len(), Flow::Next, false));
        assert_eq!(entry_marker(&ENTRY_MARKER[..3]), 0);
    }

    #[test]
    fn a_frame_is_made_in_both_encodings_behind_the_marker_or_not() {
        assert_eq!(frame_made(&[0x55, 0x48, 0x89, 0xe5, 0xc3]), Some(4));
        assert_eq!(frame_made(&[&ENTRY_MARKER[..], &[0x55, 0x48, 0x8b, 0xec]].concat()), Some(8));
        assert_eq!(frame_made(&[0x55, 0x48, 0x89, 0xe0]), None);
        assert_eq!(frame_made(&[0x55]), None);
    }
}
