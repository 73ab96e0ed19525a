//! What a module says of itself: to the loader, and to the control module
//! (`kernel/module/restitch-kernel.h`). And all that it runs besides copies: handing that over.

use crate::copies::Copies;
use crate::elf::{Home, Object};
use crate::facts::{KernelFacts, STRUCTURE, info};
use crate::finding::Problem;
use crate::insn::{DROP_RETURN_ADDRESS, Does, Insn};
use crate::kernel::{Kernel, long, word};
use crate::load::{Loaded, Part, REGISTER, UNREGISTER};
use crate::sections::{ADDRESS_32, ANCHORS, DESCRIBED, EXIT, INIT, VERSIONS};
use restitch_address::Svma;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of names (`MODULE_NAME_LEN`), with the zero at the end.
const NAME: usize = 56;
/// `struct restitch_group`: offsets, and bytes in all.
const NAME_AT: usize = 8;
const OWNER_AT: usize = 64;
const FUNCTIONS_AT: usize = 72;
const GROUP: usize = 80;
/// Bytes of `struct restitch_group_function`, and the most of them.
const FUNCTION: usize = 24;
const MOST_FUNCTIONS: usize = 4096;

/// A function whose calls are led to its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) original: Svma,
    pub(crate) copy: Svma,
    /// Code that drops a return address and runs on into the copy.
    pub(crate) called: Svma,
}

fn wrong<T>(what: &'static str) -> Result<T, Problem> {
    Err(Problem::Description(what))
}

/// What a module says of itself.
pub(crate) struct Described {
    /// The group's name.
    pub(crate) name: String,
    /// The functions that calls are led from.
    pub(crate) redirects: Vec<Redirect>,
}

/// Reads it, and checks all of it that can be without looking at copies.
pub(crate) fn described(
    object: &Object<'_>,
    copies: &Copies<'_>,
    kernel: &dyn Kernel,
    facts: &KernelFacts,
    asked: &BTreeSet<Svma>,
) -> Result<Described, Problem> {
    let module = copies.module;
    let described = read(module)?;
    check_redirects(&described.redirects, asked, copies, kernel)?;
    check_info(object, facts, &described.name)?;
    check_structure(module, facts, &described.name)?;
    check_runs(module)?;
    check_versions(object)?;
    Ok(described)
}

fn read(module: &Loaded<'_>) -> Result<Described, Problem> {
    const VERSION: u32 = 1;
    let Some(part) = module.part(DESCRIBED) else { return wrong("is missing") };
    let data = &part.data[..];
    let (Some(version), Some(count)) = (word(data, 0), word(data, 4)) else { return wrong("is cut") };
    let count = count as usize;
    if version != VERSION || !(1..=MOST_FUNCTIONS).contains(&count) {
        return wrong("is of another version, or of no functions or too many");
    }
    if data.len() != GROUP + count * FUNCTION {
        return wrong("is not as long as its list of functions");
    }
    let address = |at| long(data, at).map(Svma::new);
    let structure = module.part(STRUCTURE).map(|part| part.at);
    if address(OWNER_AT) != structure || address(FUNCTIONS_AT) != Some(part.at + GROUP as u64) {
        return wrong("does not point to its module and its list");
    }
    let name = name(&data[NAME_AT..NAME_AT + NAME])?;
    let entries = data[GROUP..].chunks_exact(FUNCTION).filter_map(|entry| {
        let [original, copy, called] = [0, 8, 16].map(|at| long(entry, at).map(Svma::new));
        Some(Redirect { original: original?, copy: copy?, called: called? })
    });
    Ok(Described { name, redirects: entries.collect() })
}

/// A name: plain characters, then zeros.
fn name(bytes: &[u8]) -> Result<String, Problem> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (name, rest) = bytes.split_at(len);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if name.is_empty() || rest.is_empty() || !name.iter().all(is_plain) || rest.iter().any(|byte| *byte != 0)
    {
        return wrong("has no plain name");
    }
    Ok(name.iter().map(|byte| char::from(*byte)).collect())
}

/// The functions are those that were asked for; the ways into their copies are as they should be.
fn check_redirects(
    redirects: &[Redirect],
    asked: &BTreeSet<Svma>,
    copies: &Copies<'_>,
    kernel: &dyn Kernel,
) -> Result<(), Problem> {
    let described: BTreeSet<Svma> = redirects.iter().map(|redirect| redirect.original).collect();
    if described.len() != redirects.len() || described != *asked {
        return wrong("leads calls of other functions to copies than was asked for");
    }
    let ways: BTreeSet<Svma> = redirects.iter().map(|redirect| redirect.copy).collect();
    if ways.len() != redirects.len() {
        return wrong("leads two functions to one copy");
    }
    for redirect in redirects {
        if kernel.symbols().names(redirect.original).is_empty() {
            return wrong("has a function that is not at a symbol");
        }
        check_called(redirect, copies)?;
    }
    Ok(())
}

fn check_called(redirect: &Redirect, copies: &Copies<'_>) -> Result<(), Problem> {
    let Redirect { copy, called, .. } = *redirect;
    if !(copy.get() | called.get()).is_multiple_of(2) {
        return wrong("has an entry at an odd address");
    }
    let Some(part) = copies.part(called).filter(|_| copies.part(copy).is_some()) else {
        return wrong("has an entry that is not in its code");
    };
    let bytes = &part.data[called.offset_from(part.at) as usize..];
    if !bytes.starts_with(&DROP_RETURN_ADDRESS) || called + DROP_RETURN_ADDRESS.len() as u64 != copy {
        return wrong("has an entry for calls that does not drop a return address in front of the copy");
    }
    // The row of the entry, with one more return address on the stack.
    const RETURN_ADDRESS: i16 = 8;
    let rows = &copies.tables.rows;
    let Some(mut row) = rows.at(copy) else { return wrong("has an entry without a row of the unwinder") };
    let distance = i16::from_le_bytes([row[0], row[1]]).wrapping_add(RETURN_ADDRESS);
    row[..2].copy_from_slice(&distance.to_le_bytes());
    match (0..DROP_RETURN_ADDRESS.len() as u64).all(|offset| rows.at(called + offset) == Some(row)) {
        true => Ok(()),
        false => wrong("has an entry for calls with another row of the unwinder"),
    }
}

/// `.modinfo`: a closed list of what is said, since some of it has the loader do more (live patches).
fn check_info(object: &Object<'_>, facts: &KernelFacts, name: &str) -> Result<(), Problem> {
    let lines = info(object)?;
    let keys: BTreeSet<&str> = lines.iter().filter_map(|line| line.split('=').next()).collect();
    if keys.len() != lines.len() {
        return wrong("says something twice");
    }
    for line in lines {
        let is_known = match line.split_once('=') {
            Some(("license", value)) => value == "GPL",
            Some(("depends", value)) => value == "restitch_kernel",
            Some(("name", value)) => value == name,
            Some(("vermagic", value)) => value == facts.module.vermagic,
            Some(("retpoline", value)) => value == "Y",
            Some(("description", _)) => true,
            _ => false,
        };
        if !is_known {
            return wrong("says what a group does not");
        }
    }
    match ["license", "depends", "name", "vermagic"].iter().all(|key| keys.contains(key)) {
        true => Ok(()),
        false => wrong("does not say all that a group does"),
    }
}

/// `struct module`: a name, and what is called first and last; nothing else.
fn check_structure(module: &Loaded<'_>, facts: &KernelFacts, own: &str) -> Result<(), Problem> {
    let form = &facts.module;
    let Some(part) = module.part(STRUCTURE) else { return wrong("has no structure") };
    if part.data.len() as u64 != form.structure_len {
        return wrong("has a structure of another length");
    }
    let mut data = part.data.clone();
    let mut take = |at: u64, len: usize| {
        let at = usize::try_from(at).ok()?;
        let bytes = data.get_mut(at..at.checked_add(len)?)?;
        let taken = bytes.to_vec();
        bytes.fill(0);
        Some(taken)
    };
    let pointers = [(form.init_at, INIT), (form.exit_at, EXIT)];
    let is_right = pointers.iter().all(|(at, section)| {
        let to = take(*at, 8).and_then(|bytes| long(&bytes, 0)).map(Svma::new);
        to.is_some() && to == module.part(section).map(|part| part.at)
    });
    let own_name = take(form.name_at, NAME).map(|bytes| name(&bytes)).transpose()?;
    if !is_right || own_name.as_deref() != Some(own) || data.iter().any(|byte| *byte != 0) {
        return wrong("has a structure that says more, or something else");
    }
    Ok(())
}

/// The module runs, first and last: `endbr64; lea DESCRIPTION(%rip),%rdi; jmp FUNCTION`.
fn check_runs(module: &Loaded<'_>) -> Result<(), Problem> {
    let described = module.part(DESCRIBED).map(|part| part.at);
    for (section, function) in [(INIT, module.register()), (EXIT, module.unregister())] {
        let Some(part) = module.part(section) else { return wrong("has nothing that registers it") };
        if handed_over(part) != described.map(|described| Handed { described, function }) {
            return wrong("has the loader run something else than what registers it");
        }
    }
    Ok(())
}

/// What is handed over to which function.
#[derive(Debug, PartialEq, Eq)]
struct Handed {
    described: Svma,
    function: Svma,
}

fn handed_over(part: &Part<'_>) -> Option<Handed> {
    /// `lea 0(%rip),%rdi`.
    const LOAD: [u8; 7] = [0x48, 0x8d, 0x3d, 0, 0, 0, 0];
    let insn = |at: u64| Insn::decode(part.data.get(at as usize..)?, part.at + at);
    let mark = insn(0).filter(|insn| insn.does == Does::Marks)?;
    let load =
        insn(mark.len).filter(|insn| insn.form[..LOAD.len()] == LOAD && insn.len == LOAD.len() as u64)?;
    let jump = insn(mark.len + load.len)?;
    let Does::Jump(function) = jump.does else { return None };
    (jump.end() == part.end()).then_some(Handed { described: load.names?, function })
}

/// Where the exported symbols are that bind the module to the kernel.
pub(crate) fn anchors<'f>(
    object: &Object<'f>,
    kernel: &dyn Kernel,
) -> Result<BTreeMap<&'f str, Svma>, Problem> {
    let imports = object.symbols.iter().skip(1).filter(|symbol| symbol.home == Home::Undefined);
    let mut anchors = BTreeMap::new();
    for symbol in imports.filter(|symbol| ![REGISTER, UNREGISTER].contains(&symbol.name)) {
        let address = kernel.symbols().address(symbol.name);
        let address = address.ok_or(Problem::Anchor("a symbol that it names is not there, or twice"))?;
        anchors.insert(symbol.name, address);
    }
    Ok(anchors)
}

/// The loader takes the module only where each anchor is where it is now: two fields of 4 bytes without sign,
/// of which one does not fit anywhere else.
pub(crate) fn check_anchors(object: &Object<'_>, anchors: &BTreeMap<&str, Svma>) -> Result<(), Problem> {
    /// Bytes of a field.
    const FIELD: u64 = 4;
    let Some((index, section)) = object.section(ANCHORS) else {
        return Err(Problem::Anchor("it has no section that does so"));
    };
    let mut bound: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut places = Vec::new();
    for field in object.relocations(index).filter(|field| field.kind == ADDRESS_32) {
        let Some(symbol) = object.symbols.get(field.symbol) else { continue };
        places.push(field.at);
        bound.entry(symbol.name).or_default().insert(field.plus);
    }
    let binds = |name: &&str| {
        let Some(address) = anchors.get(*name) else { return false };
        let least = address.get().wrapping_neg();
        bound[*name] == BTreeSet::from([least, least.wrapping_add(u32::MAX.into())])
    };
    places.sort_unstable();
    let fields = places.len();
    let is_bound = !bound.is_empty() && bound.len() == anchors.len() && bound.keys().all(binds);
    let is_apart = places.into_iter().eq((0..fields as u64).map(|field| field * FIELD));
    match is_bound
        && is_apart
        && fields == 2 * anchors.len()
        && section.data.len() as u64 == FIELD * fields as u64
    {
        true => Ok(()),
        false => Err(Problem::Anchor("its fields fit elsewhere, too")),
    }
}

/// `__versions`: the loader compares the checksums with its own; here only whose they are is looked at.
fn check_versions(object: &Object<'_>) -> Result<(), Problem> {
    /// Bytes of an entry, and of the checksum in it.
    const VERSION: usize = 64;
    const SUM: usize = 8;
    let Some((_, section)) = object.section(VERSIONS) else { return Ok(()) };
    let is_known = |name: &[u8]| {
        let is_it = |own: &&str| own.as_bytes() == name;
        let imports = object.symbols.iter().filter(|symbol| symbol.home == Home::Undefined);
        is_it(&"module_layout") || imports.map(|symbol| symbol.name).any(|own| is_it(&own))
    };
    let entries = section.data.chunks(VERSION);
    let is_right = entries.map(|entry| entry.get(SUM..)).all(|text| {
        let Some(text) = text else { return false };
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        len > 0 && is_known(&text[..len]) && text[len..].iter().all(|byte| *byte == 0)
    });
    match is_right && section.data.len().is_multiple_of(VERSION) {
        true => Ok(()),
        false => wrong("has checksums of what it does not use"),
    }
}
