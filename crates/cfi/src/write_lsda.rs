//! Writing language-specific data areas.

use crate::{
    CfiError, Lsda, LsdaCallSite,
    memory::{DW_EH_PE_INDIRECT, DW_EH_PE_OMIT, PCREL_SDATA4, put_pcrel, put_uleb},
};
use restitch_address::Svma;

const WHAT: &str = ".gcc_except_table";
/// Unsigned LEB128, absolute: the call sites.
const ULEB128: u8 = 0x01;

/// The base that landing pads can be counted from: `base` itself if all pads lie behind it, else one byte below the
/// lowest pad (an offset of 0 means "no pad").
pub fn landing_pad_base(base: Svma, call_sites: &[LsdaCallSite]) -> Svma {
    let lowest = call_sites.iter().filter_map(|site| site.landing_pad).map(|pad| pad.offset_from(base)).min();
    match lowest {
        Some(offset) if offset <= 0 => base.offset(offset).offset(-1),
        _ => base,
    }
}

/// Writes an LSDA for the address `at` that belongs to the run whose FDE starts at `run_start`.
///
/// `call_sites` are in new addresses, sorted, at or behind `run_start`; their actions are those of `original`, whose
/// action, type and filter tables are copied. Landing pads are counted from `lp_base`, or from a lower base where a
/// pad is not behind it; the base is only written down where it is not `run_start` (LLVM's libunwind complains about
/// tables that write it down). Code that no call site covers terminates the program if it throws.
///
/// # Errors
/// If something is more than 2 GiB away, the call sites are not sorted, or an action is not one of the original's.
pub fn write_lsda(
    at: Svma,
    run_start: Svma,
    call_sites: &[LsdaCallSite],
    original: &Lsda,
    lp_base: Svma,
) -> Result<Vec<u8>, CfiError> {
    let base = landing_pad_base(lp_base, call_sites);
    let sites = call_site_table(run_start, call_sites, original, base)?;
    let mut out = Vec::new();
    if base == run_start {
        out.push(DW_EH_PE_OMIT);
    } else {
        out.push(PCREL_SDATA4);
        put_pcrel(WHAT, &mut out, at, base)?;
    }
    // What lies between the offset of the type table's end and that end.
    let mut middle = vec![ULEB128];
    put_uleb(&mut middle, sites.len() as u64);
    middle.extend(sites);
    middle.extend(&original.actions);
    if original.types.is_empty() && original.filters.is_empty() {
        out.push(DW_EH_PE_OMIT);
        out.extend(middle);
        return Ok(out);
    }
    out.push(PCREL_SDATA4 | if original.indirect_types { DW_EH_PE_INDIRECT } else { 0 });
    put_uleb(&mut out, (middle.len() + 4 * original.types.len()) as u64);
    out.extend(middle);
    for entry in original.types.iter().rev() {
        match entry {
            None => out.extend([0; 4]),
            Some(info) if info.indirect == original.indirect_types => {
                put_pcrel(WHAT, &mut out, at, info.address)?;
            }
            Some(_) => {
                let why = "the type table mixes slots and direct pointers";
                return Err(CfiError::Inexpressible { what: WHAT, at: run_start, why });
            }
        }
    }
    out.extend(&original.filters);
    Ok(out)
}

fn call_site_table(
    run_start: Svma,
    call_sites: &[LsdaCallSite],
    original: &Lsda,
    base: Svma,
) -> Result<Vec<u8>, CfiError> {
    let fail = |why| CfiError::Inexpressible { what: WHAT, at: run_start, why };
    let mut out = Vec::new();
    let mut end = 0;
    for site in call_sites {
        let start = site.range.start.offset_from(run_start);
        if start < end {
            return Err(fail("the call sites overlap, are not sorted or start before the run"));
        }
        end = start.saturating_add_unsigned(site.range.len());
        if site.action > original.actions.len() as u64 {
            return Err(fail("a call site's action is not in the action table"));
        }
        put_uleb(&mut out, start as u64);
        put_uleb(&mut out, site.range.len());
        put_uleb(&mut out, site.landing_pad.map_or(0, |pad| pad.offset_from(base) as u64));
        put_uleb(&mut out, site.action);
    }
    Ok(out)
}
