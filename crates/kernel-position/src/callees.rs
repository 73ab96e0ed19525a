//! What functions call.

use restitch_kernel::{FunctionId, Kernel, SiteKind};
use std::collections::BTreeSet;

/// All functions that `roots` call or go on to directly, and so on, so many calls deep; without the roots.
/// What is called through pointers and static calls is not among them.
pub fn callees(kernel: &Kernel, roots: &[FunctionId], depth: usize) -> Vec<FunctionId> {
    let (mut found, mut level): (BTreeSet<_>, Vec<_>) = (roots.iter().copied().collect(), roots.to_vec());
    for _ in 0..depth {
        let next: Vec<FunctionId> = level.iter().flat_map(|id| direct(kernel, *id)).collect();
        level = next.into_iter().filter(|callee| found.insert(*callee)).collect();
        if level.is_empty() {
            break;
        }
    }
    found.into_iter().filter(|id| !roots.contains(id)).collect()
}

fn direct(kernel: &Kernel, id: FunctionId) -> Vec<FunctionId> {
    let code = kernel.code(id);
    let calls = code.sites.iter().filter_map(|site| match site.kind {
        SiteKind::Call(to) => Some(to),
        _ => None,
    });
    let jumps = code.blocks.iter().filter_map(|block| block.end.target());
    calls.chain(jumps).filter_map(|to| kernel.functions.starting_at(to)).collect()
}
