//! How well the flow equations hold in a profile.

use restitch_program::Program;

use crate::equations::Equations;
use crate::model::Profile;

/// How far a profile agrees with itself, and how much of the program it saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowReport {
    /// Equations between blocks and their incoming edges.
    pub inflow: Agreement,
    /// Equations between blocks and their outgoing edges (calls that do not return count as deviations).
    pub outflow: Agreement,
    /// Sum of all block counts.
    pub block_total: u64,
    /// Sum of all edge counts.
    pub edge_total: u64,
    /// Blocks that ran.
    pub executed_blocks: usize,
    /// Edges that were taken.
    pub executed_edges: usize,
    /// Functions with a block that ran.
    pub executed_functions: usize,
    /// Bytes of blocks that ran.
    pub executed_bytes: u64,
}

/// How many equations hold, and how far the others are off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Closed equations of the program.
    pub equations: usize,
    /// Those that do not hold exactly.
    pub violated: usize,
    /// Sum of the absolute differences between counts and sums.
    pub deviation: u64,
    /// Sum of the counts of the blocks with closed equations.
    pub total: u64,
}

impl Agreement {
    /// Deviation relative to the counts: 0 is perfect. 0 for a profile in which nothing ran.
    pub fn error(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.deviation as f64 / self.total as f64 }
    }

    fn add(&mut self, count: u64, sum: u64) {
        self.equations += 1;
        self.violated += usize::from(count != sum);
        self.deviation = self.deviation.saturating_add(count.abs_diff(sum));
        self.total = self.total.saturating_add(count);
    }
}

impl Profile {
    /// Checks the flow equations of `program`, to whose tables this profile must be parallel
    /// ([`Profile::is_parallel_to`]), and totals the counts.
    pub fn check_flow(&self, program: &Program) -> FlowReport {
        self.check_flow_in(program, None)
    }

    /// The same, where only the equations of blocks in `scope` hold (by block): those that a counting version
    /// held.
    pub fn check_flow_in(&self, program: &Program, scope: Option<&[bool]>) -> FlowReport {
        let equations = Equations::new(program, scope);
        let mut report = FlowReport::default();
        let mut functions = vec![false; program.functions.len()];
        for id in program.block_ids() {
            let (block, count) = (program.block(id), self.block(id));
            if equations.closed_in(id) {
                let edges = equations.in_edges(id).iter().map(|&e| self.edge(e));
                report.inflow.add(count, edges.fold(0, u64::saturating_add));
            }
            if equations.closed_out(id) {
                let edges = program.out_edges(id).map(|(e, _)| self.edge(e));
                report.outflow.add(count, edges.fold(0, u64::saturating_add));
            }
            if count > 0 {
                report.executed_blocks += 1;
                report.executed_bytes += u64::from(block.len);
                functions[block.function.index()] = true;
            }
        }
        report.block_total = self.blocks.iter().copied().fold(0, u64::saturating_add);
        report.edge_total = self.edges.iter().copied().fold(0, u64::saturating_add);
        report.executed_edges = self.edges.iter().filter(|&&count| count > 0).count();
        report.executed_functions = functions.into_iter().filter(|ran| *ran).count();
        report
    }

    /// Whether there is a count for each block, edge and call of `program`, and no more.
    pub fn is_parallel_to(&self, program: &Program) -> bool {
        self.blocks.len() == program.blocks.len()
            && self.edges.len() == program.edges.len()
            && self.calls.len() == program.calls.len()
    }
}
