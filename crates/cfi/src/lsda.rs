//! Reading language-specific data areas (`.gcc_except_table`).
//!
//! The layout is that of GCC's `unwind-c++` personality: `parse_lsda_header` and the call-site, action, type
//! and filter tables as `libsupc++/eh_personality.cc` reads them. C++, Rust, C (`cleanup` attribute), D and
//! Ada share it.

use crate::error::CfiError;
use crate::memory::{Cursor, DW_EH_PE_INDIRECT, DW_EH_PE_OMIT, Memory, fixed_size};
use restitch_address::{Svma, SvmaRange};
use std::collections::HashSet;

const WHAT: &str = ".gcc_except_table";

/// What to do when an exception passes a range of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LsdaCallSite {
    /// The code. A return address minus one is looked up in it. Code that no call site covers must not throw:
    /// the C++ personality calls `std::terminate` there.
    pub range: SvmaRange,
    /// Where to land; `None`: the exception passes.
    pub landing_pad: Option<Svma>,
    /// 0: only clean up. Else 1 + the byte offset of the first record in [`Lsda::actions`].
    pub action: u64,
}

/// An entry of the type table: what a `catch` catches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeInfo {
    /// `address` is that of an 8-byte slot which holds the type information's address at run time.
    pub indirect: bool,
    /// Of the type information, or of the slot.
    pub address: Svma,
}

/// A language-specific data area, all addresses resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lsda {
    /// In the order of the table, which personalities need to be that of the addresses.
    pub call_sites: Vec<LsdaCallSite>,
    /// The action table up to the end of its last record that a call site leads to. Position-independent:
    /// pairs of (type filter, offset of the next record relative to the offset's own field), both signed
    /// LEB128.
    pub actions: Vec<u8>,
    /// The type table; the positive filter `n` of an action means element `n - 1`. `None` catches everything.
    pub types: Vec<Option<TypeInfo>>,
    /// The exception specifications, each a list of unsigned LEB128 type indices that ends with 0. The
    /// negative filter `-n` of an action means the list at byte `n - 1`.
    pub filters: Vec<u8>,
    /// Whether the type table is one of slots (also when it is empty).
    pub indirect_types: bool,
}

impl Lsda {
    /// Reads the LSDA at `at`, which belongs to the FDE that covers `function`.
    ///
    /// # Errors
    /// If it is cut short, uses an encoding that x86-64 compilers do not, or its tables contradict each
    /// other.
    pub fn parse<'m>(memory: &impl Memory<'m>, at: Svma, function: SvmaRange) -> Result<Self, CfiError> {
        let bytes = memory.bytes_from(at).ok_or(CfiError::Unmapped { what: WHAT, at })?;
        let mut c = Cursor::new(WHAT, bytes, at);
        let pad_base = match c.u8()? {
            DW_EH_PE_OMIT => function.start,
            encoding if encoding & DW_EH_PE_INDIRECT != 0 => return Err(c.unsupported(encoding)),
            encoding => c.pointer(encoding)?.unwrap_or(Svma::new(0)),
        };
        let type_encoding = c.u8()?;
        let type_base = match type_encoding {
            DW_EH_PE_OMIT => None,
            _ => {
                let offset = c.uleb()?;
                Some(c.address() + offset)
            }
        };
        let site_encoding = c.u8()?;
        let len = c.uleb()?;
        if len > c.remaining() as u64 {
            return Err(c.malformed("the call-site table is longer than the section"));
        }
        let sites = Cursor::over(WHAT, bytes, at, c.pos()..c.pos() + len as usize)?;
        let call_sites = call_sites(sites, site_encoding, function, pad_base)?;
        c.take(len as usize)?;
        let mut reach = Reach::default();
        for site in &call_sites {
            reach.chain(&c, site.action)?;
        }
        let actions = c.clone().take(reach.actions)?.to_vec();
        let tables = TypeTables { memory, base: type_base, encoding: type_encoding, at };
        let filters = tables.filters(&mut reach)?;
        let types = tables.types(reach.types)?;
        let indirect_types = type_encoding != DW_EH_PE_OMIT && type_encoding & DW_EH_PE_INDIRECT != 0;
        Ok(Self { call_sites, actions, types, filters, indirect_types })
    }

    /// The landing pads, in the order of the call sites; one may come several times.
    pub fn landing_pads(&self) -> impl Iterator<Item = Svma> {
        self.call_sites.iter().filter_map(|site| site.landing_pad)
    }

    /// The call site that covers the instruction at `at`, found as the C++ personality does.
    pub fn call_site_at(&self, at: Svma) -> Option<&LsdaCallSite> {
        let i = self.call_sites.partition_point(|site| site.range.start <= at).checked_sub(1)?;
        Some(&self.call_sites[i]).filter(|site| site.range.contains(at))
    }
}

fn call_sites(
    mut c: Cursor<'_>,
    encoding: u8,
    function: SvmaRange,
    pad_base: Svma,
) -> Result<Vec<LsdaCallSite>, CfiError> {
    if encoding & 0xf0 != 0 {
        return Err(c.unsupported(encoding));
    }
    let mut sites = Vec::new();
    while !c.is_empty() {
        let start = c.encoded(encoding)?;
        let len = c.encoded(encoding)?;
        let pad = c.encoded(encoding)?;
        let action = c.uleb()?;
        let range = SvmaRange::new(function.start + start, len);
        if !function.covers(&range) {
            return Err(c.malformed("a call site lies outside its function"));
        }
        sites.push(LsdaCallSite { range, landing_pad: (pad != 0).then(|| pad_base + pad), action });
    }
    if sites.windows(2).any(|pair| pair[1].range.start < pair[0].range.end) {
        return Err(c.malformed("the call sites overlap or are not sorted"));
    }
    Ok(sites)
}

/// How much of the action, type and filter tables is in use.
#[derive(Default)]
struct Reach {
    /// Bytes of the action table.
    actions: usize,
    /// Entries of the type table.
    types: u64,
    /// Offsets of the exception specifications.
    filters: Vec<u64>,
    seen: HashSet<u64>,
}

impl Reach {
    /// Follows the chain of actions that starts at `action`; `table` stands at the start of the action table.
    fn chain(&mut self, table: &Cursor<'_>, action: u64) -> Result<(), CfiError> {
        let mut next = action.checked_sub(1);
        while let Some(offset) = next.filter(|offset| self.seen.insert(*offset)) {
            let mut c = table.clone();
            c.take(usize::try_from(offset).unwrap_or(usize::MAX))?;
            let filter = c.sleb()?;
            let link_at = (c.pos() - table.pos()) as u64;
            let link = c.sleb()?;
            self.actions = self.actions.max(c.pos() - table.pos());
            if filter > 0 {
                self.types = self.types.max(filter as u64);
            } else if filter < 0 {
                self.filters.push(filter.unsigned_abs() - 1);
            }
            next = match link {
                0 => None,
                _ => match link_at.checked_add_signed(link) {
                    Some(offset) => Some(offset),
                    None => return Err(c.malformed("an action chain leaves the table")),
                },
            };
        }
        Ok(())
    }
}

struct TypeTables<'t, M> {
    memory: &'t M,
    /// The type table ends here and the filter table starts.
    base: Option<Svma>,
    encoding: u8,
    at: Svma,
}

impl<'m, M: Memory<'m>> TypeTables<'_, M> {
    fn malformed(&self, why: &'static str) -> CfiError {
        CfiError::Malformed { what: WHAT, at: self.at, why }
    }

    /// The filter table up to the end of the last list in use. Notes which types the lists name.
    fn filters(&self, reach: &mut Reach) -> Result<Vec<u8>, CfiError> {
        if reach.filters.is_empty() {
            return Ok(Vec::new());
        }
        let base = self.base.ok_or_else(|| self.malformed("an exception specification without a table"))?;
        let bytes = self.memory.bytes_from(base).ok_or(CfiError::Unmapped { what: WHAT, at: base })?;
        let mut end = 0;
        let mut starts = std::mem::take(&mut reach.filters);
        starts.sort_unstable();
        starts.dedup();
        for start in starts {
            let mut c = Cursor::new(WHAT, bytes, base);
            c.take(usize::try_from(start).unwrap_or(usize::MAX))?;
            loop {
                match c.uleb()? {
                    0 => break,
                    index => reach.types = reach.types.max(index),
                }
                // The rest of a list that was followed before.
                if c.pos() < end {
                    break;
                }
            }
            end = end.max(c.pos());
        }
        Ok(bytes[..end].to_vec())
    }

    fn types(&self, count: u64) -> Result<Vec<Option<TypeInfo>>, CfiError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let base = self.base.ok_or_else(|| self.malformed("a type filter without a type table"))?;
        let unsupported = CfiError::UnsupportedEncoding { what: WHAT, at: self.at, encoding: self.encoding };
        let size = fixed_size(self.encoding).ok_or(unsupported)? as u64;
        // The table lies between the header and its base, so its size bounds the count.
        if count > (base.offset_from(self.at).max(0) as u64) / size {
            return Err(self.malformed("a type filter beyond the start of the type table"));
        }
        let first = base - count * size;
        let bytes = self.memory.bytes_from(first).ok_or(CfiError::Unmapped { what: WHAT, at: first })?;
        let mut c = Cursor::new(WHAT, bytes, first);
        let indirect = self.encoding & DW_EH_PE_INDIRECT != 0;
        let mut types = Vec::with_capacity(count as usize);
        for _ in 0..count {
            types.push(c.pointer(self.encoding)?.map(|address| TypeInfo { indirect, address }));
        }
        types.reverse();
        Ok(types)
    }
}
