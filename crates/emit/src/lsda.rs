//! Exception tables for the version.
//!
//! A call that had a call site has one, a call that had none (it must not throw) has none. Inserted code and
//! branches do not throw: they are covered where that joins two call sites into one.
//!
//! Landing pads are always those of the original code, also where they have a copy (a redirect leads on to
//! it): personality routines keep the pad that they have found in the exception object, on the heap, where a
//! freed one may lie for as long as the process lives; a version could never be known to be out of use.

use crate::direct::STUB_CALL;
use crate::error::EmitError;
use crate::plan::{Op, Plan};
use crate::request::Request;
use crate::stretch::{Stretch, Stretches};
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{Lsda, LsdaCallSite, write_lsda};

/// The LSDA of a stretch, for the address `at`.
pub(crate) fn write(
    request: &Request<'_>,
    plan: &Plan,
    stretches: &Stretches,
    stretch: &Stretch,
    lsda: &Lsda,
    at: Svma,
) -> Result<Vec<u8>, EmitError> {
    let mut sites = Sites { lsda, out: Vec::new(), gap: true };
    for &number in &stretches.order[stretch.slots.clone()] {
        let slot = &plan.slots[number as usize];
        let block = request.program.block(slot.block);
        for (offset, op) in plan.walk(number as usize) {
            let (from, len, len_now) = match *op {
                Op::Copy { from, len, .. } => (from, len, len),
                Op::Load { from, old, new, .. }
                | Op::Guarded { from, old, new, .. }
                | Op::Ballot { from, old, new, .. } => (from, old.into(), new.into()),
                Op::BySlot { from, .. } => (from, STUB_CALL, op.len()),
                Op::Vote { .. }
                | Op::Count { .. }
                | Op::Prefetch { .. }
                | Op::Branch { .. }
                | Op::Short { .. } => continue,
            };
            sites.copied(plan.at(offset), block.start + u64::from(from), len, len_now);
        }
    }
    let start = plan.at(stretch.start);
    let bare =
        Lsda { call_sites: Vec::new(), actions: Vec::new(), types: Vec::new(), filters: Vec::new(), ..*lsda };
    // Without actions nobody looks at the type table.
    let original = if sites.out.iter().all(|site| site.action == 0) { &bare } else { lsda };
    Ok(write_lsda(at, start, &sites.out, original)?)
}

struct Sites<'r> {
    lsda: &'r Lsda,
    out: Vec<LsdaCallSite>,
    /// Code without a call site stands behind the last one in `out`.
    gap: bool,
}

impl Sites<'_> {
    /// `len` original bytes from `original` on are now `len_now` bytes at `version`.
    fn copied(&mut self, version: Svma, original: Svma, len: u32, len_now: u32) {
        let end = original + u64::from(len);
        let first = self.lsda.call_sites.partition_point(|site| site.range.end <= original);
        let mut done = original;
        for site in self.lsda.call_sites[first..].iter().take_while(|site| site.range.start < end) {
            let part = SvmaRange::between(site.range.start.max(original), site.range.end.min(end));
            if part.is_empty() {
                continue;
            }
            self.gap |= part.start != done;
            let from = version + part.start.offset_from(original) as u64;
            let to = match part.end == end {
                true => version + u64::from(len_now),
                false => version + part.end.offset_from(original) as u64,
            };
            self.push(SvmaRange::between(from, to), site);
            done = part.end;
        }
        self.gap |= done != end;
    }

    fn push(&mut self, range: SvmaRange, site: &LsdaCallSite) {
        let same = |last: &LsdaCallSite| (last.landing_pad, last.action) == (site.landing_pad, site.action);
        match self.out.last_mut() {
            Some(last) if !self.gap && same(last) => last.range.end = range.end,
            _ => self.out.push(LsdaCallSite { range, ..*site }),
        }
        self.gap = false;
    }
}
