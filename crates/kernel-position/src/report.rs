//! A group as a report: what Figures 2 and 3 of Tamches and Miller show.

use crate::indirect::{IndirectCallee, Through};
use crate::position::{Copied, Moved, NamedCall, Positioned};
use restitch_report::{
    BeforeAndAfter, CacheShape, GROUP_SCHEMA_VERSION, GroupCall, GroupCallGoes, GroupFunction, GroupReport,
    GroupStays, Occupancy,
};

impl Positioned {
    /// As a report. The hot code of the module is at `hot_code`, or begins a page (0): which sets of a cache
    /// it falls into depends on the place in the page alone.
    pub fn report(&self, hot_code: u64) -> GroupReport {
        GroupReport {
            schema_version: GROUP_SCHEMA_VERSION,
            restitch_version: env!("CARGO_PKG_VERSION").into(),
            name: self.module.report().group.clone(),
            led_by: None,
            functions: self.functions.iter().map(function).collect(),
            indirect_calls: self.indirect.iter().map(call).collect(),
            stays: self.stays.iter().map(stays).collect(),
            cache: self.is_counted.then(|| self.cache(hot_code)),
            notes: Vec::new(),
        }
    }

    fn cache(&self, hot_code: u64) -> BeforeAndAfter {
        let shape = CacheShape::USUAL;
        let original = |moved: &Moved| moved.original.start.get()..moved.original.end.get();
        let copy = |moved: &Moved| hot_code + moved.offset..hot_code + moved.offset + moved.len;
        BeforeAndAfter {
            before: Occupancy::of(shape, self.hot_code.iter().map(original)),
            after: Occupancy::of(shape, self.hot_code.iter().map(copy)),
        }
    }
}

fn function(copied: &Copied) -> GroupFunction {
    GroupFunction {
        name: copied.name.clone(),
        address: format!("{:#x}", copied.address.get()),
        is_root: copied.is_root,
        is_led: copied.is_led,
        hot_bytes: copied.hot_bytes,
        chains: copied.chains as u64,
        cold_bytes: copied.cold_bytes,
        inlined_calls: copied.inlined as u64,
    }
}

fn call(call: &NamedCall) -> GroupCall {
    GroupCall {
        caller: call.caller.clone(),
        site: format!("{:#x}", call.site.get()),
        offset: call.offset,
        is_static_call: call.through == Through::StaticCall,
        callee: call.name.clone(),
        goes: match call.callee {
            IndirectCallee::Function(_) if call.is_led => GroupCallGoes::Copy,
            IndirectCallee::Function(_) => GroupCallGoes::Original,
            IndirectCallee::InModule => GroupCallGoes::Module,
            IndirectCallee::Unseen => GroupCallGoes::Unseen,
        },
        count: call.count,
    }
}

fn stays(refused: &crate::error::Refused) -> GroupStays {
    GroupStays {
        name: refused.name.clone(),
        address: format!("{:#x}", refused.address.get()),
        why: refused.why.to_string(),
    }
}
