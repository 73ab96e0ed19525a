//! Sections of a module while they are made: bytes, and what the loader has to fill in.

use restitch_address::Svma;
use restitch_x86::elf::object as relocation;
use restitch_x86::module_code::Unresolved;

/// The sections, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Hot,
    Cold,
    Exit,
    Init,
    Info,
    Guard,
    Versions,
    Described,
    Traces,
    Returns,
    Thunks,
    Calls,
    UnwindRows,
    UnwindPlaces,
    Exceptions,
    Warnings,
    Keys,
    StaticCalls,
    Counted,
    SharedCounters,
    OwnCounters,
    Structure,
}

/// What a section is to the loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Code,
    ReadOnly,
    Writable,
}

impl Kind {
    pub(crate) const ALL: [Self; 22] = [
        Self::Hot,
        Self::Cold,
        Self::Exit,
        Self::Init,
        Self::Info,
        Self::Guard,
        Self::Versions,
        Self::Described,
        Self::Traces,
        Self::Returns,
        Self::Thunks,
        Self::Calls,
        Self::UnwindRows,
        Self::UnwindPlaces,
        Self::Exceptions,
        Self::Warnings,
        Self::Keys,
        Self::StaticCalls,
        Self::Counted,
        Self::SharedCounters,
        Self::OwnCounters,
        Self::Structure,
    ];

    /// Its name, which the loader knows most of them by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => ".text",
            Self::Cold => ".text.unlikely",
            Self::Exit => ".exit.text",
            Self::Init => ".init.text",
            Self::Info => ".modinfo",
            Self::Guard => ".restitch.anchors",
            Self::Versions => "__versions",
            Self::Described => ".rodata",
            Self::Traces => "__mcount_loc",
            Self::Returns => ".return_sites",
            Self::Thunks => ".retpoline_sites",
            Self::Calls => ".call_sites",
            Self::UnwindRows => ".orc_unwind",
            Self::UnwindPlaces => ".orc_unwind_ip",
            Self::Exceptions => "__ex_table",
            Self::Warnings => "__bug_table",
            Self::Keys => "__jump_table",
            Self::StaticCalls => ".static_call_sites",
            Self::Counted => ".restitch.counters",
            Self::SharedCounters => ".data",
            Self::OwnCounters => ".data..percpu",
            Self::Structure => ".gnu.linkonce.this_module",
        }
    }

    /// What it is. Tables that the kernel writes to are so in modules, too.
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Hot | Self::Cold | Self::Exit | Self::Init => Access::Code,
            Self::Warnings | Self::Keys | Self::StaticCalls | Self::Structure => Access::Writable,
            Self::SharedCounters | Self::OwnCounters => Access::Writable,
            _ => Access::ReadOnly,
        }
    }

    /// Its alignment in bytes, but for the structure, whose is the kernel's.
    pub(crate) fn align(self) -> u64 {
        match self {
            Self::Hot | Self::Cold | Self::SharedCounters | Self::OwnCounters => 64,
            Self::Exit | Self::Init => 16,
            Self::Versions => 32,
            Self::Info => 1,
            Self::UnwindRows => 2,
            Self::Exceptions | Self::Returns | Self::Thunks | Self::Calls | Self::UnwindPlaces => 4,
            _ => 8,
        }
    }
}

/// What a field leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A place of the kernel.
    Kernel(Svma),
    /// A place of the module.
    Own { section: Kind, offset: u64 },
    /// An exported symbol.
    Import(String),
}

/// How a field says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The address, in 8 bytes.
    Address,
    /// The distance from the field, in 4 bytes.
    Distance,
    /// The distance from the field, in 8 bytes.
    Distance64,
    /// The address, in 4 bytes without sign.
    Address32,
}

impl Form {
    /// Bytes of the field.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Address | Self::Distance64 => 8,
            Self::Distance | Self::Address32 => 4,
        }
    }

    /// The loader's number for it.
    pub(crate) fn relocation(self) -> u32 {
        match self {
            Self::Address => relocation::ADDRESS,
            Self::Distance => relocation::DISTANCE,
            Self::Distance64 => relocation::DISTANCE_64,
            Self::Address32 => relocation::ADDRESS_32,
        }
    }
}

/// A field that the loader fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) at: u64,
    pub(crate) form: Form,
    pub(crate) to: Reference,
    /// Is added.
    pub(crate) plus: i64,
}

/// A section.
#[derive(Debug, Clone, Default)]
pub(crate) struct Section {
    pub(crate) data: Vec<u8>,
    pub(crate) fields: Vec<Field>,
}

impl Section {
    /// The length so far.
    pub(crate) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Adds a field.
    pub(crate) fn push(&mut self, form: Form, to: Reference, plus: i64) {
        let at = self.len();
        self.data.resize(self.data.len() + form.len(), 0);
        self.fields.push(Field { at, form, to, plus });
    }

    /// Has the displacement of a branch lead there.
    pub(crate) fn resolve(&mut self, branch: Unresolved, to: Reference) {
        let plus = i64::from(branch.field) - i64::from(branch.end);
        self.fields.push(Field { at: branch.field.into(), form: Form::Distance, to, plus });
    }

    /// Fills up to a multiple of `align` bytes.
    pub(crate) fn fill(&mut self, align: usize, with: u8) {
        self.data.resize(self.data.len().next_multiple_of(align), with);
    }
}

/// All sections.
#[derive(Debug, Clone)]
pub(crate) struct Sections {
    sections: Vec<Section>,
}

impl Sections {
    pub(crate) fn new() -> Self {
        Self { sections: vec![Section::default(); Kind::ALL.len()] }
    }
    pub(crate) fn get(&self, kind: Kind) -> &Section {
        &self.sections[kind as usize]
    }
    pub(crate) fn of(&mut self, kind: Kind) -> &mut Section {
        &mut self.sections[kind as usize]
    }
}
