//! How much of a counted profile follows exactly, and how well it agrees with itself.
//!
//! Two shares of exact counts are told. One is that of the counters that were in force; what it lacks are
//! edges of jump tables and counters that found no place. The other is the measure of Tamches and Miller
//! (*Dynamic Kernel Code Optimization*, section 4), for comparison: the share that would follow if all blocks
//! were counted and no edge.

use restitch_profile::{CounterPlan, Derived, Known, derive};
use restitch_program::Program;
use restitch_report::{Counting, ProfileSummary, RunResult};

/// What was planned, before anything ran.
pub fn planned(plan: &CounterPlan, missing: usize) -> Counting {
    Counting {
        blocks: plan.blocks as u64,
        counters: (plan.counted.len() - missing.min(plan.counted.len())) as u64,
        counters_per_block: plan.ratio(),
        ..Counting::default()
    }
}

/// What the counts have given. Shares and errors are of the functions that ran.
pub fn summary(program: &Program, plan: &CounterPlan, missing: usize, derived: &Derived) -> Counting {
    let profile = &derived.profile;
    let known = Known {
        blocks: profile.blocks.iter().copied().map(Some).collect(),
        edges: Vec::new(),
        scope: Some(plan.scope.clone()),
    };
    let by_blocks = derive(program, &known).executed;
    let flow = profile.check_flow_in(program, Some(&plan.scope));
    let share = |part: usize, all: usize| if all == 0 { 1.0 } else { part as f64 / all as f64 };
    let run = derived.executed;
    Counting {
        taken_branches: profile.taken_branches(program),
        functions_run: run.functions as u64,
        edges: run.edges as u64,
        exact_edge_share: share(run.exact_edges, run.edges),
        exact_function_share: share(run.exact_functions, run.functions),
        block_edge_share: share(by_blocks.exact_edges, by_blocks.edges),
        block_function_share: share(by_blocks.exact_functions, by_blocks.functions),
        flow_error_in: flow.inflow.error(),
        flow_error_out: flow.outflow.error(),
        ..planned(plan, missing)
    }
}

/// Writes the profile's part into a result whose modules have their summaries.
pub fn finish(result: &mut RunResult, source: &str, seconds: f64) {
    let parts: Vec<&Counting> = result.modules.iter().filter_map(|m| m.counting.as_ref()).collect();
    let edges: u64 = parts.iter().map(|c| c.edges).sum();
    let exact: f64 = parts.iter().map(|c| c.exact_edge_share * c.edges as f64).sum();
    result.profile = Some(ProfileSummary {
        source: source.into(),
        seconds,
        samples: 0,
        exact_edge_share: if edges == 0 { 0.0 } else { exact / edges as f64 },
    });
    result.outcome = restitch_report::Outcome::Written;
    result.exit_code = crate::exit_code::ExitCode::Done.number();
}
