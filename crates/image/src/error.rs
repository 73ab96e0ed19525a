//! Why a file cannot become an [`Image`](crate::Image).

use restitch_address::SvmaRange;
use thiserror::Error;

/// Why a file cannot become an [`Image`](crate::Image). The caller adds the file's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The magic bytes are missing.
    #[error(
        "cannot read the image: it is not an ELF file (the first bytes are not 7f 45 4c 46); \
         give the path of a compiled program or shared library, not of a script"
    )]
    NotElf,
    /// ELFCLASS32, which includes the x32 ABI.
    #[error(
        "cannot read the image: it is a 32-bit ELF file; only 64-bit x86-64 programs are supported, build it with -m64"
    )]
    ThirtyTwoBit,
    /// ELFDATA2MSB.
    #[error(
        "cannot read the image: it is a big-endian ELF file; only little-endian x86-64 programs are supported"
    )]
    BigEndian,
    /// Compiled for another processor.
    #[error(
        "cannot read the image: it is made for ELF machine {machine} ({}); only x86-64 (machine 62) is supported, \
         give a program that runs on this kind of processor", machine_name(*.machine)
    )]
    ForeignMachine {
        /// The file's `e_machine`.
        machine: u16,
    },
    /// ET_REL.
    #[error(
        "cannot read the image: it is a relocatable object file; link it first and give the linked program"
    )]
    Relocatable,
    /// ET_CORE.
    #[error("cannot read the image: it is a core dump; give the program that dumped it")]
    CoreDump,
    /// An `e_type` that is none of the four known ones.
    #[error(
        "cannot read the image: its ELF type {kind:#x} is unknown; give an executable or a shared object"
    )]
    UnknownType {
        /// The file's `e_type`.
        kind: u16,
    },
    /// Bytes that the headers promise are not in the file.
    #[error(
        "cannot read the image: the file is truncated ({what} needs {need} bytes, the file has {have}); \
         copy or install it again"
    )]
    Truncated {
        /// What is cut off.
        what: &'static str,
        /// File length that would hold it, in bytes.
        need: u64,
        /// Actual file length in bytes.
        have: u64,
    },
    /// Nothing says what to load.
    #[error(
        "cannot read the image: it has no program headers that load anything, so it cannot be run; \
         give the program itself, not a separate debug file"
    )]
    NoProgramHeaders,
    /// Two PT_LOAD segments share addresses.
    #[error(
        "cannot read the image: its loadable segments {first} and {second} overlap; \
         the file is corrupt or packed, give the file as the linker wrote it"
    )]
    OverlappingSegments {
        /// The segment that begins first.
        first: SvmaRange,
        /// The one that begins inside it.
        second: SvmaRange,
    },
    /// A header field has an impossible value.
    #[error("cannot read the image: {what}; the file is corrupt, copy or install it again")]
    Malformed {
        /// Which field, and what is wrong with it.
        what: &'static str,
    },
}

/// The usual name of an `e_machine` value, for messages.
fn machine_name(machine: u16) -> &'static str {
    match machine {
        object::elf::EM_386 => "i386",
        object::elf::EM_ARM => "32-bit ARM",
        object::elf::EM_AARCH64 => "AArch64",
        object::elf::EM_PPC64 => "PowerPC64",
        object::elf::EM_S390 => "s390x",
        object::elf::EM_RISCV => "RISC-V",
        object::elf::EM_MIPS => "MIPS",
        object::elf::EM_LOONGARCH => "LoongArch",
        object::elf::EM_BPF => "BPF",
        _ => "another processor",
    }
}
