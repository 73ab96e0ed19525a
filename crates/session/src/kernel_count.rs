//! Exact counts of functions of the running kernel: by a group of copies that count, in force for a while.

use crate::kernel_group::GroupWanted;
use crate::kernel_in_force::GroupInForce;
use restitch_kernel::{Source, release};
use restitch_kernel_position::{FunctionCounts, Order, Positioned, counts_text};
use restitch_processes::SessionError;
use restitch_report::{COUNTS_SCHEMA_VERSION, CountedBlock, CountedEdge, CountedFunction, CountsReport};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// What was counted.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelCounts {
    /// For people and programs.
    pub report: CountsReport,
    /// How often each block was executed, as lines of an address in hexadecimal, a length in bytes and a
    /// count: what an order by counts is made of.
    pub blocks: String,
}

impl GroupWanted {
    /// These functions, in their own order, with counters.
    pub fn counting(functions: Vec<String>, callees: usize) -> Self {
        Self { functions, hottest: None, callees, order: Order::Kept, counts: true, inlines: false }
    }
}

/// Takes a group that counts out of the kernel, where it was in force for `time`; what it has counted.
///
/// # Errors
/// If somebody else has taken the group out, or the kernel's memory cannot be read.
pub fn take_counts(group: GroupInForce, time: Duration) -> Result<KernelCounts, SessionError> {
    let (positioned, name) = (group.positioned.clone(), group.status.name.clone());
    let counted = group.count()?;
    let report = CountsReport {
        standing: counted.standing.into(),
        left: counted.is_left.then_some(name),
        ..report(&positioned, &counted.counts, release(&Source::running()), time)
    };
    Ok(KernelCounts { report, blocks: counts_text(&counted.counts) })
}

fn report(
    positioned: &Positioned,
    counts: &[FunctionCounts],
    release: String,
    time: Duration,
) -> CountsReport {
    let roots = positioned.functions.iter().filter(|copied| copied.is_led).map(|copied| copied.address);
    let roots: BTreeSet<_> = roots.collect();
    let hexadecimal = |at: restitch_address::Svma| format!("{:#x}", at.get());
    let function = |counted: &FunctionCounts| CountedFunction {
        name: counted.name.clone(),
        address: hexadecimal(counted.address),
        is_root: roots.contains(&counted.address),
        calls: counted.blocks.iter().find(|b| b.range.start == counted.address).map_or(0, |b| b.count),
        blocks: counted
            .blocks
            .iter()
            .map(|block| CountedBlock {
                address: hexadecimal(block.range.start),
                bytes: block.range.len(),
                count: block.count,
            })
            .collect(),
        edges: counted
            .edges
            .iter()
            .map(|edge| CountedEdge {
                from: hexadecimal(edge.from),
                to: hexadecimal(edge.to),
                count: edge.count,
                is_exact: edge.is_exact,
            })
            .collect(),
    };
    let mut functions: Vec<CountedFunction> = counts.iter().map(function).collect();
    functions.sort_by_cached_key(|function| Reverse(function.executions()));
    CountsReport {
        schema_version: COUNTS_SCHEMA_VERSION,
        restitch_version: env!("CARGO_PKG_VERSION").into(),
        release,
        seconds: time.as_secs_f64(),
        standing: 0,
        left: None,
        counters: positioned.counting.as_ref().map_or(0, |counting| counting.counters() as u64),
        functions,
        stays: positioned.report(0).stays,
    }
}
