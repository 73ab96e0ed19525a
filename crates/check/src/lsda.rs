//! A small reader of language-specific data areas (the tables that C++, Rust and C cleanup personalities
//! share: Itanium C++ ABI, "Exception Handling Tables"; libgcc `unwind-pe.h`, libstdc++ `eh_personality.cc`).

use restitch_address::Svma;
use std::collections::HashMap;

/// What an exception that is thrown at an instruction meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// The function has no table: it is unwound through.
    NoTable,
    /// The table does not mention the instruction: the program is terminated.
    NotCovered,
    /// Where to land, if anywhere, and what is done there.
    Covered(Option<Svma>, Chain),
}

/// Number of a distinct action chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Chain(u32);

/// A type that a handler names: whether through a slot, and the address; `None` catches everything.
type Type = Option<(bool, u64)>;

/// One action, with what it means rather than where it is stored: the filter value (which the landing pad
/// compares) and its types.
type Action = (i64, Vec<Type>);

/// Gives equal chains equal numbers.
#[derive(Default)]
pub(crate) struct Chains {
    ids: HashMap<Vec<Action>, Chain>,
}

impl Chains {
    fn id(&mut self, actions: Vec<Action>) -> Chain {
        let next = Chain(self.ids.len() as u32);
        *self.ids.entry(actions).or_insert(next)
    }
}

struct Site {
    start: Svma,
    len: u64,
    pad: Option<Svma>,
    chain: Chain,
}

/// One table.
pub(crate) struct Lsda {
    sites: Vec<Site>,
}

impl Lsda {
    /// As the personality routines search: the first site that holds the address.
    pub fn handling(&self, at: Svma) -> Handling {
        // Sites are sorted (the reader demands it), so the last that starts at or before is the only
        // candidate.
        let i = self.sites.partition_point(|s| s.start <= at);
        match i.checked_sub(1).map(|i| &self.sites[i]) {
            Some(s) if (at.offset_from(s.start) as u64) < s.len => Handling::Covered(s.pad, s.chain),
            _ => Handling::NotCovered,
        }
    }
}

/// Longest table, action chain or exception specification that is believed.
const MAX_ITEMS: usize = 1 << 20;

struct Reader<'a> {
    bytes: &'a [u8],
    at: Svma,
    pos: usize,
}

type Fallible<T> = Result<T, String>;

impl Reader<'_> {
    fn here(&self) -> Svma {
        self.at + self.pos as u64
    }
    fn take<const N: usize>(&mut self) -> Fallible<[u8; N]> {
        let end = self.pos.checked_add(N).ok_or("cut short")?;
        let bytes = self.bytes.get(self.pos..end).ok_or("cut short")?;
        self.pos = end;
        bytes.try_into().map_err(|_| "cut short".to_owned())
    }
    fn u8(&mut self) -> Fallible<u8> {
        Ok(self.take::<1>()?[0])
    }
    fn leb(&mut self, signed: bool) -> Fallible<u64> {
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                if signed && shift < 64 && byte & 0x40 != 0 {
                    value |= u64::MAX << shift;
                }
                return Ok(value);
            }
            if shift > 140 {
                return Err("a number without end".to_owned());
            }
        }
    }
    fn raw(&mut self, encoding: u8) -> Fallible<u64> {
        Ok(match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => u64::from_le_bytes(self.take()?),
            0x01 => self.leb(false)?,
            0x02 => u16::from_le_bytes(self.take()?).into(),
            0x03 => u32::from_le_bytes(self.take()?).into(),
            0x09 => self.leb(true)?,
            0x0a => i16::from_le_bytes(self.take()?) as u64,
            0x0b => i32::from_le_bytes(self.take()?) as u64,
            _ => return Err(format!("pointer encoding {encoding:#x}")),
        })
    }
    fn pointer(&mut self, encoding: u8) -> Fallible<Option<u64>> {
        let here = self.here().get();
        let raw = self.raw(encoding)?;
        match (raw, encoding & 0x70) {
            (0, _) => Ok(None),
            (raw, 0x00) => Ok(Some(raw)),
            (raw, 0x10) => Ok(Some(here.wrapping_add(raw))),
            _ => Err(format!("pointer encoding {encoding:#x}")),
        }
    }
}

/// Reads the table at `at` of the function that starts at `function`.
pub(crate) fn read<'a>(
    at: Svma,
    function: Svma,
    memory: impl Fn(Svma) -> Option<&'a [u8]>,
    chains: &mut Chains,
) -> Fallible<Lsda> {
    let bytes = memory(at).ok_or("it points outside the module")?;
    let mut r = Reader { bytes, at, pos: 0 };
    let pad_encoding = r.u8()?;
    let pad_base = match pad_encoding {
        0xff => function,
        e => Svma::new(r.pointer(e)?.unwrap_or(0)),
    };
    let type_encoding = r.u8()?;
    let types = match type_encoding {
        0xff => None,
        _ => {
            let offset = r.leb(false)? as usize;
            Some(r.pos.checked_add(offset).filter(|t| *t <= bytes.len()).ok_or("its type table is outside")?)
        }
    };
    let site_encoding = r.u8()?;
    let sites_len = r.leb(false)? as usize;
    let end = r.pos.checked_add(sites_len).filter(|e| *e <= bytes.len()).ok_or("its sites are outside")?;
    let meaning = Meaning { bytes, at, actions: end, types, type_encoding };
    let mut known: HashMap<u64, Chain> = HashMap::new();
    let mut sites: Vec<Site> = Vec::new();
    while r.pos < end {
        let start = function + r.raw(site_encoding)?;
        let len = r.raw(site_encoding)?;
        let pad = r.raw(site_encoding)?;
        let action = r.leb(false)?;
        let chain = match known.get(&action) {
            Some(chain) => *chain,
            None => {
                let chain = chains.id(meaning.chain(action)?);
                known.insert(action, chain);
                chain
            }
        };
        if sites.last().is_some_and(|s: &Site| start.offset_from(s.start) < s.len as i64) {
            return Err("its call sites are not sorted".to_owned());
        }
        if len != 0 {
            sites.push(Site { start, len, pad: (pad != 0).then(|| pad_base + pad), chain });
        }
    }
    Ok(Lsda { sites })
}

/// Where a table's actions and types are.
struct Meaning<'a> {
    bytes: &'a [u8],
    at: Svma,
    actions: usize,
    types: Option<usize>,
    type_encoding: u8,
}

impl Meaning<'_> {
    fn reader(&self, pos: usize) -> Reader<'_> {
        Reader { bytes: self.bytes, at: self.at, pos }
    }

    fn chain(&self, first: u64) -> Fallible<Vec<Action>> {
        let mut out = Vec::new();
        if first == 0 {
            return Ok(out);
        }
        let mut pos = self.actions.checked_add(first as usize - 1).ok_or("an action is outside")?;
        loop {
            let mut r = self.reader(pos);
            let filter = r.leb(true)? as i64;
            let link_at = r.pos;
            let link = r.leb(true)? as i64;
            out.push((filter, self.types_of(filter)?));
            if link == 0 {
                return Ok(out);
            }
            if out.len() > 4096 {
                return Err("an action chain without end".to_owned());
            }
            pos = usize::try_from(link_at as i64 + link).map_err(|_| "an action is outside")?;
        }
    }

    fn types_of(&self, filter: i64) -> Fallible<Vec<Type>> {
        if filter == 0 {
            return Ok(Vec::new());
        }
        let types = self.types.ok_or("a filter without a type table")?;
        if filter > 0 {
            return Ok(vec![self.type_at(types, filter as u64)?]);
        }
        // An exception specification: a zero-terminated list of type numbers behind the table.
        let back = usize::try_from(filter.unsigned_abs() - 1).map_err(|_| "a filter is outside")?;
        let mut r = self.reader(types.checked_add(back).ok_or("a filter is outside")?);
        let mut out = Vec::new();
        loop {
            match r.leb(false)? {
                0 => return Ok(out),
                number => out.push(self.type_at(types, number)?),
            }
            if out.len() > MAX_ITEMS {
                return Err("an exception specification without end".to_owned());
            }
        }
    }

    fn type_at(&self, types: usize, number: u64) -> Fallible<Type> {
        let size = match self.type_encoding & 0x0f {
            0x00 | 0x04 | 0x0c => 8,
            0x03 | 0x0b => 4,
            0x02 | 0x0a => 2,
            other => return Err(format!("type encoding {other:#x}")),
        };
        let back = number.checked_mul(size).and_then(|b| usize::try_from(b).ok());
        let pos = back.and_then(|b| types.checked_sub(b)).ok_or("a type is outside")?;
        let found = self.reader(pos).pointer(self.type_encoding & 0x7f)?;
        Ok(found.map(|at| (self.type_encoding & 0x80 != 0, at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two call sites: one with a pad and a handler, one without; then a gap.
    const TABLE: [u8; 23] = [
        0xff, 0x03, 20, 0x01, 8, 0x10, 4, 0x40, 1, 0x14, 4, 0, 0, 1, 0, // sites, action 1: type 1, last
        0, 0, 0, 0, 0x78, 0x56, 0x34, 0x12,
    ];

    #[test]
    fn a_table_says_what_is_in_it() {
        let function = Svma::new(0x1000);
        let mut chains = Chains::default();
        let lsda = read(Svma::new(0x5000), function, |_| Some(&TABLE[..]), &mut chains).unwrap();
        let handler = chains.id(vec![(1, vec![Some((false, 0x1234_5678))])]);
        let nothing = chains.id(Vec::new());
        for (offset, want) in [
            (0xf, Handling::NotCovered),
            (0x10, Handling::Covered(Some(Svma::new(0x1040)), handler)),
            (0x13, Handling::Covered(Some(Svma::new(0x1040)), handler)),
            (0x14, Handling::Covered(None, nothing)),
            (0x18, Handling::NotCovered),
        ] {
            assert_eq!(lsda.handling(function + offset), want, "{offset:#x}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..64), keep in 0usize..20) {
            let keep = keep.min(bytes.len());
            bytes[..keep].copy_from_slice(&TABLE[..keep]);
            let memory = |_| Some(&bytes[..]);
            if let Ok(lsda) = read(Svma::new(u64::MAX - 20), Svma::new(u64::MAX - 9), memory, &mut Chains::default()) {
                for offset in 0..32 {
                    lsda.handling(Svma::new(u64::MAX - 16) + offset);
                }
            }
        }
    }
}
