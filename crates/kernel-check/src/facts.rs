//! What has to be known of a kernel besides its memory: the form of its modules, and of records.

use crate::elf::{Home, OF_SECTION, Object, Relocation};
use crate::finding::Problem;
use restitch_address::Svma;
use std::collections::BTreeSet;

/// Facts about a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFacts {
    /// What modules of it look like.
    pub module: ModuleForm,
    /// What records of warnings look like.
    pub warning: WarningForm,
    /// Places of the function tracer, by the kernel's own list. None: a `nop` of five bytes that a function
    /// begins with is one.
    pub traces: Option<BTreeSet<Svma>>,
}

/// What modules of a kernel look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleForm {
    /// What a module has to say to be taken.
    pub vermagic: String,
    /// Bytes of `struct module`.
    pub structure_len: u64,
    /// Offsets in it: of the name, and of the pointers to what is called first and last.
    pub name_at: u64,
    /// See [`Self::name_at`].
    pub init_at: u64,
    /// See [`Self::name_at`].
    pub exit_at: u64,
    /// Whether the loader expects calls of `__fentry__` at places of the function tracer, else `nop`s.
    pub traces_are_calls: bool,
    /// Whether modules list their direct calls.
    pub lists_calls: bool,
}

/// The structure of a module, in its file.
pub(crate) const STRUCTURE: &str = ".gnu.linkonce.this_module";

impl ModuleForm {
    /// Reads it from a module file of that kernel, uncompressed, which was built by its own build system.
    ///
    /// # Errors
    /// If it is none, or does not say what is needed.
    pub fn read(file: &[u8]) -> Result<Self, Problem> {
        let object = Object::parse(file)?;
        let lines = info(&object)?;
        let value = |key: &str| lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let lacks = Problem::Description("of the module that is taken as an example is not complete");
        let (Some(vermagic), Some(name)) = (value("vermagic"), value("name")) else { return Err(lacks) };
        let (index, structure) = object.section(STRUCTURE).ok_or(lacks.clone())?;
        let text = [name.as_bytes(), &[0]].concat();
        let name_at = structure.data.windows(text.len()).position(|window| window == text);
        let pointer = |symbol: &str, section: &str| {
            let is_it = |field: &Relocation| {
                object.symbols.get(field.symbol).is_some_and(|own| match own.home {
                    Home::Section(index) if own.kind == OF_SECTION => object.sections[index].name == section,
                    Home::Section(_) => own.name == symbol,
                    _ => false,
                })
            };
            object.relocations(index).find(is_it).map(|field| field.at)
        };
        let (init, exit) = (pointer("init_module", ".init.text"), pointer("cleanup_module", ".exit.text"));
        let (Some(name_at), Some(init_at), Some(exit_at)) = (name_at, init, exit) else { return Err(lacks) };
        Ok(Self {
            vermagic: vermagic.to_owned(),
            structure_len: structure.data.len() as u64,
            name_at: name_at as u64,
            init_at,
            exit_at,
            traces_are_calls: calls_tracer(&object),
            lists_calls: object.section(".call_sites").is_some(),
        })
    }
}

/// Whether places of the tracer are calls. Where the build has made `nop`s of them, relocations that do
/// nothing (of kind 0) are left.
fn calls_tracer(object: &Object<'_>) -> bool {
    let is_tracer =
        |index: usize| object.symbols.get(index).is_some_and(|symbol| symbol.name == "__fentry__");
    let fields = object.relocated().flat_map(|section| object.relocations(section));
    fields.into_iter().any(|field| field.kind != 0 && is_tracer(field.symbol))
}

/// The lines `key=value` of a module.
pub(crate) fn info<'f>(object: &Object<'f>) -> Result<Vec<&'f str>, Problem> {
    let no_text = Problem::Description("is no text");
    let (_, section) = object.section(".modinfo").ok_or(Problem::Description("is missing"))?;
    let data = section.data;
    let text = std::str::from_utf8(data).ok().and_then(|text| text.strip_suffix('\0')).ok_or(no_text)?;
    Ok(text.split('\0').filter(|line| !line.is_empty()).collect())
}

/// What records of warnings (`struct bug_entry`) look like. The first word leads to the trap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarningForm {
    /// Bytes of a record.
    pub len: u32,
    /// Where its flags are, in 2 bytes.
    pub flags_at: u32,
    /// Where other words are that lead from themselves to something: the name of the file, and so on.
    pub pointers: Vec<u32>,
}
