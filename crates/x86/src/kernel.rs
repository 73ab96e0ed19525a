//! Instructions by which programs enter the kernel, and others that single steps have to know.

/// A way into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelEntry {
    /// `syscall`.
    SystemCall,
    /// `sysenter`.
    SystemEntry,
    /// `int number`.
    Interrupt(u8),
    /// `int3`, `into`, `int1`: an exception that the instruction is made for.
    Trap,
}

impl KernelEntry {
    /// What `code` begins with, without prefixes.
    pub fn beginning_of(code: &[u8]) -> Option<Self> {
        match code {
            [0x0f, 0x05, ..] => Some(Self::SystemCall),
            [0x0f, 0x34, ..] => Some(Self::SystemEntry),
            [0xcd, number, ..] => Some(Self::Interrupt(*number)),
            [0xcc | 0xce | 0xf1, ..] => Some(Self::Trap),
            _ => None,
        }
    }

    /// Whether a system call is made by it: through the entry for programs of 32 bits, too.
    pub fn is_system_call(self) -> bool {
        const OLD: u8 = 0x80;
        matches!(self, Self::SystemCall | Self::SystemEntry | Self::Interrupt(OLD))
    }
}

/// Whether the instruction that `code` begins with enters the kernel, whatever its prefixes.
pub fn enters_kernel(code: &[u8]) -> bool {
    let is_prefix =
        |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let skip = code.iter().take_while(|b| is_prefix(b)).count();
    KernelEntry::beginning_of(&code[skip..]).is_some()
}

/// Bytes of a system call that has its number right in front, as in C libraries: `mov $number,%eax; syscall`.
pub const NUMBERED_CALL: usize = 7;

/// The number of the call that `code` is: see [`NUMBERED_CALL`].
pub fn numbered_call(code: &[u8; NUMBERED_CALL]) -> Option<u32> {
    let [0xb8, a, b, c, d, 0x0f, 0x05] = *code else { return None };
    Some(u32::from_le_bytes([a, b, c, d]))
}

/// Whether `code` begins with an instruction that stores the flags on the stack: `pushf`, also with an
/// operand-size prefix.
pub fn stores_flags(code: &[u8]) -> bool {
    matches!(code, [0x9c, ..] | [0x66, 0x9c, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_into_the_kernel_are_told_apart() {
        use KernelEntry::{Interrupt, SystemCall, SystemEntry, Trap};
        for (code, entry, is_call) in [
            (&[0x0f, 0x05][..], Some(SystemCall), true),
            (&[0x0f, 0x34], Some(SystemEntry), true),
            (&[0xcd, 0x80], Some(Interrupt(0x80)), true),
            (&[0xcd, 0x29], Some(Interrupt(0x29)), false),
            (&[0xcc], Some(Trap), false),
            (&[0xce], Some(Trap), false),
            (&[0xf1], Some(Trap), false),
            (&[0x0f, 0x0b], None, false),
            (&[], None, false),
        ] {
            assert_eq!(KernelEntry::beginning_of(code), entry, "{code:x?}");
            assert_eq!(entry.is_some_and(KernelEntry::is_system_call), is_call, "{code:x?}");
            assert_eq!(enters_kernel(&[&[0x2e, 0x48], code].concat()), entry.is_some(), "{code:x?}");
        }
    }

    #[test]
    fn calls_with_their_number_in_front_are_read() {
        assert_eq!(numbered_call(&[0xb8, 0x3c, 1, 0, 0, 0x0f, 0x05]), Some(0x13c));
        assert_eq!(numbered_call(&[0xb9, 0x3c, 0, 0, 0, 0x0f, 0x05]), None);
        assert_eq!(numbered_call(&[0xb8, 0x3c, 0, 0, 0, 0x0f, 0x34]), None);
        assert!(stores_flags(&[0x9c]) && stores_flags(&[0x66, 0x9c]) && !stores_flags(&[0x9d]));
    }
}
