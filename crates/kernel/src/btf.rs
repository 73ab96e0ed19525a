//! `/sys/kernel/btf/vmlinux`: the kernel's types, of which the sizes and fields of a few structures are
//! wanted. So no table of versions is needed.
//!
//! Format: `Documentation/bpf/btf.rst`.

use std::collections::BTreeMap;

const MAGIC: u16 = 0xeb9f;
const TYPE: usize = 12;

/// A structure: its size and where its fields are, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Structure {
    /// Bytes of one.
    pub len: usize,
    /// Fields by name.
    pub fields: BTreeMap<String, usize>,
}

/// The structures of those names; what is no such file has none.
pub fn structures(file: &[u8], names: &[&str]) -> BTreeMap<String, Structure> {
    Types::read(file).map(|types| types.structures(names)).unwrap_or_default()
}

struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Types<'a> {
    fn read(file: &'a [u8]) -> Option<Self> {
        let magic = u16::from_le_bytes(*file.first_chunk()?);
        if magic != MAGIC {
            return None;
        }
        let behind = file.get(word(file, 4)? as usize..)?;
        let part = |offset: u32, len: u32| behind.get(offset as usize..)?.get(..len as usize);
        let types = part(word(file, 8)?, word(file, 12)?)?;
        Some(Self { types, strings: part(word(file, 16)?, word(file, 20)?)? })
    }

    fn structures(&self, names: &[&str]) -> BTreeMap<String, Structure> {
        let mut found = BTreeMap::new();
        let mut rest = self.types;
        while let Some((structure, behind)) = self.next(rest, names) {
            if let Some((name, structure)) = structure {
                found.entry(name).or_insert(structure);
            }
            rest = behind;
        }
        found
    }

    /// The type at the start of `rest`, if it is a structure of one of `names`, and what stands behind it.
    #[allow(clippy::type_complexity, reason = "a pair and what stands behind it")]
    fn next(&self, rest: &'a [u8], names: &[&str]) -> Option<(Option<(String, Structure)>, &'a [u8])> {
        const STRUCTURE: u32 = 4;
        let (info, len) = (word(rest, 4)?, word(rest, 8)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let extra = extra(kind, count)?;
        let (members, behind) = rest.get(TYPE..)?.split_at_checked(extra)?;
        let name = self.name(word(rest, 0)?);
        let wanted = name.filter(|name| kind == STRUCTURE && names.contains(name));
        let fields = |has_bits: bool| {
            let field = |member: &[u8]| {
                let offset = word(member, 8)?;
                let bits = if has_bits { offset & 0xff_ffff } else { offset };
                Some((self.name(word(member, 0)?)?.to_owned(), bits as usize / 8))
            };
            members.chunks_exact(TYPE).filter_map(field).collect()
        };
        let structure = wanted
            .map(|name| (name.into(), Structure { len: len as usize, fields: fields(info >> 31 != 0) }));
        Some((structure, behind))
    }

    fn name(&self, at: u32) -> Option<&'a str> {
        let text = self.strings.get(at as usize..)?;
        std::str::from_utf8(&text[..text.iter().position(|byte| *byte == 0)?]).ok()
    }
}

/// Bytes behind the head of a type of that kind; none for kinds that are not known.
fn extra(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => count * 12,
        // ENUM, FUNC_PROTO
        6 | 13 => count * 8,
        _ => return None,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with an integer and the structure `s { int a; int b; }`.
    fn file() -> Vec<u8> {
        let strings = b"\0int\0s\0a\0b\0";
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let types = words(&[1, 1 << 24, 4, 32, 5, 4 << 24 | 2, 8, 7, 1, 0, 9, 1, 32]);
        let head = words(&[0x1_eb9f, 24, 0, types.len() as u32, types.len() as u32, strings.len() as u32]);
        [head, types, strings.to_vec()].concat()
    }

    #[test]
    fn a_structure_has_its_size_and_fields() {
        let found = structures(&file(), &["s", "t"]);
        let fields = BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 4)]);
        assert_eq!(found, BTreeMap::from([("s".to_owned(), Structure { len: 8, fields })]));
    }

    #[test]
    fn what_is_cut_off_or_foreign_has_no_structures() {
        let file = file();
        for end in 0..file.len() {
            assert!(structures(&file[..end], &["s"]).len() <= 1);
        }
        assert!(structures(b"\x7fELF", &["s"]).is_empty());
    }
}
