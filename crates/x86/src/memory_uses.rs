//! All memory that an instruction reads or writes.

use crate::operand::{Address, used_address};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};
use restitch_address::Svma;

/// Memory that an instruction reads or writes, the stack of `push`, `pop`, `call` and `ret` included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Where, by the registers' values before the instruction; `None` if that cannot be said so (vectors of
    /// addresses).
    pub address: Option<Address>,
    /// Bytes.
    pub size: u16,
    /// Whether it may be read.
    pub reads: bool,
    /// Whether it may be written.
    pub writes: bool,
}

/// All memory that the instruction at the start of `bytes`, which stands at `at`, reads or writes. Empty if
/// there is no instruction.
pub fn memory_uses(bytes: &[u8], at: Svma) -> Vec<MemoryUse> {
    let i = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE).decode();
    let mut factory = InstructionInfoFactory::new();
    let reads = |access| {
        !matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::None | OpAccess::NoMemAccess)
    };
    let writes = |access| {
        matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    if i.is_invalid() {
        return Vec::new();
    }
    let used = factory.info(&i).used_memory().iter();
    used.filter(|m| m.access() != OpAccess::NoMemAccess)
        .map(|m| MemoryUse {
            address: used_address(m),
            size: m.memory_size().size() as u16,
            reads: reads(m.access()),
            writes: writes(m.access()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_memory_say_what_is_read() {
        let uses = |bytes: &[u8]| memory_uses(bytes, Svma::new(0));
        let one = |bytes: &[u8]| {
            let [it] = uses(bytes)[..] else { panic!("{bytes:x?}: {:?}", uses(bytes)) };
            (it.address.map(|a| a.disp), it.size, it.reads, it.writes)
        };
        assert_eq!(one(&[0x48, 0x8b, 0x0c, 0x24]), (Some(0), 8, true, false), "mov (%rsp),%rcx");
        assert_eq!(one(&[0x48, 0x89, 0x04, 0x24]), (Some(0), 8, false, true), "mov %rax,(%rsp)");
        assert_eq!(one(&[0x48, 0xff, 0x04, 0x24]), (Some(0), 8, true, true), "incq (%rsp)");
        assert_eq!(one(&[0x59]), (Some(0), 8, true, false), "pop %rcx");
        assert!(uses(&[0x48, 0x8d, 0x04, 0x24]).is_empty(), "lea (%rsp),%rax");
        assert!(uses(&[0x06]).is_empty(), "no instruction");
    }
}
