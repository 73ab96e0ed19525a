//! Which bytes of the original code change: computed before the stop.

use crate::entry_patch::{LEN, crosses_page, jump};
use crate::state::journal::JournalPatch;
use crate::target::Module;
use restitch_address::{Avma, AvmaRange, Svma};
use restitch_emit::Redirect;
use restitch_x86::first_insn;
use restitch_x86::patch::Patch;
use std::collections::BTreeMap;

/// The patches of a switch, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PatchSet {
    /// Address to (original bytes, bytes that are to be there).
    pub wanted: BTreeMap<Avma, (Patch, Patch)>,
    /// Redirects that were left out because they cross a page boundary: a write that is cut short there would
    /// be half done.
    pub crossing: usize,
    /// Redirects that were left out because a context may rest between two of the instructions that they
    /// would cover ([`crate::preempted`]).
    pub covering: usize,
}

/// Whether a patch over the beginning of `code` covers one instruction, and no place between two.
pub(crate) fn is_within_one(code: &[u8]) -> bool {
    first_insn(code, Svma::new(0)).is_some_and(|insn| usize::from(insn.len) >= LEN)
}

impl PatchSet {
    /// Adds the redirects of one version.
    pub fn add(&mut self, module: &Module, redirects: &[Redirect]) {
        for r in redirects {
            let (at, to) = (module.bias.to_actual(r.at), module.bias.to_actual(r.to));
            if crosses_page(at) {
                self.crossing += 1;
                continue;
            }
            let original = module.image.read_tail(r.at).and_then(Patch::beginning_of);
            if let (Some(original), Some(now)) = (original, jump(at, to)) {
                self.wanted.insert(at, (original, now));
            }
        }
    }

    /// Leaves out those that cover more than one instruction; `code` gives what the original code holds from
    /// an address on.
    pub fn leave_out_covering<'c>(&mut self, code: impl Fn(Avma) -> Option<&'c [u8]>) {
        let all = self.wanted.len();
        self.wanted.retain(|at, _| code(*at).is_some_and(is_within_one));
        self.covering += all - self.wanted.len();
    }

    /// The journal's form of what will be in force or may have been: wanted ones, and old ones that go back.
    pub fn journal(&self, old: &[JournalPatch]) -> Vec<JournalPatch> {
        let mut all: BTreeMap<u64, JournalPatch> =
            old.iter().map(|p| (p.at, JournalPatch { now: p.original, ..p.clone() })).collect();
        for (at, (original, now)) in &self.wanted {
            all.insert(at.get(), JournalPatch { at: at.get(), original: *original, now: *now });
        }
        all.into_values().collect()
    }

    /// Whether there are wanted patches in `range`.
    pub fn any_in(&self, range: AvmaRange) -> bool {
        self.wanted.range(range.start..range.end).next().is_some()
    }

    /// Few ranges in which all wanted patches are.
    pub fn neighbourhoods(&self) -> Vec<AvmaRange> {
        const APART: u64 = 1 << 24;
        let mut out = Vec::new();
        let mut next = self.wanted.keys().next().copied();
        while let Some(first) = next {
            let last = self.wanted.range(..first + APART).next_back().map_or(first, |(at, _)| *at);
            out.push(AvmaRange::between(first, last + LEN as u64));
            next = self.wanted.range(first + APART..).next().map(|(at, _)| *at);
        }
        out
    }

    /// Whether `at` lies behind the first byte of a wanted patch: nobody may stand or return there.
    pub fn inside(&self, at: Avma) -> Option<Avma> {
        let (&site, _) = self.wanted.range(..at).next_back()?;
        (at.offset_from(site) < LEN as i64).then_some(site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(byte: u8) -> Patch {
        Patch::new([byte; LEN])
    }

    #[test]
    fn only_the_bytes_behind_the_first_are_inside() {
        let mut set = PatchSet::default();
        set.wanted.insert(Avma::new(0x1000), (patch(0), patch(1)));
        assert_eq!(set.inside(Avma::new(0x1000)), None);
        for i in 1..5 {
            assert_eq!(set.inside(Avma::new(0x1000 + i)), Some(Avma::new(0x1000)));
        }
        assert_eq!(set.inside(Avma::new(0x1005)), None);
    }

    #[test]
    fn neighbourhoods_hold_all_patches_and_not_what_is_between_modules() {
        let mut set = PatchSet::default();
        assert_eq!(set.neighbourhoods(), []);
        for at in [0x1000, 0x2000, 0x100_0fff, 0x100_1000, 0x7f00_0000_0000] {
            set.wanted.insert(Avma::new(at), (patch(0), patch(1)));
        }
        let range = |from, to| AvmaRange::between(Avma::new(from), Avma::new(to));
        let far = 0x7f00_0000_0000;
        let expected = [range(0x1000, 0x100_1004), range(0x100_1000, 0x100_1005), range(far, far + 5)];
        assert_eq!(set.neighbourhoods(), expected);
    }

    #[test]
    fn where_contexts_rest_only_patches_of_one_instruction_stay() {
        // mov %rdi,%rax; xor %edx,%edx | bts $63,%rdi | mov 8(%rip),%r12 | push %r14 and the end of the code.
        const CODE: [&[u8]; 4] = [
            &[0x48, 0x89, 0xf8, 0x31, 0xd2, 0xc3],
            &[0x48, 0x0f, 0xba, 0xef, 0x3f, 0x90],
            &[0x4c, 0x8b, 0x25, 8, 0, 0, 0, 0x90],
            &[0x41, 0x56],
        ];
        let mut set = PatchSet::default();
        set.wanted.extend((0..5).map(|i| (Avma::new(16 * i), (patch(0), patch(1)))));
        set.leave_out_covering(|at| CODE.get((at.get() / 16) as usize).copied());
        assert_eq!(set.wanted.keys().map(|at| at.get()).collect::<Vec<_>>(), [16, 32]);
        assert_eq!(set.covering, 3);
    }

    #[test]
    fn old_patches_go_back_to_their_original_bytes() {
        let mut set = PatchSet::default();
        set.wanted.insert(Avma::new(2), (patch(2), patch(9)));
        let old = [
            JournalPatch { at: 1, original: patch(1), now: patch(7) },
            JournalPatch { at: 2, original: patch(2), now: patch(7) },
        ];
        let journal = set.journal(&old);
        assert_eq!(journal[0], JournalPatch { at: 1, original: patch(1), now: patch(1) });
        assert_eq!(journal[1], JournalPatch { at: 2, original: patch(2), now: patch(9) });
    }
}
