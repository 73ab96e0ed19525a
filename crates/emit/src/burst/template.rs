//! The instructions that a tracing version adds. None but those of the look-up touches status flags, and that one saves
//! them; nothing is stored below the stack pointer but return addresses, as the calls would.

use restitch_address::Svma;
use restitch_x86::Condition;

/// Where a 4-byte displacement leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dest {
    /// A label that is placed sooner or later.
    Label(u32),
    /// An address.
    At(Svma),
}

/// A displacement to be filled in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fix {
    /// Offset of the displacement.
    pub field: usize,
    /// Offset from which it counts.
    pub end: usize,
    pub dest: Dest,
}

/// Code in the making.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub bytes: Vec<u8>,
    pub fixes: Vec<Fix>,
    /// Offset of each label; `None` until it is placed.
    pub labels: Vec<Option<usize>>,
}

impl Code {
    pub fn label(&mut self) -> u32 {
        self.labels.push(None);
        self.labels.len() as u32 - 1
    }
    pub fn place(&mut self, label: u32) {
        self.labels[label as usize] = Some(self.bytes.len());
    }
    pub fn here(&self) -> usize {
        self.bytes.len()
    }
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    /// `opcode` and a 4-byte displacement to `dest`, with `behind` as the instruction's last bytes.
    pub fn to(&mut self, opcode: &[u8], dest: Dest, behind: &[u8]) {
        self.raw(opcode);
        let field = self.bytes.len();
        self.raw(&[0; 4]);
        self.raw(behind);
        self.fixes.push(Fix { field, end: self.bytes.len(), dest });
    }
    pub fn jmp(&mut self, dest: Dest) {
        self.to(&[0xe9], dest, &[]);
    }
    pub fn jcc(&mut self, condition: Condition, dest: Dest) {
        self.to(&[0x0f, 0x80 | condition.code()], dest, &[]);
    }
}

/// `mov %rcx,word`.
pub(crate) const SAVE_RCX: &[u8] = &[0x48, 0x89, 0x0d];
/// `mov word,%rcx`.
pub(crate) const LOAD_RCX: &[u8] = &[0x48, 0x8b, 0x0d];
/// `lea address,%rcx`.
pub(crate) const LEA_RCX: &[u8] = &[0x48, 0x8d, 0x0d];
/// `mov %rax,word`.
pub(crate) const SAVE_RAX: &[u8] = &[0x48, 0x89, 0x05];
/// `mov word,%rax`.
pub(crate) const LOAD_RAX: &[u8] = &[0x48, 0x8b, 0x05];
/// `lea address,%rax`.
pub(crate) const LEA_RAX: &[u8] = &[0x48, 0x8d, 0x05];
/// `mov %rdx,word`.
pub(crate) const SAVE_RDX: &[u8] = &[0x48, 0x89, 0x15];
/// `mov word,%rdx`.
pub(crate) const LOAD_RDX: &[u8] = &[0x48, 0x8b, 0x15];
/// `movabs address,%rdx`, without the address.
pub(crate) const MOVABS_RDX: &[u8] = &[0x48, 0xba];
/// `movl $imm,word`.
pub(crate) const STORE: &[u8] = &[0xc7, 0x05];
/// `jmp *word`.
pub(crate) const JMP_WORD: &[u8] = &[0xff, 0x25];
/// `push word`.
pub(crate) const PUSH_WORD: &[u8] = &[0xff, 0x35];
/// `push $number`, sign-extended.
pub(crate) const PUSH_NUMBER: &[u8] = &[0x68];
/// `push %rcx`.
pub(crate) const PUSH_RCX: &[u8] = &[0x51];
/// `lea 4(%rcx),%rcx`.
pub(crate) const NEXT_RECORD: &[u8] = &[0x48, 0x8d, 0x49, 4];
/// `movzwl %cx,%ecx; jrcxz`, over what follows (a load of `rcx` and a jump): see `Burst::record`.
pub(crate) const TEST_FULL: &[u8] = &[0x0f, 0xb7, 0xc9, 0xe3, 12];
/// `mov (%rsp),%rcx`.
pub(crate) const LOAD_RETURN: &[u8] = &[0x48, 0x8b, 0x0c, 0x24];
/// `lea 8(%rsp),%rsp`.
pub(crate) const DROP_RETURN: &[u8] = &[0x48, 0x8d, 0x64, 0x24, 8];
/// `lahf; seto %al`.
pub(crate) const TAKE_FLAGS: &[u8] = &[0x9f, 0x0f, 0x90, 0xc0];
/// `add $127,%al; sahf`: the overflow flag from bit 0, the others from bits 8 to 15.
pub(crate) const GIVE_FLAGS: &[u8] = &[0x04, 0x7f, 0x9e];

/// The load of an indirect branch's target into `rcx`, made of the branch's bytes: `mov operand,%rcx`, and the offset of its
/// RIP-relative displacement if it has one. `None` for forms that are left to the original code (far branches, segments).
pub(crate) fn load_target(bytes: &[u8]) -> Option<(Vec<u8>, Option<usize>)> {
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
