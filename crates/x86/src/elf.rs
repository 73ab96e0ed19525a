//! What ELF files for this instruction set say by numbers of their own (x86-64 psABI, sections 4.1 and 4.4).

/// The machine of a file's header.
pub const MACHINE: u16 = 62;
/// The relocation that adds the load bias.
pub const RELATIVE: u32 = 8;

/// Relocations of object files, as the loader of the Linux kernel carries them out for modules: it adds the
/// addend to the symbol's address, and refuses what does not fit.
pub mod object {
    /// The address, in 64 bits.
    pub const ADDRESS: u32 = 1;
    /// The distance from the field, in 32 bits with sign.
    pub const DISTANCE: u32 = 2;
    /// The address, in 32 bits without sign.
    pub const ADDRESS_32: u32 = 10;
    /// The distance from the field, in 64 bits.
    pub const DISTANCE_64: u32 = 24;
}

/// What the loader does for a dynamic relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RelocationType {
    /// Writes the addend plus the load bias.
    Relative,
    /// Writes a symbol's address plus the addend.
    Symbolic,
    /// Writes the address of a function that is called through the procedure linkage table.
    JumpSlot,
    /// Writes what the function at the addend returns.
    IRelative,
}

/// What relocations of type `number` do; none for others (copies, thread-local storage).
pub fn relocation_type(number: u32) -> Option<RelocationType> {
    /// An address of 64 bits, of a symbol.
    const ABSOLUTE: u32 = 1;
    const GLOB_DAT: u32 = 6;
    const JUMP_SLOT: u32 = 7;
    const IRELATIVE: u32 = 37;
    /// The x32 relative of [`RELATIVE`].
    const RELATIVE64: u32 = 38;
    match number {
        RELATIVE | RELATIVE64 => Some(RelocationType::Relative),
        ABSOLUTE | GLOB_DAT => Some(RelocationType::Symbolic),
        JUMP_SLOT => Some(RelocationType::JumpSlot),
        IRELATIVE => Some(RelocationType::IRelative),
        _ => None,
    }
}

/// Whether dynamic relocations of type `number` have nothing to do with functions: copies of objects,
/// thread-local storage.
pub fn is_of_objects_alone(number: u32) -> bool {
    const COPY: u32 = 5;
    /// The module of a thread-local variable, its distance in the module's block, and from the thread.
    const DTPMOD64: u32 = 16;
    const DTPOFF64: u32 = 17;
    const TPOFF64: u32 = 18;
    /// Both by a function of the loader.
    const TLSDESC: u32 = 36;
    [COPY, DTPMOD64, DTPOFF64, TPOFF64, TLSDESC].contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_psabi() {
        let found: Vec<_> = (0..64).filter_map(|n| Some((n, relocation_type(n)?))).collect();
        use RelocationType::{IRelative, JumpSlot, Relative, Symbolic};
        let known =
            [(1, Symbolic), (6, Symbolic), (7, JumpSlot), (8, Relative), (37, IRelative), (38, Relative)];
        assert_eq!(found, known);
        let of_objects: Vec<u32> = (0..64).filter(|n| is_of_objects_alone(*n)).collect();
        assert_eq!(of_objects, [5, 16, 17, 18, 36]);
    }
}
