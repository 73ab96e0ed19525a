//! The code of one function, by its control flow: for functions without unwind table entry and symbol.
//!
//! Limits: of who does not return only the simplest are known (musl's `__stack_chk_fail`, which is a `hlt`),
//! so what stands behind such a call may be taken for the function's own. The result is then too much, never
//! too little.

use restitch_address::Svma;
use restitch_image::Image;
use restitch_x86::{Decoded, Flow, decode_one};
use std::collections::BTreeMap;

/// More instructions than this are not a small function of a C library.
const MOST_INSTRUCTIONS: usize = 2000;

/// The instructions that control reaches from `entry`, calls aside: sorted by address. Jumps to other
/// functions are followed.
///
/// `None` if that cannot be told: a jump through a register or memory, bytes that are no instruction or are
/// not in the file, or more than 2000 instructions.
pub fn reachable_code(image: &Image, entry: Svma) -> Option<Vec<Decoded>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![entry]);
    while let Some(at) = open.pop() {
        if found.contains_key(&at) {
            continue;
        }
        let decoded = decoded_at(image, at)?;
        let next = decoded.insn.end();
        match decoded.insn.flow {
            Flow::Call(to) if stops_at_once(image, to) => {}
            Flow::Next | Flow::Call(_) | Flow::IndirectCall => open.push(next),
            Flow::Jump(to) => open.push(to),
            Flow::Conditional(_, to) | Flow::ShortConditional(to) => open.extend([next, to]),
            Flow::Return | Flow::Stop => {}
            Flow::IndirectJump | Flow::Unsupported => return None,
        }
        found.insert(at, decoded);
        if found.len() > MOST_INSTRUCTIONS {
            return None;
        }
    }
    Some(found.into_values().collect())
}

fn decoded_at(image: &Image, at: Svma) -> Option<Decoded> {
    let bytes = image.read_tail(at)?;
    decode_one(&bytes[..bytes.len().min(15)], at)
}

/// Whether the function at `at` ends the program by its first instruction.
fn stops_at_once(image: &Image, at: Svma) -> bool {
    decoded_at(image, at).is_some_and(|d| d.insn.flow == Flow::Stop)
}
