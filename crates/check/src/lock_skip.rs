//! A conditional branch over the `lock` prefix of the next instruction (`je .+3; lock cmpxchg ...`), which
//! blocks hold like one instruction: found here from the original's bytes, whatever the analysis says.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use restitch_address::Svma;

/// The branch and the instruction with the prefix that it skips.
pub(crate) struct LockSkip {
    pub branch: Instruction,
    pub locked: Instruction,
}

impl LockSkip {
    /// The one whose first instruction is `branch`; `bytes` are the original's from there on.
    pub fn at(branch: &Instruction, bytes: &[u8]) -> Option<Self> {
        let prefix = branch.next_ip();
        let skips = branch.is_jcc_short() && branch.len() == 2 && branch.near_branch_target() == prefix + 1;
        if !skips || bytes.get(2) != Some(&0xf0) {
            return None;
        }
        let one = |from: usize| {
            let ip = branch.ip() + from as u64;
            Decoder::with_ip(64, &bytes[from..], ip, DecoderOptions::NONE).decode()
        };
        let (locked, bare) = (one(2), one(3));
        // Read from behind the prefix it is the same instruction without it: the same opcode, operands and
        // end.
        let mut with = bare;
        with.set_has_lock_prefix(true);
        with.set_len(locked.len());
        let same =
            !locked.is_invalid() && locked.has_lock_prefix() && !bare.has_lock_prefix() && with == locked;
        let plain = locked.flow_control() == FlowControl::Next && locked.next_ip() == bare.next_ip();
        (same && plain).then_some(Self { branch: *branch, locked })
    }

    /// First original address behind both.
    pub fn end(&self) -> Svma {
        Svma::new(self.locked.next_ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Option<u64> {
        let branch = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        LockSkip::at(&branch, bytes).map(|skip| skip.end().get())
    }

    #[test]
    fn only_a_branch_over_a_lock_prefix_is_one() {
        assert_eq!(found(&[0x74, 1, 0xf0, 0x0f, 0xb1, 0x0d, 0, 0, 0, 0]), Some(0x100a));
        assert_eq!(found(&[0x75, 1, 0xf0, 0x01, 0x37, 0x90]), Some(0x1005));
        for bytes in [
            &[0x74, 2, 0xf0, 0x0f, 0xb1, 0x11][..],
            &[0x74, 1, 0xf3, 0x0f, 0xb1, 0x11],
            &[0x74, 1, 0xf0, 0xf0, 0x0f, 0xb1, 0x11],
            &[0x74, 1, 0xf0, 0x90],
            &[0xeb, 1, 0xf0, 0x01, 0x37],
            &[0x74, 1, 0xf0, 0x01],
            &[0x74, 1],
        ] {
            assert_eq!(found(bytes), None, "{bytes:x?}");
        }
    }
}
