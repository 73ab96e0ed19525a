//! The one way to a counting version: choose the counters, find a place for it and them, emit, check. Files,
//! processes and programs between their runs differ in the place alone, as for
//! [optimized ones](crate::build_version).

use crate::analysis::Analyzed;
use crate::error::PipelineError;
use crate::make::{Place, Wanted, check_version, emit_version, estimate};
use restitch_address::{LoadBias, PAGE, Svma};
use restitch_check::CheckedVersion;
use restitch_emit::{CounterWidth, Version, area_len};
use restitch_layout::{Fragment, Layout};
use restitch_profile::{Calls, CounterPlan, Weights, plan_counters, scope_of, voting_calls};
use restitch_program::{BlockId, CallId, FuncId, Program};
use std::path::Path;

/// What a counting version counts with.
#[derive(Debug, Clone, Copy)]
pub struct Counters<'a> {
    weights: Weights<'a>,
    width: CounterWidth,
    vote: bool,
}

impl<'a> Counters<'a> {
    /// Counters that never overflow, where they cost least by `weights`. `vote`: indirect calls vote for
    /// their usual targets.
    pub fn wide(weights: Weights<'a>, vote: bool) -> Self {
        Self { weights, width: CounterWidth::Bits64, vote }
    }

    /// Counters that are cheaper, and have to be read all the time.
    pub fn narrow(weights: Weights<'a>, vote: bool) -> Self {
        Self { width: CounterWidth::Bits32, ..Self::wide(weights, vote) }
    }
}

/// What a counting version is to be.
#[derive(Debug)]
pub struct CountingDraft {
    /// What is counted.
    pub plan: CounterPlan,
    /// Indirect calls that vote for their usual target.
    pub votes: Vec<CallId>,
    width: CounterWidth,
    layout: Layout,
}

/// Address space that a counting version needs at most, in bytes: multiples of a page.
#[derive(Debug, Clone, Copy)]
pub struct CountingRoom {
    /// The version.
    pub version: u64,
    /// Its counters and the words of its votes.
    pub counters: u64,
}

impl CountingRoom {
    /// Both, one behind the other.
    pub fn whole(self) -> u64 {
        self.version + self.counters
    }

    /// The place of version `number` at `start`, with the counters right behind it.
    pub fn at(self, number: u32, start: Svma, bias: Option<LoadBias>) -> Place {
        Place { number, start, counters: start + self.version, bias }
    }
}

impl CountingDraft {
    /// Plans the counters of the functions, which keep their order.
    pub fn of(program: &Program, functions: &[FuncId], counters: Counters<'_>) -> Self {
        let plan = plan_counters(program, &scope_of(program, functions), counters.weights, Calls::Return);
        let votes = if counters.vote { voting_calls(program, &plan.scope) } else { Vec::new() };
        let layout = original_order(program, &plan);
        Self { plan, votes, width: counters.width, layout }
    }

    /// Whether none of the functions can be counted.
    pub fn counts_nothing(&self) -> bool {
        self.plan.counted.is_empty()
    }

    /// How much room the version and its counters need.
    pub fn room(&self, program: &Program) -> CountingRoom {
        let counters = self.plan.counted.len();
        CountingRoom {
            version: estimate(program, &self.layout, counters) + voting_bytes(&self.votes),
            counters: area_len(self.width, counters, self.votes.len()).next_multiple_of(PAGE),
        }
    }

    /// Emits the version at `place`, not checked yet. `path`: the module's file, for messages.
    ///
    /// # Errors
    /// [`PipelineError::Emit`].
    pub fn emit(&self, path: &Path, module: &Analyzed, place: Place) -> Result<Version, PipelineError> {
        let wanted = Wanted {
            counted: Some(&self.plan.counted),
            votes: &self.votes,
            width: self.width,
            by_slots: true,
            ..Wanted::default()
        };
        emit_version(path, module, &self.layout, place, wanted)
    }

    /// Has the version checked that [`CountingDraft::emit`] has made.
    ///
    /// # Errors
    /// [`PipelineError::Check`].
    pub fn check(
        &self,
        path: &Path,
        module: &Analyzed,
        version: Version,
        bias: Option<LoadBias>,
    ) -> Result<CheckedVersion, PipelineError> {
        check_version(path, module, &self.layout, version, bias)
    }

    /// Emits the version at `place`, and has it checked.
    ///
    /// # Errors
    /// [`PipelineError::Emit`] and [`PipelineError::Check`].
    pub fn build(
        &self,
        path: &Path,
        module: &Analyzed,
        place: Place,
    ) -> Result<CheckedVersion, PipelineError> {
        let version = self.emit(path, module, place)?;
        self.check(path, module, version, place.bias)
    }
}

/// Indices of the counters of a version that nothing increments.
pub fn missing_counters(version: &Version) -> Vec<u32> {
    version.counters.as_ref().map(|counters| counters.missing.clone()).unwrap_or_default()
}

/// Address space that the code of votes may need on top of [`estimate`], in bytes.
fn voting_bytes(votes: &[CallId]) -> u64 {
    (128 * votes.len() as u64).next_multiple_of(PAGE)
}

/// Blocks of the planned functions in original order.
fn original_order(program: &Program, plan: &CounterPlan) -> Layout {
    let mut layout = Layout::default();
    let mut fragment: Vec<BlockId> = Vec::new();
    for block in program.block_ids().filter(|b| plan.scope[b.index()]) {
        let same =
            fragment.last().is_some_and(|l| program.block(*l).function == program.block(block).function);
        if !same && !fragment.is_empty() {
            layout.hot.push(Fragment { blocks: std::mem::take(&mut fragment), align: 16 });
        }
        fragment.push(block);
    }
    if !fragment.is_empty() {
        layout.hot.push(Fragment { blocks: fragment, align: 16 });
    }
    layout
}
