//! The contract can be kept by an instruction set of another kind: AArch64's words of 4 bytes, whose
//! conditions name registers and bits. It is here as far as the contract asks (Arm Architecture Reference
//! Manual, C4.1); all other words go on to the next one.

use restitch_address::Svma;
use restitch_x86::elf::RelocationType;
use restitch_x86::isa::{Isa, keeps_contract};
use restitch_x86::{Flow, Insn, Naming, StackUse};

/// What a branch asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// `b.cond`, by the number of the condition: 0 to 13.
    Flags(u8),
    /// `cbz`, `cbnz`.
    Register { number: u8, wide: bool, is_zero: bool },
    /// `tbz`, `tbnz`.
    Bit { number: u8, bit: u8, is_zero: bool },
}

/// Where the word of a branch has its distance: the lowest bit, and how many.
struct Field {
    at: u32,
    bits: u32,
}

const JUMP: Field = Field { at: 0, bits: 26 };
const BRANCH: Field = Field { at: 5, bits: 19 };
const TEST: Field = Field { at: 5, bits: 14 };

impl Field {
    fn read(&self, word: u32) -> i64 {
        let behind = 64 - self.bits;
        (i64::from(word >> self.at) << behind >> behind) * 4
    }

    /// `word` with `distance`; none if it is no multiple of 4, or too far.
    fn write(&self, word: u32, distance: i64) -> Option<u32> {
        let words = (distance % 4 == 0).then_some(distance / 4)?;
        let reach = 1 << (self.bits - 1);
        let mask = (1 << self.bits) - 1;
        (-reach..reach).contains(&words).then_some(word | (words as u32 & mask) << self.at)
    }
}

impl Condition {
    /// The word of a branch over no distance, and where that is.
    fn word(self) -> (u32, Field) {
        match self {
            Self::Flags(number) => (0x5400_0000 | u32::from(number), BRANCH),
            Self::Register { number, wide, is_zero } => {
                let word = 0x3400_0000 | u32::from(wide) << 31 | u32::from(!is_zero) << 24;
                (word | u32::from(number), BRANCH)
            }
            Self::Bit { number, bit, is_zero } => {
                let bit = u32::from(bit >> 5) << 31 | u32::from(bit & 31) << 19;
                (0x3600_0000 | bit | u32::from(!is_zero) << 24 | u32::from(number), TEST)
            }
        }
    }

    fn of_word(word: u32) -> Option<(Self, Field)> {
        let (number, is_zero) = ((word & 31) as u8, word & 1 << 24 == 0);
        match word & 0x7e00_0000 {
            0x5400_0000 if word >> 24 == 0x54 && number < 14 => Some((Self::Flags(number), BRANCH)),
            0x3400_0000 => Some((Self::Register { number, wide: word >> 31 == 1, is_zero }, BRANCH)),
            0x3600_0000 => {
                let bit = (word >> 31 << 5 | word >> 19 & 31) as u8;
                Some((Self::Bit { number, bit, is_zero }, TEST))
            }
            _ => None,
        }
    }
}

fn flow(word: u32, at: Svma) -> Flow<Condition> {
    if let Some((condition, field)) = Condition::of_word(word) {
        return Flow::Conditional(condition, at.offset(field.read(word)));
    }
    let target = || at.offset(JUMP.read(word));
    match (word >> 26, word & 0xffff_fc1f, word & 0xffe0_001f) {
        (0b000101, ..) => Flow::Jump(target()),
        (0b100101, ..) => Flow::Call(target()),
        (_, 0xd61f_0000, _) => Flow::IndirectJump,
        (_, 0xd63f_0000, _) => Flow::IndirectCall,
        (_, 0xd65f_0000, _) => Flow::Return,
        // `brk`; `udf`.
        (.., 0xd420_0000) => Flow::Stop,
        _ if word >> 16 == 0 => Flow::Stop,
        _ => Flow::Next,
    }
}

fn first_word(code: &[u8]) -> Option<u32> {
    code.first_chunk().copied().map(u32::from_le_bytes)
}

#[derive(Debug)]
struct AArch64;

impl Isa for AArch64 {
    type Condition = Condition;
    type Patch = [u8; 4];

    const MACHINE: u16 = 183;
    const ALIGNMENT: u64 = 4;
    const LONGEST: usize = 4;
    const PATCH: usize = 4;
    const BREAKPOINT: &'static [u8] = &0xd420_0000u32.to_le_bytes();

    fn relocation_type(number: u32) -> Option<RelocationType> {
        match number {
            257 | 1025 => Some(RelocationType::Symbolic),
            1026 => Some(RelocationType::JumpSlot),
            1027 => Some(RelocationType::Relative),
            1032 => Some(RelocationType::IRelative),
            _ => None,
        }
    }

    fn scan(code: &[u8], at: Svma, mut sink: impl FnMut(Insn<Condition>)) -> Result<(), Svma> {
        for (i, word) in code.chunks(4).enumerate() {
            let at = at + 4 * i as u64;
            let flow = flow(first_word(word).ok_or(at)?, at);
            sink(Insn {
                at,
                len: 4,
                flow,
                flags_read: 0,
                flags_written: 0,
                names: None,
                naming: Naming::Address,
                accessed: 0,
                odd: false,
                padding: false,
                stack: StackUse::None,
            });
        }
        Ok(())
    }

    fn conditions() -> impl Iterator<Item = Condition> {
        (0..0x2000).filter_map(Self::condition_from_code)
    }

    fn inverted(condition: Condition) -> Condition {
        match condition {
            Condition::Flags(number) => Condition::Flags(number ^ 1),
            Condition::Register { number, wide, is_zero } => {
                Condition::Register { number, wide, is_zero: !is_zero }
            }
            Condition::Bit { number, bit, is_zero } => Condition::Bit { number, bit, is_zero: !is_zero },
        }
    }

    fn condition_code(condition: Condition) -> u16 {
        match condition {
            Condition::Flags(number) => number.into(),
            Condition::Register { number, wide, is_zero } => {
                0x100 | u16::from(number) << 2 | u16::from(wide) << 1 | u16::from(is_zero)
            }
            Condition::Bit { number, bit, is_zero } => {
                0x1000 | u16::from(number) << 7 | u16::from(bit) << 1 | u16::from(is_zero)
            }
        }
    }

    fn condition_from_code(code: u16) -> Option<Condition> {
        let is_zero = code & 1 == 1;
        match code {
            0..14 => Some(Condition::Flags(code as u8)),
            0x100..0x180 => {
                let (number, wide) = ((code >> 2 & 31) as u8, code & 2 != 0);
                Some(Condition::Register { number, wide, is_zero })
            }
            0x1000..0x2000 => {
                let (number, bit) = ((code >> 7 & 31) as u8, (code >> 1 & 63) as u8);
                Some(Condition::Bit { number, bit, is_zero })
            }
            _ => None,
        }
    }

    fn branch_if(condition: Condition, distance: i64) -> Option<Vec<u8>> {
        let (word, field) = condition.word();
        Some(field.write(word, distance)?.to_le_bytes().to_vec())
    }

    fn jump(distance: i64) -> Option<[u8; 4]> {
        Some(JUMP.write(0x1400_0000, distance)?.to_le_bytes())
    }

    fn as_jump(patch: [u8; 4]) -> Option<i64> {
        let word = u32::from_le_bytes(patch);
        (word >> 26 == 0b000101).then(|| JUMP.read(word))
    }

    fn bytes(patch: &[u8; 4]) -> &[u8] {
        patch
    }

    /// `bti` with any target; `paciasp`.
    fn entry_marker(code: &[u8]) -> usize {
        let is_marker = |word| word & 0xffff_ff3f == 0xd503_241f || word == 0xd503_233f;
        if first_word(code).is_some_and(is_marker) { 4 } else { 0 }
    }

    /// `nop`, `udf #0`.
    fn filler_len(code: &[u8]) -> usize {
        if first_word(code).is_some_and(|word| [0xd503_201f, 0].contains(&word)) { 4 } else { 0 }
    }

    /// `svc`.
    fn enters_kernel(code: &[u8]) -> bool {
        first_word(code).is_some_and(|word| word & 0xffe0_001f == 0xd400_0001)
    }
}

#[test]
fn an_instruction_set_of_words_keeps_the_contract() {
    keeps_contract::<AArch64>();
    assert_eq!(AArch64::conditions().count(), 14 + 2 * 2 * 32 + 2 * 64 * 32);
}

/// Words as `llvm-mc --triple=aarch64` makes them.
#[test]
fn words_are_read_as_the_assembler_writes_them() {
    let read = |word: u32| {
        let mut all = Vec::new();
        AArch64::scan(&word.to_le_bytes(), Svma::new(0x8000), |insn| all.push(insn.flow)).unwrap();
        all[0]
    };
    let to = Svma::new(0x8000 - 8);
    let register = |number, wide, is_zero| Condition::Register { number, wide, is_zero };
    for (word, flow) in [
        (0x17ff_fffe, Flow::Jump(to)),
        (0x97ff_fffe, Flow::Call(to)),
        (0x54ff_ffc1, Flow::Conditional(Condition::Flags(1), to)),
        (0xb4ff_ffc3, Flow::Conditional(register(3, true, true), to)),
        (0x35ff_ffc3, Flow::Conditional(register(3, false, false), to)),
        (0xb60f_ffc5, Flow::Conditional(Condition::Bit { number: 5, bit: 33, is_zero: true }, to)),
        (0xd65f_03c0, Flow::Return),
        (0xd61f_0200, Flow::IndirectJump),
        (0xd63f_0200, Flow::IndirectCall),
        (0xd420_0000, Flow::Stop),
        (0, Flow::Stop),
        (0xd503_201f, Flow::Next),
        (0xd400_0001, Flow::Next),
    ] {
        assert_eq!(read(word), flow, "{word:#x}");
    }
    for marker in [0xd503_245fu32, 0xd503_24df, 0xd503_233f] {
        assert_eq!(AArch64::entry_marker(&marker.to_le_bytes()), 4, "{marker:#x}");
    }
}
