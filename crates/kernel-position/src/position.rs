//! From a request to a proved module file: the phases.

use crate::block::BlockMaker;
use crate::convert::Converted;
use crate::counters::count;
use crate::counting::Counting;
use crate::error::{PositionError, Refused, Why};
use crate::hot::Heating;
use crate::indirect::{IndirectCall, IndirectCallee, Through};
use crate::inline::{Inlined, inline};
use crate::order::{Chunks, Ordering};
use crate::reach::keep_reached;
use crate::request::{Hot, Order, Request};
use crate::subject::Subject;
use restitch_address::{Svma, SvmaRange};
use restitch_kernel::FunctionId;
use restitch_kernel_check::{CheckError, CheckedModule, Checker, Problem};
use restitch_kernel_group::{Fixup, Function, Group, Heat, PlacedCode, Target, write_module};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Makes and proves modules for one kernel.
pub struct Positioner<'s> {
    subject: &'s Subject<'s>,
    blocks: BlockMaker<'s>,
    checker: Checker<'s>,
}

/// A proved module file, and what is in it.
#[derive(Debug, Clone)]
pub struct Positioned {
    /// The file.
    pub module: CheckedModule,
    /// The functions that are copied: roots first, each kind by address.
    pub functions: Vec<Copied>,
    /// Callees that stay where they are.
    pub stays: Vec<Refused>,
    /// Bytes of hot code, with what fills gaps.
    pub hot_bytes: u64,
    /// Bytes of cold code.
    pub cold_bytes: u64,
    /// What its counters count, if it has some.
    pub counting: Option<Counting>,
    /// Where the hot code is, before and after.
    pub hot_code: Vec<Moved>,
    /// Where the cold code is.
    pub cold_code: Vec<Moved>,
    /// Whether it is hot by counts; else it is all that the compiler has not parted off.
    pub is_counted: bool,
    /// Calls through pointers and static calls, as the request has them.
    pub indirect: Vec<NamedCall>,
}

/// Calls through a pointer or a static call, with names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCall {
    /// Who calls.
    pub caller: String,
    /// Where.
    pub site: Svma,
    /// Bytes from the start of the caller to there; none where that stands apart from it.
    pub offset: Option<u64>,
    /// How it says what is called.
    pub through: Through,
    /// What is called.
    pub callee: IndirectCallee,
    /// Its name, if it is one of the kernel's own text.
    pub name: Option<String>,
    /// How often.
    pub count: u64,
    /// Whether the call is led to a copy.
    pub is_led: bool,
}

/// A block that was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Where it was.
    pub original: SvmaRange,
    /// Where it is: bytes from the start of the module's hot or cold code.
    pub offset: u64,
    /// Its bytes there.
    pub len: u64,
}

/// A function that is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Its name.
    pub name: String,
    /// Where the original is.
    pub address: Svma,
    /// Whether it is a root.
    pub is_root: bool,
    /// Whether all its calls are led to the copy, as those of roots are; else only the group's own direct
    /// calls go there.
    pub is_led: bool,
    /// Its hot blocks.
    pub hot_blocks: usize,
    /// Bytes of those, in the copy.
    pub hot_bytes: u64,
    /// Its cold ones.
    pub cold_blocks: usize,
    /// Bytes of those, in the copy.
    pub cold_bytes: u64,
    /// Into how many chains its hot blocks fell: what stands behind each other since control goes that way
    /// most often.
    pub chains: usize,
    /// In place of how many calls it stands besides.
    pub inlined: usize,
}

impl<'s> Positioner<'s> {
    /// For a kernel.
    ///
    /// # Errors
    /// If the checker cannot read the kernel's tables.
    pub fn new(subject: &'s Subject<'s>) -> Result<Self, PositionError> {
        let checker = Checker::new(subject, &subject.facts)?;
        Ok(Self { subject, blocks: BlockMaker { kernel: subject.kernel }, checker })
    }

    /// Makes a module of a request, and proves it.
    ///
    /// # Errors
    /// If a root stays where it is, the group cannot be written, or what is written cannot be proved.
    pub fn position(&self, request: &Request) -> Result<Positioned, PositionError> {
        let mut stays = Vec::new();
        let mut functions = self.roots(request)?;
        let ordering = self.ordering(request)?;
        let mut odd = Odd::default();
        functions.extend(self.callees(request, &ordering, &mut stays));
        loop {
            let error = match self.attempt(request, &ordering, functions.clone(), &odd) {
                Err(PositionError::Unproved(error)) => error,
                Err(PositionError::Refused(refused)) if self.are_callees(request, &refused) => {
                    functions.retain(|own| refused.iter().all(|other| other.address != self.start(own.id)));
                    stays.extend(refused);
                    continue;
                }
                Ok(mut positioned) => {
                    positioned.stays.extend(stays);
                    positioned.stays.sort_by_key(|stays| stays.address);
                    return Ok(positioned);
                }
                other => return other,
            };
            let before = odd.flags.len();
            odd.flags.extend(self.handing_on_flags(&error));
            if odd.flags.len() > before {
                continue;
            }
            let before = odd.called.len();
            odd.called.extend(self.named(&error).filter(|_| request.inlines()));
            if odd.called.len() > before {
                continue;
            }
            let unproved = self.unproved(request, &error);
            if unproved.is_empty() {
                return Err(error.into());
            }
            functions.retain(|function| !unproved.contains_key(&function.id));
            stays.extend(unproved.into_iter().map(|(id, why)| self.refused(id, why)));
        }
    }

    /// Makes and proves a module of these functions.
    fn attempt(
        &self,
        request: &Request,
        ordering: &Ordering<'_>,
        mut functions: Vec<Converted>,
        odd: &Odd,
    ) -> Result<Positioned, PositionError> {
        let led = self.led(request, &functions);
        keep_reached(&mut functions, &led);
        let (functions, idle): (Vec<_>, Vec<_>) =
            functions.into_iter().partition(|function| !function.blocks.is_empty());
        let stays = idle.iter().map(|function| self.refused(function.id, Why::NotReached)).collect();
        let mut functions = functions;
        for function in &mut functions {
            function.is_led = led.contains(&self.start(function.id));
            if let Ordering::Counted(heating) = ordering {
                heating.weigh(function);
            }
        }
        let mut calls = BTreeMap::new();
        if let (Ordering::Counted(heating), true) = (ordering, request.inlines()) {
            let kernel = &self.subject.kernel.functions;
            let inlined = inline(functions, kernel, heating.threshold, &odd.called);
            Inlined { functions, calls } = inlined;
            keep_reached(&mut functions, &led);
        }
        let ranges = original_ranges(&functions);
        let counted = match request.counts {
            true => Some(count(self.blocks, &mut functions, &odd.flags).map_err(|refusal| {
                PositionError::Refused(vec![self.refused(refusal.function, refusal.why)])
            })?),
            false => None,
        };
        let Laid { mut group, chains } = self.group(request, ordering, functions, &led);
        group.counters = counted.as_ref().map(|counted| counted.counters);
        let written = write_module(&group, &self.subject.modules)?;
        let module = self.checker.check(written.file, &led)?;
        let mut copied = copied(&group, &written.places, &chains);
        for copied in &mut copied {
            copied.is_root = self.is_root(request, copied.address);
            copied.inlined = calls.get(&copied.address).copied().unwrap_or_default();
        }
        Ok(Positioned {
            module,
            functions: copied,
            indirect: request.indirect.iter().map(|call| self.named_call(call, &led)).collect(),
            stays,
            hot_bytes: written.hot_len,
            cold_bytes: written.cold_len,
            hot_code: moved(&written.places, Heat::Hot, &ranges),
            cold_code: moved(&written.places, Heat::Cold, &ranges),
            is_counted: matches!(ordering, Ordering::Counted(_)),
            counting: counted.map(|counted| counted.counting),
        })
    }

    /// Whether what is refused can be left out.
    fn are_callees(&self, request: &Request, refused: &[Refused]) -> bool {
        !refused.is_empty() && !refused.iter().any(|own| self.is_root(request, own.address))
    }

    fn is_root(&self, request: &Request, start: Svma) -> bool {
        request.roots.iter().any(|root| self.start(*root) == start)
    }

    /// Where those of the functions start that calls are led to: roots, and what is called through pointers
    /// and static calls, as far as calls of it can be led.
    fn led(&self, request: &Request, functions: &[Converted]) -> BTreeSet<Svma> {
        let indirect: BTreeSet<FunctionId> =
            request.indirect.iter().filter_map(IndirectCall::function).collect();
        let is_led = |function: &&Converted| {
            request.roots.contains(&function.id)
                || indirect.contains(&function.id)
                    && (!request.needs_trace_sites || self.is_traceable(function))
        };
        functions.iter().filter(is_led).map(|function| self.start(function.id)).collect()
    }

    fn named_call(&self, call: &IndirectCall, led: &BTreeSet<Svma>) -> NamedCall {
        let functions = &self.subject.kernel.functions;
        let (caller, callee) = (functions.get(call.caller), call.function().map(|id| functions.get(id)));
        let is_in_front = caller.parts[0].contains(call.site);
        NamedCall {
            caller: self.name(caller),
            site: call.site,
            offset: is_in_front.then(|| call.site.get() - caller.start().get()),
            through: call.through,
            callee: call.callee,
            name: callee.map(|callee| self.name(callee)),
            count: call.count,
            is_led: callee.is_some_and(|callee| led.contains(&callee.start())),
        }
    }

    /// Functions in which flags are not dead where the calling convention says so.
    fn handing_on_flags(&self, error: &CheckError) -> Vec<FunctionId> {
        let counters = error.findings.iter().filter(|finding| matches!(finding.problem, Problem::Counter(_)));
        counters.filter_map(|finding| self.subject.kernel.functions.at(finding.original?)).collect()
    }

    /// Functions that findings are about.
    fn named(&self, error: &CheckError) -> impl Iterator<Item = FunctionId> {
        error.findings.iter().filter_map(|finding| self.subject.kernel.functions.at(finding.original?))
    }

    /// Callees that findings are about: without them the rest may be proved.
    fn unproved(&self, request: &Request, error: &CheckError) -> BTreeMap<FunctionId, Why> {
        let functions = &self.subject.kernel.functions;
        let about = error.findings.iter().rev().filter_map(|finding| {
            let id = functions.at(finding.original?).filter(|id| !request.roots.contains(id))?;
            Some((id, Why::Unproved(Box::new(finding.clone()))))
        });
        about.filter(|(id, _)| request.callees.contains(id)).collect()
    }

    fn start(&self, id: FunctionId) -> Svma {
        self.subject.kernel.functions.get(id).start()
    }

    /// The name that the parts that stand apart have, too (`NAME.cold`), else the first one.
    fn name(&self, function: &restitch_kernel::Function) -> String {
        let parts = function.parts.iter().skip(1);
        let symbols =
            parts.flat_map(|part| self.subject.kernel.symbols.within(SvmaRange::new(part.start, 1)));
        let names = symbols.filter_map(|symbol| Some(symbol.name.split_once(".cold")?.0));
        let names: Vec<&str> = names.collect();
        let alias = function.aliases.iter().find(|alias| names.contains(&alias.as_str()));
        alias.unwrap_or(&function.name).clone()
    }

    fn refused(&self, id: FunctionId, why: Why) -> Refused {
        let function = self.subject.kernel.functions.get(id);
        Refused { name: function.name.clone(), address: function.start(), why }
    }

    /// All roots, or each that stays.
    fn roots(&self, request: &Request) -> Result<Vec<Converted>, PositionError> {
        let (mut roots, mut refused) = (Vec::new(), Vec::new());
        for id in request.roots.iter().copied().collect::<BTreeSet<_>>() {
            match self.blocks.function(id) {
                Ok(root) if request.needs_trace_sites && !self.is_traceable(&root) => {
                    refused.push(self.refused(id, Why::Untraceable));
                }
                Ok(root) => roots.push(root),
                Err(why) => refused.push(self.refused(id, why)),
            }
        }
        if refused.is_empty() { Ok(roots) } else { Err(PositionError::Refused(refused)) }
    }

    fn is_traceable(&self, function: &Converted) -> bool {
        self.subject.kernel.is_traceable(function.id, &function.code)
    }

    /// By what blocks are put in order.
    fn ordering<'r>(&self, request: &'r Request) -> Result<Ordering<'r>, PositionError> {
        let (counts, hot) = match &request.order {
            Order::Kept => return Ok(Ordering::Kept),
            Order::Reversed => return Ok(Ordering::Reversed),
            Order::Counted { counts, hot } => (counts, hot),
        };
        let mut least = u64::MAX;
        for id in &request.roots {
            let calls = counts.at(self.start(*id));
            if calls == 0 {
                return Err(PositionError::NeverCalled(self.subject.kernel.functions.get(*id).name.clone()));
            }
            least = least.min(calls);
        }
        let threshold = match hot {
            Hot::PercentOfCalls(percent) => least.saturating_mul(*percent) / 100,
            Hot::Above(executions) => *executions,
        };
        Ok(Ordering::Counted(Heating { counts, threshold, indirect: &request.indirect }))
    }

    /// The callees that are copied, of those that were asked for.
    fn callees(
        &self,
        request: &Request,
        ordering: &Ordering<'_>,
        stays: &mut Vec<Refused>,
    ) -> Vec<Converted> {
        let callees: BTreeSet<FunctionId> = request.callees.iter().copied().collect();
        let callees = callees.into_iter().filter(|id| !request.roots.contains(id));
        let mut copied = Vec::new();
        for id in callees {
            match self.blocks.function(id) {
                Ok(callee) => match ordering {
                    Ordering::Counted(heating) if !heating.is_hot(&callee) => {
                        stays.push(self.refused(id, Why::Cold));
                    }
                    _ => copied.push(callee),
                },
                Err(why) => stays.push(self.refused(id, why)),
            }
        }
        copied
    }

    /// The group of functions, of which those at `led` are led to.
    fn group(
        &self,
        request: &Request,
        ordering: &Ordering<'_>,
        mut functions: Vec<Converted>,
        led: &BTreeSet<Svma>,
    ) -> Laid {
        own_warnings(&mut functions);
        let entries: Vec<Svma> = functions.iter().map(|function| self.start(function.id)).collect();
        let named = functions.iter().map(|function| {
            let own = self.subject.kernel.functions.get(function.id);
            let (name, address) = (self.name(own), own.start());
            Function { name, address, is_redirected: led.contains(&address) }
        });
        let Chunks { chunks, chains } = ordering.chunks(&functions, &entries);
        let group = Group {
            name: request.name.clone(),
            functions: named.collect(),
            chunks,
            kernel: self.subject.places.clone(),
            anchors: self.subject.anchors.clone(),
            counters: None,
        };
        Laid { group, chains }
    }
}

/// Functions that are not what the calling convention and compilers make one expect.
#[derive(Debug, Default)]
struct Odd {
    /// They hand on flags.
    flags: BTreeSet<FunctionId>,
    /// They are called, and do not stand in place of their calls.
    called: BTreeSet<FunctionId>,
}

/// A group, and into how many chains the hot blocks of each function fell.
struct Laid {
    group: Group,
    chains: Vec<usize>,
}

/// Where the originals are of the blocks that are copied, by the blocks' addresses.
fn original_ranges(functions: &[Converted]) -> HashMap<Svma, SvmaRange> {
    let blocks = functions.iter().flat_map(|function| &function.blocks);
    blocks.map(|block| (block.address(), block.original)).collect()
}

/// The code of a heat, before and after.
fn moved(places: &[PlacedCode], heat: Heat, ranges: &HashMap<Svma, SvmaRange>) -> Vec<Moved> {
    let of_heat = places.iter().filter(|placed| placed.heat == heat);
    let moved = of_heat.filter_map(|placed| {
        let original = *ranges.get(&placed.original)?;
        Some(Moved { original, offset: placed.offset, len: placed.len })
    });
    moved.collect()
}

/// Operands that name the entry of a trap that is copied name the copy's.
fn own_warnings(functions: &mut [Converted]) {
    let blocks = functions.iter().flat_map(|function| &function.blocks);
    let own: HashMap<Svma, Svma> = blocks
        .flat_map(|block| {
            let traps = block.made.block.warnings.iter().map(|warning| u64::from(warning.offset));
            block.made.entries.iter().copied().zip(traps.map(|offset| block.address() + offset))
        })
        .collect();
    let blocks = functions.iter_mut().flat_map(|function| &mut function.blocks);
    for fixup in blocks.flat_map(|block| &mut block.made.block.fixups) {
        if let Fixup::Relative { target: target @ Target::Data(_), .. } = fixup
            && let Target::Data(to) = *target
            && let Some(trap) = own.get(&to)
        {
            *target = Target::Warning(*trap);
        }
    }
}

/// What is in a group, by function; roots are not told yet.
fn copied(group: &Group, places: &[PlacedCode], chains: &[usize]) -> Vec<Copied> {
    let of_function = group.functions.iter().zip(chains);
    let empty = of_function.map(|(function, chains)| Copied {
        name: function.name.clone(),
        address: function.address,
        is_root: false,
        is_led: function.is_redirected,
        hot_blocks: 0,
        hot_bytes: 0,
        cold_blocks: 0,
        cold_bytes: 0,
        chains: *chains,
        inlined: 0,
    });
    let mut copied: Vec<Copied> = empty.collect();
    for placed in places {
        let function = &mut copied[placed.function];
        let (blocks, bytes) = match placed.heat {
            Heat::Hot => (&mut function.hot_blocks, &mut function.hot_bytes),
            Heat::Cold => (&mut function.cold_blocks, &mut function.cold_bytes),
        };
        *blocks += 1;
        *bytes += placed.len;
    }
    copied
}
