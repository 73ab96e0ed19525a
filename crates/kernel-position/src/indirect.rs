//! Calls through pointers and static calls: how often executed blocks make them, and of what.
//!
//! What a static call calls stands in the code. What a pointer leads to has been seen by the function tracer,
//! which says where a call returns to. Its counts are a sample; those of blocks are exact: so the calls that
//! a block makes are parted as the sample says.
//!
//! **Limits.** Whoever goes on to a function by a jump is not seen. What a jump through a pointer leads to is
//! therefore looked for where the function that jumps was called; and where that was a call through a pointer
//! itself, it counts as that one's target as well.

use crate::counts::Counts;
use restitch_address::Svma;
use restitch_kernel::{Block, Called, Code, End, FunctionId, Kernel, SeenTargets, Site, SiteKind};
use restitch_x86::kernel_code::static_call_form;
use std::collections::{BTreeSet, HashMap};

/// Calls of one function at one place, or of what is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndirectCall {
    /// Who calls.
    pub caller: FunctionId,
    /// Where: the instruction.
    pub site: Svma,
    /// How it says what is called.
    pub through: Through,
    /// What is called.
    pub callee: IndirectCallee,
    /// How often.
    pub count: u64,
}

/// How a call says what is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    /// By a pointer.
    Pointer,
    /// By a key: the kernel writes the call anew when it changes.
    StaticCall,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndirectCallee {
    /// A function of the kernel's own text.
    Function(FunctionId),
    /// Functions of modules, which are not looked at.
    InModule,
    /// Nobody has seen it.
    Unseen,
}

impl IndirectCall {
    /// The function, if it is one of the kernel's own text.
    pub fn function(&self) -> Option<FunctionId> {
        match self.callee {
            IndirectCallee::Function(id) => Some(id),
            IndirectCallee::InModule | IndirectCallee::Unseen => None,
        }
    }
}

/// What calls of a kernel were seen, by where they are made.
#[derive(Debug)]
pub struct IndirectCalls<'k> {
    kernel: &'k Kernel,
    /// By where they return to.
    seen: HashMap<Svma, SeenTargets>,
    /// Where calls of a function return to.
    returns: HashMap<FunctionId, Vec<Svma>>,
}

impl<'k> IndirectCalls<'k> {
    /// Of calls that the function tracer has seen.
    pub fn new(kernel: &'k Kernel, called: &Called) -> Self {
        let mut returns: HashMap<FunctionId, Vec<Svma>> = HashMap::new();
        for call in called.of(&kernel.functions) {
            returns.entry(call.callee).or_default().push(call.returns_to);
        }
        Self { kernel, seen: called.by_return(&kernel.functions), returns }
    }

    /// The calls that executed blocks of these functions make more often than `threshold`, by site.
    pub fn of(
        &self,
        functions: impl IntoIterator<Item = FunctionId>,
        counts: &Counts,
        threshold: u64,
    ) -> Vec<IndirectCall> {
        let mut calls = Vec::new();
        for id in functions {
            let code = self.kernel.code(id);
            for block in &code.blocks {
                let count = counts.at(block.range.start);
                // No target is called more often than that.
                if count > threshold {
                    self.of_block(&Caller { id, code: &code, block, count }, &mut calls);
                }
            }
        }
        calls.retain(|call| call.count > threshold);
        calls.sort_by_key(|call| call.site);
        calls
    }

    fn of_block(&self, caller: &Caller<'_>, calls: &mut Vec<IndirectCall>) {
        for site in caller.code.sites_in(caller.block.range) {
            match site.kind {
                SiteKind::IndirectCall(_) => {
                    calls.extend(caller.through_pointer(site.at, &self.called_by(site)));
                }
                SiteKind::StaticCall { form, .. } => {
                    calls.extend(self.static_call(caller, site.at, form.callee()));
                }
                _ => {}
            }
        }
        let branch = caller.block.branch;
        match caller.block.end {
            End::IndirectJump(_) => calls.extend(caller.through_pointer(branch, &self.gone_on_to(caller.id))),
            End::StaticJump { .. } => {
                let form =
                    self.kernel.known.memory.at(branch).and_then(|code| static_call_form(code, branch));
                calls.extend(self.static_call(caller, branch, form.and_then(|form| form.callee())));
            }
            _ => {}
        }
    }

    /// A static call of whatever is there; none if it calls nothing.
    fn static_call(&self, caller: &Caller<'_>, site: Svma, to: Option<Svma>) -> Option<IndirectCall> {
        let function = self.kernel.functions.starting_at(to?);
        let callee = function.map_or(IndirectCallee::InModule, IndirectCallee::Function);
        Some(caller.call(site, Through::StaticCall, callee, caller.count))
    }

    /// What was called by a site. It may have filler behind the call, in place of a thunk's.
    fn called_by(&self, site: &Site) -> SeenTargets {
        let mut returns = (1..=u64::from(site.len)).map(|bytes| site.at + bytes);
        let seen = returns.find(|returns_to| self.seen.contains_key(returns_to));
        seen.map(|returns_to| self.called_at(returns_to)).unwrap_or_default()
    }

    /// What was called by the call that returns to an address, but for what that goes on to by direct jumps.
    fn called_at(&self, returns_to: Svma) -> SeenTargets {
        let mut targets = self.seen.get(&returns_to).cloned().unwrap_or_default();
        let jumped_to: BTreeSet<FunctionId> =
            targets.functions.keys().flat_map(|id| self.jumped_to(*id)).collect();
        targets.functions.retain(|id, _| !jumped_to.contains(id));
        targets
    }

    /// What a function goes on to by jumps through pointers: all that was called where it was called, but for
    /// itself and what direct calls and jumps lead to.
    fn gone_on_to(&self, id: FunctionId) -> SeenTargets {
        let mut all = SeenTargets::default();
        for returns_to in self.returns.get(&id).into_iter().flatten() {
            let targets = self.called_at(*returns_to);
            let called = self.called_directly(*returns_to);
            let jumped_to = called.map(|called| self.jumped_to(called)).unwrap_or_default();
            all.in_modules += targets.in_modules;
            for (target, count) in targets.functions {
                if target != id && called != Some(target) && !jumped_to.contains(&target) {
                    *all.functions.entry(target).or_insert(0) += count;
                }
            }
        }
        all
    }

    /// The function that the direct call which ends at an address names.
    fn called_directly(&self, returns_to: Svma) -> Option<FunctionId> {
        // In front of it, since nothing has to follow a call in its function.
        let caller = self.kernel.functions.at(Svma::new(returns_to.get().wrapping_sub(1)))?;
        let sites = self.kernel.code(caller).sites;
        let to = sites.iter().find_map(|site| match site.kind {
            SiteKind::Call(to) if site.at + u64::from(site.len) == returns_to => Some(to),
            _ => None,
        });
        self.kernel.functions.starting_at(to?)
    }

    /// The other functions that one goes on to by direct jumps.
    fn jumped_to(&self, from: FunctionId) -> BTreeSet<FunctionId> {
        let blocks = self.kernel.code(from).blocks;
        let targets = blocks.iter().filter_map(|block| block.end.target());
        let functions = targets.filter_map(|to| self.kernel.functions.starting_at(to));
        functions.filter(|to| *to != from).collect()
    }
}

/// A block that makes calls.
struct Caller<'c> {
    id: FunctionId,
    code: &'c Code,
    block: &'c Block,
    /// How often it was executed.
    count: u64,
}

impl Caller<'_> {
    fn call(&self, site: Svma, through: Through, callee: IndirectCallee, count: u64) -> IndirectCall {
        IndirectCall { caller: self.id, site, through, callee, count }
    }

    /// Calls of a pointer, parted as its targets were seen.
    fn through_pointer(&self, site: Svma, seen: &SeenTargets) -> Vec<IndirectCall> {
        let functions = seen.functions.iter().map(|(id, count)| (IndirectCallee::Function(*id), *count));
        let seen: Vec<(IndirectCallee, u64)> = functions
            .chain([(IndirectCallee::InModule, seen.in_modules)])
            .filter(|(_, count)| *count > 0)
            .collect();
        let all: u128 = seen.iter().map(|(_, count)| u128::from(*count)).sum();
        if all == 0 {
            return vec![self.call(site, Through::Pointer, IndirectCallee::Unseen, self.count)];
        }
        // At most the count of the block.
        let part = |count: u64| (u128::from(self.count) * u128::from(count) / all) as u64;
        let call = |(callee, count)| self.call(site, Through::Pointer, callee, part(count));
        seen.into_iter().map(call).collect()
    }
}
