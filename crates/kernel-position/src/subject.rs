//! A kernel and what its modules look like: what a module is made of, and what it is proved against.

use crate::error::PositionError;
use restitch_address::Svma;
use restitch_kernel::Kernel;
use restitch_kernel_check::{self as check, KernelFacts, ModuleForm, WarningForm};
use restitch_kernel_group::{Anchor, KernelPlaces, ModuleFacts, ThunkRegister};

/// A module file, uncompressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFile {
    /// Its name, for messages.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A kernel, and facts about its modules.
#[derive(Debug)]
pub struct Subject<'k> {
    pub(crate) kernel: &'k Kernel,
    pub(crate) modules: ModuleFacts,
    pub(crate) places: KernelPlaces,
    pub(crate) anchors: Vec<Anchor>,
    pub(crate) facts: KernelFacts,
    symbols: check::Symbols,
}

/// The most module files that are looked at for an example.
const EXAMPLES: usize = 64;
/// What a module is bound by: so many exported symbols.
const ANCHORS: usize = 2;

impl<'k> Subject<'k> {
    /// Of a kernel, and the first module file that says what modules of it look like: not all do. The control
    /// module's has the checksums of its own symbols, where the kernel compares them.
    ///
    /// # Errors
    /// If none does, or nothing binds modules to the kernel.
    pub fn learn(
        kernel: &'k Kernel,
        examples: impl Iterator<Item = ModuleFile>,
        control: Option<&ModuleFile>,
    ) -> Result<Self, PositionError> {
        let mut last = PositionError::NoExample;
        for example in examples.take(EXAMPLES) {
            match Self::new(kernel, &example, control) {
                Ok(subject) => return Ok(subject),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn new(
        kernel: &'k Kernel,
        example: &ModuleFile,
        control: Option<&ModuleFile>,
    ) -> Result<Self, PositionError> {
        let mut modules = ModuleFacts::read(&example.name, &example.bytes)?;
        if let Some(control) = control {
            modules = modules.with_versions_of(&ModuleFacts::read(&control.name, &control.bytes)?);
        }
        let form = ModuleForm::read(&example.bytes)
            .map_err(|source| PositionError::Example { file: example.name.clone(), source })?;
        Self::of(kernel, modules, form)
    }

    /// Of a kernel, and facts about modules as writer and checker want them.
    ///
    /// # Errors
    /// If nothing binds modules to the kernel.
    pub fn of(kernel: &'k Kernel, modules: ModuleFacts, form: ModuleForm) -> Result<Self, PositionError> {
        let named = kernel.symbols.all().iter();
        let symbols: check::Symbols = named.map(|symbol| (symbol.address, symbol.name.clone())).collect();
        let tables = &kernel.known.tables;
        let traced = &kernel.known.traced;
        let facts = KernelFacts {
            module: form,
            warning: WarningForm {
                len: tables.bug_len as u32,
                flags_at: tables.bug_flags_at,
                pointers: tables.bug_pointers.clone(),
            },
            traces: (!traced.is_empty()).then(|| traced.iter().copied().collect()),
        };
        let places = places(kernel, &symbols);
        let anchors = anchors(kernel, &symbols, &modules)?;
        Ok(Self { kernel, modules, places, anchors, facts, symbols })
    }
}

impl check::Kernel for Subject<'_> {
    fn read(&self, at: Svma, into: &mut [u8]) -> bool {
        let bytes = self.kernel.known.memory.at(at).and_then(|bytes| bytes.get(..into.len()));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
    fn symbols(&self) -> &check::Symbols {
        &self.symbols
    }
}

fn places(kernel: &Kernel, symbols: &check::Symbols) -> KernelPlaces {
    let thunk = |register: ThunkRegister| {
        Some((register, symbols.address(&format!("__x86_indirect_thunk_{}", register.name()))?))
    };
    KernelPlaces {
        trace: kernel.known.places.trace_entry,
        return_thunk: symbols.address("__x86_return_thunk"),
        thunks: ThunkRegister::all().filter_map(thunk).collect(),
    }
}

/// Exported symbols of one place, which modules that there are use where the kernel compares checksums.
fn anchors(
    kernel: &Kernel,
    symbols: &check::Symbols,
    modules: &ModuleFacts,
) -> Result<Vec<Anchor>, PositionError> {
    /// Of most kernels, and of functions, which stand elsewhere after each boot.
    const FIRST: [&str; 3] = ["_printk", "stop_machine", "printk"];
    let exported = kernel.symbols.all().iter().filter_map(|symbol| symbol.name.strip_prefix("__ksymtab_"));
    let is_exported = |name: &str| symbols.address(&format!("__ksymtab_{name}")).is_some();
    let first = FIRST.into_iter().filter(|name| is_exported(name));
    let anchor = |symbol: &str| {
        let has_sum = !modules.has_versions() || modules.versions.contains_key(symbol);
        let address = symbols.address(symbol).filter(|_| has_sum)?;
        Some(Anchor { symbol: symbol.into(), address })
    };
    let others = exported.filter(|name| !FIRST.contains(name));
    let anchors: Vec<Anchor> = first.chain(others).filter_map(anchor).take(ANCHORS).collect();
    match (anchors.is_empty(), modules.has_versions()) {
        (false, _) => Ok(anchors),
        (true, false) => Err(PositionError::NoAnchor("there is one")),
        (true, true) => Err(PositionError::NoAnchor("a module file has the checksum")),
    }
}
