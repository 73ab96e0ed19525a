//! The status flags, and what a conditional branch asks of them.

/// The status flags, as indices into a set of six bits (the order of [`crate::ALL_FLAGS`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Flag {
    /// Carry.
    Carry = 0,
    /// Parity of the low byte.
    Parity = 1,
    /// Carry out of bit 3.
    Adjust = 2,
    /// Zero.
    Zero = 3,
    /// Sign.
    Sign = 4,
    /// Overflow.
    Overflow = 5,
}

impl Flag {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Carry, Self::Parity, Self::Adjust, Self::Zero, Self::Sign, Self::Overflow];

    /// The set that holds this flag only.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Its bit in the flags register.
    pub const fn in_rflags(self) -> u64 {
        const NUMBERS: [u32; 6] = [0, 2, 4, 6, 7, 11];
        1 << NUMBERS[self as usize]
    }
}

/// A condition on the status flags: of `jcc`, `setcc` and `cmovcc` (Intel SDM vol. 2, appendix B.1.4.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Condition {
    /// OF is set.
    Overflow,
    /// OF is clear.
    NoOverflow,
    /// CF is set: less, without sign.
    Below,
    /// CF is clear.
    AboveOrEqual,
    /// ZF is set.
    Equal,
    /// ZF is clear.
    NotEqual,
    /// CF or ZF is set: less or equal, without sign.
    BelowOrEqual,
    /// CF and ZF are clear.
    Above,
    /// SF is set.
    Sign,
    /// SF is clear.
    NoSign,
    /// PF is set.
    Parity,
    /// PF is clear.
    NoParity,
    /// SF and OF differ: less, with sign.
    Less,
    /// SF and OF are equal.
    GreaterOrEqual,
    /// ZF is set, or SF and OF differ: less or equal, with sign.
    LessOrEqual,
    /// ZF is clear, and SF and OF are equal.
    Greater,
}

impl Condition {
    /// All conditions, in the order of their codes.
    pub const ALL: [Self; 16] = [
        Self::Overflow,
        Self::NoOverflow,
        Self::Below,
        Self::AboveOrEqual,
        Self::Equal,
        Self::NotEqual,
        Self::BelowOrEqual,
        Self::Above,
        Self::Sign,
        Self::NoSign,
        Self::Parity,
        Self::NoParity,
        Self::Less,
        Self::GreaterOrEqual,
        Self::LessOrEqual,
        Self::Greater,
    ];

    /// The 4 bits by which opcodes (`0f 80+code`) and written forms (`cond(4)`) name it.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The condition with this code, if it is one of 4 bits.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The one that holds where this one does not.
    pub fn inverted(self) -> Self {
        Self::ALL[usize::from(self.code() ^ 1)]
    }

    /// Whether it holds, given what `flag` knows of each flag; none if it depends on one that is not known.
    pub fn holds(self, flag: impl Fn(Flag) -> Option<bool>) -> Option<bool> {
        // Either of two flags being set decides also when the other one is unknown.
        let any = |a: Option<bool>, b: Option<bool>| match (a, b) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
        let less = || Some(flag(Flag::Sign)? != flag(Flag::Overflow)?);
        let plain = match self {
            Self::Overflow | Self::NoOverflow => flag(Flag::Overflow),
            Self::Below | Self::AboveOrEqual => flag(Flag::Carry),
            Self::Equal | Self::NotEqual => flag(Flag::Zero),
            Self::BelowOrEqual | Self::Above => any(flag(Flag::Carry), flag(Flag::Zero)),
            Self::Sign | Self::NoSign => flag(Flag::Sign),
            Self::Parity | Self::NoParity => flag(Flag::Parity),
            Self::Less | Self::GreaterOrEqual => less(),
            Self::LessOrEqual | Self::Greater => any(flag(Flag::Zero), less()),
        };
        let negated = self.code() & 1 != 0;
        plain.map(|holds| holds != negated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_names_one_condition_and_its_last_bit_the_opposite() {
        for (code, condition) in (0..).zip(Condition::ALL) {
            assert_eq!((condition.code(), Condition::from_code(code)), (code, Some(condition)));
            assert_eq!(condition.inverted().code(), code ^ 1);
        }
        assert_eq!(Condition::from_code(16), None);
    }

    #[test]
    fn a_condition_or_its_opposite_holds_and_unknown_flags_decide_nothing() {
        for flags in 0..64u8 {
            let known = |flag: Flag| Some(flags & flag.bit() != 0);
            for condition in Condition::ALL {
                let holds = condition.holds(known).expect("all flags are known");
                assert_eq!(condition.inverted().holds(known), Some(!holds));
                // What is said with flags missing is said with all of them.
                for missing in 0..64u8 {
                    let some = |flag: Flag| known(flag).filter(|_| missing & flag.bit() == 0);
                    assert!(condition.holds(some).is_none_or(|said| said == holds), "{condition:?}");
                }
            }
        }
        assert_eq!(Condition::Less.holds(|flag| Some(flag == Flag::Sign)), Some(true));
        assert_eq!(Condition::Above.holds(|flag| (flag == Flag::Carry).then_some(true)), Some(false));
        assert_eq!(Condition::Above.holds(|flag| (flag == Flag::Carry).then_some(false)), None);
    }
}
