//! The instructions that a tracing version adds: each is a constant, without the displacement of the word or
//! address that it names.
//!
//! None but those of the look-up touches status flags, and that one saves them; nothing is stored below the
//! stack pointer but return addresses, as the calls would. `word` is an operand relative to the program
//! counter.

/// `mov %rcx,word`.
pub const SAVE_RCX: &[u8] = &[0x48, 0x89, 0x0d];
/// `mov word,%rcx`.
pub const LOAD_RCX: &[u8] = &[0x48, 0x8b, 0x0d];
/// `lea address,%rcx`.
pub const LEA_RCX: &[u8] = &[0x48, 0x8d, 0x0d];
/// `mov %rax,word`.
pub const SAVE_RAX: &[u8] = &[0x48, 0x89, 0x05];
/// `mov word,%rax`.
pub const LOAD_RAX: &[u8] = &[0x48, 0x8b, 0x05];
/// `lea address,%rax`.
pub const LEA_RAX: &[u8] = &[0x48, 0x8d, 0x05];
/// `mov %rdx,word`.
pub const SAVE_RDX: &[u8] = &[0x48, 0x89, 0x15];
/// `mov word,%rdx`.
pub const LOAD_RDX: &[u8] = &[0x48, 0x8b, 0x15];
/// `movabs address,%rdx`, without the address.
pub const MOVABS_RDX: &[u8] = &[0x48, 0xba];
/// `movl $imm,word`.
pub const STORE: &[u8] = &[0xc7, 0x05];
/// `jmp *word`.
pub const JMP_WORD: &[u8] = &[0xff, 0x25];
/// `push word`.
pub const PUSH_WORD: &[u8] = &[0xff, 0x35];
/// `push $number`, sign-extended.
pub const PUSH_NUMBER: &[u8] = &[0x68];
/// `push %rcx`.
pub const PUSH_RCX: &[u8] = &[0x51];
/// `movl $number,(%rcx)`, without the number.
pub const PUT_RECORD: &[u8] = &[0xc7, 0x01];
/// `lea 4(%rcx),%rcx`.
pub const NEXT_RECORD: &[u8] = &[0x48, 0x8d, 0x49, 4];
/// `movzwl %cx,%ecx; jrcxz`, over what follows (a load of `rcx` and a jump): what ends a piece of 64 KiB.
pub const TEST_FULL: &[u8] = &[0x0f, 0xb7, 0xc9, 0xe3, 12];
/// `mov (%rsp),%rcx`.
pub const LOAD_RETURN: &[u8] = &[0x48, 0x8b, 0x0c, 0x24];
/// `lea 8(%rsp),%rsp`.
pub const DROP_RETURN: &[u8] = &[0x48, 0x8d, 0x64, 0x24, 8];
/// `lahf; seto %al`.
pub const TAKE_FLAGS: &[u8] = &[0x9f, 0x0f, 0x90, 0xc0];
/// `add $127,%al; sahf`: the overflow flag from bit 0, the others from bits 8 to 15.
pub const GIVE_FLAGS: &[u8] = &[0x04, 0x7f, 0x9e];

/// `mov %rcx,%rdx; shr $stretch,%rdx; movabs $hash,%rax; imul %rdx,%rax; shr $(64 - bits),%rax`: the slot of
/// the stretch of code that `rcx` points into, in a table of `1 << bits` slots.
pub fn hash_of_rcx(stretch: u8, hash: u64, bits: u8) -> Vec<u8> {
    let mut out = vec![0x48, 0x89, 0xca, 0x48, 0xc1, 0xea, stretch, 0x48, 0xb8];
    out.extend(hash.to_le_bytes());
    out.extend([0x48, 0x0f, 0xaf, 0xc2, 0x48, 0xc1, 0xe8, 64 - bits]);
    out
}

/// `mov %ecx,%edx; shr $apart,%edx; and $within,%edx; add %rdx,%rax`: the place of `rcx` within its stretch
/// is added.
pub fn add_place_of_rcx(apart: u8, within: u8) -> [u8; 11] {
    [0x89, 0xca, 0xc1, 0xea, apart, 0x83, 0xe2, within, 0x48, 0x01, 0xd0]
}

/// `shl $4,%rax`: from a slot's number to its offset.
pub const SLOT_OFFSET: &[u8] = &[0x48, 0xc1, 0xe0, 4];
/// `add %rdx,%rax`.
pub const ADD_RDX: &[u8] = &[0x48, 0x01, 0xd0];
/// `mov (%rax),%rdx; cmp %rcx,%rdx`: equal where the slot is that of `rcx`.
pub const COMPARE_SLOT: &[u8] = &[0x48, 0x8b, 0x10, 0x48, 0x39, 0xca];
/// `test %rdx,%rdx`: equal where the slot is free.
pub const TEST_SLOT: &[u8] = &[0x48, 0x85, 0xd2];
/// `add $16,%rax`.
pub const NEXT_SLOT: &[u8] = &[0x48, 0x83, 0xc0, 16];
/// `mov 8(%rax),%rdx`: what the slot leads to.
pub const LOAD_SLOT: &[u8] = &[0x48, 0x8b, 0x50, 8];
/// `sub %edx,%eax; or $number,%eax`, without the number.
pub const SLOT_RECORD: &[u8] = &[0x29, 0xd0, 0x0d];
/// `mov %eax,(%rdx); add $4,%rdx`.
pub const PUT_SLOT_RECORD: &[u8] = &[0x89, 0x02, 0x48, 0x83, 0xc2, 4];
/// `test %dx,%dx`: equal at the end of a piece of 64 KiB.
pub const TEST_RDX_FULL: &[u8] = &[0x66, 0x85, 0xd2];

/// Whether an instruction of these bytes is a plain near return, which takes nothing but the return address
/// off the stack.
pub fn is_plain_return(insn: &[u8]) -> bool {
    matches!(insn, [0xc3] | [0xf2 | 0xf3, 0xc3])
}

/// The load of an indirect branch's target into `rcx`, made of the branch's bytes: `mov operand,%rcx`, and
/// the offset of its RIP-relative displacement if it has one. `None` for forms that are left to the original
/// code (far branches, segments).
pub fn load_target(bytes: &[u8]) -> Option<(Vec<u8>, Option<usize>)> {
    // `notrack` and `bnd` say nothing about the target.
    let skip = bytes.iter().take_while(|b| matches!(b, 0x3e | 0xf2)).count();
    let bytes = bytes.get(skip..)?;
    let (rex, bytes) = match *bytes.first()? {
        rex @ 0x40..=0x4f => (rex, &bytes[1..]),
        _ => (0, bytes),
    };
    let (&opcode, rest) = bytes.split_first()?;
    let (&modrm, rest) = rest.split_first()?;
    if opcode != 0xff || !matches!(modrm >> 3 & 7, 2 | 4) {
        return None;
    }
    let mut out = vec![0x48 | rex & 3, 0x8b, modrm & !0x38 | 1 << 3];
    let relative = modrm & 0xc7 == 5;
    let field = relative.then_some(out.len());
    out.extend_from_slice(rest);
    Some((out, field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_returns_are_near_and_pop_nothing() {
        assert!(is_plain_return(&[0xc3]) && is_plain_return(&[0xf3, 0xc3]) && is_plain_return(&[0xf2, 0xc3]));
        assert!(
            !is_plain_return(&[0xc2, 8, 0]) && !is_plain_return(&[0xcb]) && !is_plain_return(&[0x48, 0xc3])
        );
    }

    #[test]
    fn targets_are_loaded_as_the_branch_would() {
        // call *%rax; jmp *%r11; call *0x18(%rax); jmp *(%r8,%r9,8); notrack jmp *%rdx
        assert_eq!(load_target(&[0xff, 0xd0]).unwrap().0, [0x48, 0x8b, 0xc8]);
        assert_eq!(load_target(&[0x41, 0xff, 0xe3]).unwrap().0, [0x49, 0x8b, 0xcb]);
        assert_eq!(load_target(&[0xff, 0x50, 0x18]).unwrap().0, [0x48, 0x8b, 0x48, 0x18]);
        assert_eq!(load_target(&[0x43, 0xff, 0x24, 0xc8]).unwrap().0, [0x4b, 0x8b, 0x0c, 0xc8]);
        assert_eq!(load_target(&[0x3e, 0xff, 0xe2]).unwrap().0, [0x48, 0x8b, 0xca]);
        // bnd jmp *0x1000(%rip): the displacement is to be filled in.
        let relative = load_target(&[0xf2, 0xff, 0x25, 0, 0x10, 0, 0]).unwrap();
        assert_eq!(relative, (vec![0x48, 0x8b, 0x0d, 0, 0x10, 0, 0], Some(3)));
        // call *%fs:0x10; far jump; push
        assert_eq!(load_target(&[0x64, 0xff, 0x14, 0x25, 0x10, 0, 0, 0]), None);
        assert_eq!(load_target(&[0xff, 0x28]), None);
        assert_eq!(load_target(&[0xff, 0x30]), None);
    }
}
