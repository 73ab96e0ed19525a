//! Whether a counter may overwrite the flags: whether code that control reaches from a place reads them
//! before it writes them.
//!
//! All ways are followed, into callees too, until each has written all flags. Functions that are called
//! through registers or static calls are taken to read none when they begin, and traps to read none. A return
//! hands none on, unless a direct call of that function, anywhere in the kernel, is followed by code that
//! reads them: what a compiler makes never does so, but what is written by hand may.
//!
//! Limit: that a function hands on flags which it got from what it has called is not looked for.

use crate::flag_use::COUNTED;
use crate::insn::{CALL, Does, Insn};
use crate::original::Original;
use crate::step::Act;
use restitch_address::Svma;
use std::collections::{HashMap, HashSet};

/// So many places are looked at; if that is not enough, the flags may be live.
const MOST: usize = 4096;

/// A place to look at, and the flags that have not been written on the way there.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Svma,
    open: u32,
}

impl Original<'_> {
    /// Whether nothing reads the flags that are there at `at`, of those that a counter overwrites.
    pub(crate) fn flags_are_dead(&self, at: Svma) -> bool {
        let mut todo = vec![Look { at, open: COUNTED }];
        let mut seen: HashMap<Svma, u32> = HashMap::new();
        while let Some(look) = todo.pop() {
            let before = seen.entry(look.at).or_default();
            if *before & look.open == look.open {
                continue;
            }
            *before |= look.open;
            if seen.len() > MOST || !self.ways(look, &mut todo) {
                return false;
            }
        }
        true
    }

    /// Adds where control goes from a place with flags that are open still; false if they are read there.
    fn ways(&self, look: Look, todo: &mut Vec<Look>) -> bool {
        if !self.text.contains(look.at) {
            return false;
        }
        let Ok(step) = self.known(look.at) else { return false };
        let mut go = |at: Svma, open: u32| todo.extend((open != 0).then_some(Look { at, open }));
        let insn = match step.act {
            Act::Through(_) | Act::StaticCall(..) => return true,
            Act::Return => return !self.hands_on_flags(look.at),
            Act::Trace => {
                go(step.end(), look.open);
                return true;
            }
            Act::Key(key) => {
                go(step.end(), look.open);
                go(key.target, look.open);
                return true;
            }
            Act::Plain(insn) => insn,
        };
        if insn.flags.reads & look.open != 0 {
            return false;
        }
        if let Some(exception) = self.tables.exceptions.get(&look.at) {
            go(exception.fixup, look.open);
        }
        let open = look.open & !insn.flags.writes;
        match insn.does {
            Does::Next | Does::Nothing | Does::Marks | Does::Fence => go(insn.end(), open),
            Does::Jump(to) | Does::Call(to) => go(to, open),
            Does::Conditional(_, to) | Does::Counted(to) => {
                go(to, open);
                go(insn.end(), open);
            }
            Does::Trap => {
                let warning = self.tables.warnings.get(&look.at);
                if warning.is_some_and(|warning| warning.goes_on) {
                    go(insn.end(), open);
                }
            }
            Does::Return | Does::Through(_) | Does::Breakpoint | Does::Elsewhere => return open == 0,
        }
        true
    }

    /// Whether the function that returns at `at` hands on flags.
    fn hands_on_flags(&self, at: Svma) -> bool {
        let start = self.start_around(at);
        let handing = self.handing.get_or_init(|| self.functions_that_hand_on_flags());
        start.is_none_or(|start| handing.as_ref().is_none_or(|handing| handing.contains(&start)))
    }

    /// Functions behind whose direct calls flags are read; none if the kernel's code cannot be read as a
    /// whole. Calls are looked for at each byte, so some may be none.
    fn functions_that_hand_on_flags(&self) -> Option<HashSet<Svma>> {
        const DISPLACEMENT: usize = 4;
        let text = self.all_text()?;
        let mut handing = HashSet::new();
        for (offset, _) in text.iter().enumerate().filter(|(_, byte)| **byte == CALL) {
            let end = offset + 1 + DISPLACEMENT;
            let Some(displacement) = text.get(offset + 1..end).and_then(|field| field.first_chunk()) else {
                continue;
            };
            let next = self.text.start + end as u64;
            let to = next.offset(i32::from_le_bytes(*displacement).into());
            if self.text.contains(to) && reads_flags(&text[end..], next) && !self.names(to).is_empty() {
                handing.insert(to);
            }
        }
        Some(handing)
    }
}

/// Whether `code` reads flags before it writes them or goes elsewhere.
fn reads_flags(code: &[u8], at: Svma) -> bool {
    let (mut offset, mut open) = (0, COUNTED);
    while let Some(insn) = code.get(offset..).and_then(|code| Insn::decode(code, at + offset as u64)) {
        if insn.flags.reads & open != 0 {
            return true;
        }
        open &= !insn.flags.writes;
        offset = match insn.does {
            _ if open == 0 => return false,
            Does::Next | Does::Nothing | Does::Marks | Does::Fence => offset + insn.len as usize,
            Does::Jump(to) if to > insn.at => to.offset_from(at) as usize,
            _ => return false,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_behind_a_call_may_read_flags() {
        let at = Svma::new(0x1000);
        for (code, reads) in [
            (&[0x48, 0x89, 0xc8, 0x74, 0x00][..], true), // mov, je
            (&[0x85, 0xc0, 0x74, 0x00], false),          // test, je
            (&[0xeb, 0x01, 0xcc, 0x75, 0x00], true),     // jmp, jne
            (&[0xc3, 0x74, 0x00], false),                // ret
            (&[], false),
        ] {
            assert_eq!(reads_flags(code, at), reads, "{code:x?}");
        }
    }
}
