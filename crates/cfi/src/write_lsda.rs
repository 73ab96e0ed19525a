//! Writing language-specific data areas.

use crate::error::CfiError;
use crate::lsda::{Lsda, LsdaCallSite};
use crate::memory::{DW_EH_PE_INDIRECT, DW_EH_PE_OMIT, PCREL_SDATA4, put_pcrel, put_sleb, put_uleb};
use restitch_address::Svma;

const WHAT: &str = ".gcc_except_table";
/// LEB128, absolute: what call sites are written in.
const ULEB128: u8 = 0x01;
const SLEB128: u8 = 0x09;

/// Writes an LSDA for the address `at` that belongs to the run whose FDE starts at `run_start`.
///
/// `call_sites` are in new addresses, sorted, at or behind `run_start`; their actions are those of
/// `original`, whose action, type and filter tables are copied. Landing pads are counted from `run_start`;
/// where one lies below it, by signed numbers. Only a run that begins with one of its own landing pads writes
/// another base down, as an offset of 0 means "no pad": LLVM's libunwind complains on standard error about
/// every table that has a base, whenever an exception passes. Code that no call site covers terminates the
/// program if it throws.
///
/// # Errors
/// If something is more than 2 GiB away, the call sites are not sorted, or an action is not one of the
/// original's.
pub fn write_lsda(
    at: Svma,
    run_start: Svma,
    call_sites: &[LsdaCallSite],
    original: &Lsda,
) -> Result<Vec<u8>, CfiError> {
    let pads = || call_sites.iter().filter_map(|site| site.landing_pad);
    let base = if pads().any(|pad| pad == run_start) { run_start.offset(-1) } else { run_start };
    let encoding = if pads().any(|pad| pad < base) { SLEB128 } else { ULEB128 };
    let sites = call_site_table(run_start, call_sites, original, base, encoding)?;
    let mut out = Vec::new();
    if base == run_start {
        out.push(DW_EH_PE_OMIT);
    } else {
        out.push(PCREL_SDATA4);
        put_pcrel(WHAT, &mut out, at, base)?;
    }
    // What lies between the offset of the type table's end and that end.
    let mut middle = vec![encoding];
    // D's run time (`scanLSDA` in druntime's rt/dwarfeh.d) reads the length in the call sites' encoding; a
    // positive signed number is the same one to all others.
    match encoding {
        SLEB128 => put_sleb(&mut middle, sites.len() as i64),
        _ => put_uleb(&mut middle, sites.len() as u64),
    }
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
    encoding: u8,
) -> Result<Vec<u8>, CfiError> {
    let put = |out: &mut Vec<u8>, value: i64| match encoding {
        SLEB128 => put_sleb(out, value),
        _ => put_uleb(out, value as u64),
    };
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
        put(&mut out, start);
        put(&mut out, site.range.len() as i64);
        put(&mut out, site.landing_pad.map_or(0, |pad| pad.offset_from(base)));
        put_uleb(&mut out, site.action);
    }
    Ok(out)
}
