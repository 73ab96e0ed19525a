//! What is not code of the kernel: what the module says of itself to the loader and to the control module.
//!
//! The layouts are those of `kernel/module/restitch-kernel.h`.

use crate::arrange::Arrangement;
use crate::error::GroupError;
use crate::facts::{ModuleFacts, Version};
use crate::group::{Group, Heat};
use crate::section::{Form, Kind, Reference, Sections};
use restitch_x86::module_code::hand_over;

/// The control module's name, as the kernel has it.
const CONTROL: &str = "restitch_kernel";
/// `RESTITCH_GROUP_VERSION`.
const VERSION: u32 = 1;
/// `RESTITCH_GROUP_FUNCTIONS`.
const MOST_FUNCTIONS: usize = 4096;
/// `MODULE_NAME_LEN`, with the zero at the end.
const NAME: usize = 56;
/// What the control module exports.
const REGISTER: &str = "restitch_kernel_register";
const UNREGISTER: &str = "restitch_kernel_unregister";
/// What all modules on a kernel with checksums have one of.
const LAYOUT: &str = "module_layout";

/// Writes all of it.
pub(crate) fn write(
    group: &Group,
    facts: &ModuleFacts,
    arrangement: &Arrangement<'_>,
    sections: &mut Sections,
) -> Result<(), GroupError> {
    check_name(group)?;
    let table = functions(group, arrangement, sections)?;
    described(group, table, sections);
    for (section, function) in [(Kind::Init, REGISTER), (Kind::Exit, UNREGISTER)] {
        let section = sections.of(section);
        let over = hand_over(&mut section.data);
        section.resolve(over.address, Reference::Own { section: Kind::Described, offset: 0 });
        section.resolve(over.function, Reference::Import(function.into()));
    }
    structure(group, facts, sections)?;
    info(group, facts, sections);
    anchors(group, sections)?;
    versions(group, facts, sections)
}

fn check_name(group: &Group) -> Result<(), GroupError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if group.name.is_empty() || group.name.len() >= NAME || !group.name.chars().all(is_plain) {
        let what = format!("its name is not of 1 to {} letters, digits and '_'", NAME - 1);
        return Err(GroupError::group(&group.name, what));
    }
    Ok(())
}

/// Bytes of the description, behind which the list of functions begins.
const DESCRIBED: u64 = 80;

/// The list of functions that calls are led from; how many.
fn functions(
    group: &Group,
    arrangement: &Arrangement<'_>,
    sections: &mut Sections,
) -> Result<u32, GroupError> {
    let section = sections.of(Kind::Described);
    section.data.resize(DESCRIBED as usize, 0);
    let mut count = 0;
    for (index, function) in group.functions.iter().enumerate().filter(|(_, f)| f.is_redirected) {
        let is_entry = |chunk: &&crate::arrange::PlacedChunk<'_>| {
            chunk.is_entry && chunk.chunk.function == index && chunk.chunk.heat == Heat::Hot
        };
        let entry = arrangement.chunks.iter().find(is_entry);
        let Some((chunk, called)) = entry.and_then(|chunk| Some((chunk, chunk.called_at()?))) else {
            let what = format!("no hot chunk begins with the entry of {}", function.name);
            return Err(GroupError::group(&group.name, what));
        };
        section.data.extend_from_slice(&function.address.get().to_le_bytes());
        for offset in [chunk.start(), called] {
            section.push(Form::Address, Reference::Own { section: chunk.section(), offset }, 0);
        }
        count += 1;
    }
    if count == 0 || count > MOST_FUNCTIONS {
        let what = format!("calls of {count} functions are to be led to it, not of 1 to {MOST_FUNCTIONS}");
        return Err(GroupError::group(&group.name, what));
    }
    Ok(count as u32)
}

/// `struct restitch_group`.
fn described(group: &Group, count: u32, sections: &mut Sections) {
    const NAME_AT: usize = 8;
    const OWNER_AT: u64 = 64;
    const FUNCTIONS_AT: u64 = 72;
    let section = sections.of(Kind::Described);
    section.data[..4].copy_from_slice(&VERSION.to_le_bytes());
    section.data[4..8].copy_from_slice(&count.to_le_bytes());
    section.data[NAME_AT..NAME_AT + group.name.len()].copy_from_slice(group.name.as_bytes());
    let own = |section, offset| Reference::Own { section, offset };
    let pointers = [(OWNER_AT, own(Kind::Structure, 0)), (FUNCTIONS_AT, own(Kind::Described, DESCRIBED))];
    for (at, to) in pointers {
        section.fields.push(crate::section::Field { at, form: Form::Address, to, plus: 0 });
    }
}

/// `struct module`.
fn structure(group: &Group, facts: &ModuleFacts, sections: &mut Sections) -> Result<(), GroupError> {
    let len = facts.structure_len as usize;
    let name = facts.name_at as usize;
    if [facts.init_at, facts.exit_at].iter().any(|at| at + 8 > facts.structure_len) || name + NAME > len {
        return Err(GroupError::group(&group.name, "the kernel's struct module is too short"));
    }
    let section = sections.of(Kind::Structure);
    section.data.resize(len, 0);
    section.data[name..name + group.name.len()].copy_from_slice(group.name.as_bytes());
    for (at, section_of) in [(facts.init_at, Kind::Init), (facts.exit_at, Kind::Exit)] {
        let to = Reference::Own { section: section_of, offset: 0 };
        section.fields.push(crate::section::Field { at, form: Form::Address, to, plus: 0 });
    }
    Ok(())
}

fn info(group: &Group, facts: &ModuleFacts, sections: &mut Sections) {
    // The copies are code of the kernel, whose licence is theirs.
    let mut lines = vec![
        "license=GPL".to_owned(),
        "description=Copies of kernel code, made by restitch on this machine".to_owned(),
        format!("depends={CONTROL}"),
        format!("name={}", group.name),
        format!("vermagic={}", facts.vermagic),
    ];
    lines.extend(facts.has_retpolines.then(|| "retpoline=Y".to_owned()));
    let data = &mut sections.of(Kind::Info).data;
    for line in lines {
        data.extend_from_slice(line.as_bytes());
        data.push(0);
    }
}

/// Fields that the loader can fill only where each anchor is at its address: it refuses distances below zero
/// as well as above the largest number of 32 bits, so of `symbol - address` and
/// `symbol - address + 0xffff_ffff` one does not fit unless the distance is 0.
fn anchors(group: &Group, sections: &mut Sections) -> Result<(), GroupError> {
    if group.anchors.is_empty() {
        return Err(GroupError::group(&group.name, "nothing binds it to the running kernel"));
    }
    let section = sections.of(Kind::Guard);
    for anchor in &group.anchors {
        for least in [0, i64::from(u32::MAX)] {
            let plus = least.wrapping_sub(anchor.address.get() as i64);
            section.push(Form::Address32, Reference::Import(anchor.symbol.clone()), plus);
        }
    }
    Ok(())
}

fn versions(group: &Group, facts: &ModuleFacts, sections: &mut Sections) -> Result<(), GroupError> {
    if !facts.has_versions() {
        return Ok(());
    }
    let mut symbols = vec![LAYOUT, REGISTER, UNREGISTER];
    symbols.extend(group.anchors.iter().map(|anchor| &*anchor.symbol));
    for symbol in symbols {
        let entry = facts.versions.get(symbol).and_then(|sum| Version::write(symbol, *sum));
        let Some(entry) = entry else {
            let what = format!("the kernel wants a checksum of {symbol}, and no module file has it");
            return Err(GroupError::group(&group.name, what));
        };
        sections.of(Kind::Versions).data.extend_from_slice(&entry);
    }
    Ok(())
}
