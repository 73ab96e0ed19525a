//! Which calls go to code that looks at its return address, and what becomes of them.
//!
//! Such a call pushes the original's return address: it is executed in the original code, also by versions
//! ([`BlockAttrs::PINNED`]). Where what stands behind it may be no code, since its callee comes back
//! elsewhere, the function stays whole ([`Movability::ReturnsElsewhere`]).
//!
//! Calls of which it is not known where they go are treated so where the address of such code is taken
//! anywhere in the module.
//!
//! Such code of other modules is known by name only ([`crate::exports_that_look`] finds the names). Pointers
//! to it that the loader sets (`static void *(*look_up)() = dlsym;`) are known as well: in functions that
//! read one, calls of which it is not known where they go are treated so.
//!
//! Limits: pointers that the program sets itself, or hands on to functions that call them.
//!
//! [`BlockAttrs::PINNED`]: crate::BlockAttrs::PINNED
//! [`Movability::ReturnsElsewhere`]: crate::Movability::ReturnsElsewhere

use crate::address_set::AddressSet;
use crate::return_address::{Code, Looks, follow};
use crate::special::{looks_at_its_caller, without_version};
use crate::sweep::{Kind, Mini, Span, Sweep};
use restitch_address::{Svma, SvmaRange};
use restitch_image::{Binding, Image, ImageKind, RelocationKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The calls that are not copied.
pub(crate) struct PinnedCalls {
    /// Those that are executed in the original code.
    pub calls: AddressSet,
    /// Where control goes on behind them, other than at the return address.
    pub resumed: Vec<Svma>,
    /// Those behind which there may be no code.
    pub elsewhere: Vec<Svma>,
}

/// Finds them.
pub(crate) fn pinned_calls(code: Code<'_>) -> PinnedCalls {
    let sweep = code.sweep;
    let mut pinned =
        PinnedCalls { calls: AddressSet::new(sweep.text), resumed: Vec::new(), elsewhere: Vec::new() };
    let callees = Callees::of(code, &[]);
    if callees.known.is_empty() {
        return pinned;
    }
    for i in callees.calls(sweep) {
        let mini = &sweep.minis[i];
        let looks = callees.of_branch(code, mini, Kind::Call, Kind::IndirectCall);
        pinned.add(sweep, mini, sweep.minis.get(i + 1), looks);
    }
    pinned
}

impl PinnedCalls {
    /// The call `mini`, in front of the instruction `next`.
    fn add(&mut self, sweep: &Sweep, mini: &Mini, next: Option<&Mini>, looks: Looks) {
        let at = sweep.address(mini);
        let behind = at + u64::from(mini.len);
        // Code that is called is code.
        let calls_next = sweep.target_of(at) == Some(behind) && mini.kind == Kind::Call;
        let is_next = |next: &&Mini| sweep.address(next) == behind;
        match (looks, next.filter(is_next)) {
            (Looks::No, _) => {}
            (Looks::Reads, _) => self.calls.insert(at),
            _ if calls_next => self.calls.insert(at),
            // `call __morestack; ret`: it calls what stands behind the `ret`, and comes back to that.
            (Looks::Resumes(by), Some(next)) if next.kind == Kind::Return && by == i64::from(next.len) => {
                self.calls.insert(at);
                self.resumed.push(behind.offset(by));
            }
            _ => self.elsewhere.push(at),
        }
    }
}

/// What code at addresses (and in slots) does with its return address, as far as it looks at it. Nearly all
/// that are asked for do not.
struct Known {
    text: SvmaRange,
    /// The addresses in the text.
    inside: AddressSet,
    looks: BTreeMap<Svma, Looks>,
    /// Something was learnt since this was last unset.
    has_news: bool,
}

impl Known {
    fn new(text: SvmaRange) -> Self {
        Self { text, inside: AddressSet::new(text), looks: BTreeMap::new(), has_news: false }
    }

    fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    fn note(&mut self, at: Svma, looks: Looks) {
        if looks > self.of(at) {
            self.looks.insert(at, looks);
            self.inside.insert(at);
            self.has_news = true;
        }
    }

    fn of(&self, at: Svma) -> Looks {
        let is_known = !self.text.contains(at) || self.inside.contains(at);
        self.looks.get(&at).filter(|_| is_known).copied().unwrap_or(Looks::No)
    }
}

/// What calls go to, as far as it looks at return addresses.
struct Callees {
    /// Functions and other targets of calls, linkage stubs, slots.
    known: Known,
    /// The worst of what a call through a register may go to: code whose address something of the module
    /// holds.
    unnamed: Looks,
    /// Spans of functions that read pointers to such code of others.
    holders: BTreeSet<usize>,
}

impl Callees {
    /// `entries`: what other modules may call, if it is asked for that alone.
    fn of(code: Code<'_>, entries: &[Svma]) -> Self {
        let (image, sweep) = (code.image, code.sweep);
        let mut callees =
            Self { known: Known::new(sweep.text), unnamed: Looks::No, holders: BTreeSet::new() };
        let called = Called::of(sweep, entries);
        // Nobody calls the program's first instruction: what lies on its stack are arguments.
        for span in sweep.spans.iter().filter(|s| s.range.start != image.entry()) {
            let start = span.range.start;
            callees.known.note(start, looks_of(code, span, called.heads.contains(start)));
        }
        for target in called.others {
            callees.known.note(target, follow(code, target).looks);
        }
        let leaving = leaving(code);
        callees.spread(code, &leaving, true);
        // Pointers to what others define are everywhere (a table with `dlsym` in it), and it only asks who
        // calls: functions that read one may call it, others are not taken to.
        named(code).for_each(|at| callees.known.note(at, Looks::Reads));
        callees.holders = holders(code);
        callees.spread(code, &leaving, false);
        callees
    }

    /// Finds slots of such code, who jumps to it, and, if `addresses`, whether anything holds its address.
    fn spread(&mut self, code: Code<'_>, leaving: &[Leaving<'_>], addresses: bool) {
        while !self.known.is_empty() {
            let before = self.unnamed;
            self.known.has_news = false;
            self.slots(code.image);
            if addresses {
                self.addresses(code.image, code.sweep);
            }
            self.tail_calls(code, leaving);
            if !self.known.has_news && self.unnamed == before {
                return;
            }
        }
    }

    /// Calls that may go to such code: indices of their records, in order.
    fn calls(&self, sweep: &Sweep) -> Vec<usize> {
        let direct = sweep.targets.iter().filter(|(_, to)| self.known.of(*to) != Looks::No);
        let direct = direct.filter_map(|(at, _)| sweep.mini_at(*at));
        let mut calls: Vec<usize> = direct.filter(|i| sweep.minis[*i].kind == Kind::Call).collect();
        let indirect = sweep.indirect.iter().map(|i| *i as usize);
        calls.extend(indirect.filter(|i| sweep.minis[*i].kind == Kind::IndirectCall));
        calls.sort_unstable();
        calls
    }

    /// What the branch `mini` goes to does, if it is of one of these kinds.
    fn of_branch(&self, code: Code<'_>, mini: &Mini, direct: Kind, indirect: Kind) -> Looks {
        let at = code.sweep.address(mini);
        let known = |to: Svma| self.known.of(to);
        match mini.kind {
            kind if kind == indirect => match code.sweep.named_by(at) {
                Some(slot) if self.unnamed == Looks::No || is_linked(code.image, slot) => known(slot),
                _ if code.tables.binary_search_by_key(&at, |t| t.jump_at).is_ok() => Looks::No,
                _ if code.sweep.span_at(at).is_some_and(|span| self.holders.contains(&span)) => {
                    self.unnamed.max(Looks::Reads)
                }
                _ => self.unnamed,
            },
            kind if kind == direct => code.sweep.target_of(at).map_or(Looks::No, known),
            _ => Looks::No,
        }
    }

    /// Who jumps to such code is such code.
    fn tail_calls(&mut self, code: Code<'_>, leaving: &[Leaving<'_>]) {
        for jump in leaving {
            self.known.note(jump.from, self.of_branch(code, jump.mini, jump.mini.kind, Kind::IndirectJump));
        }
    }

    /// Code whose address is in data, or is named by an operand.
    fn addresses(&mut self, image: &Image, sweep: &Sweep) {
        let relocated = image.relocations().iter().filter_map(|r| match r.kind {
            RelocationKind::Relative { target } => Some(target),
            _ => None,
        });
        let named = sweep.named.iter().map(|named| named.to);
        let known =
            |at: Svma| Some(self.known.of(at)).filter(|it| *it > Looks::No && image.is_executable(at));
        let looks = relocated.chain(named).chain(words_of_data(image)).filter_map(known);
        self.unnamed = looks.fold(self.unnamed, Looks::max);
    }

    /// Slots that hold the address of such code of this module, and stubs that jump through them.
    fn slots(&mut self, image: &Image) {
        let global = image.symbols_with_aliases().iter().filter(|s| s.binding != Binding::Local);
        let own: HashMap<&str, Looks> = global
            .map(|s| (s, self.known.of(s.range.start)))
            .filter(|(_, looks)| *looks != Looks::No)
            .map(|(s, looks)| (without_version(&s.name), looks))
            .collect();
        for r in image.relocations() {
            let looks = match &r.kind {
                RelocationKind::Relative { target } => Some(self.known.of(*target)),
                RelocationKind::Symbolic { name, .. } | RelocationKind::JumpSlot { name, .. }
                    if !own.is_empty() =>
                {
                    own.get(without_version(name)).copied()
                }
                _ => None,
            };
            self.known.note(r.at, looks.unwrap_or(Looks::No));
        }
        for slot in image.plt_slots() {
            self.known.note(slot.stub.start, self.known.of(slot.slot));
        }
    }
}

/// A jump out of the function that starts at `from`.
struct Leaving<'a> {
    from: Svma,
    mini: &'a Mini,
}

/// All of them, and those of which it is not known where they go.
fn leaving(code: Code<'_>) -> Vec<Leaving<'_>> {
    let sweep = code.sweep;
    let mut found = Vec::new();
    for span in &sweep.spans {
        let out = sweep.targets_in(span.range).iter().filter(|(_, to)| !span.range.contains(*to));
        let direct = out.filter_map(|(at, _)| sweep.mini_at(*at));
        found.extend(direct.filter(|i| matches!(sweep.minis[*i].kind, Kind::Jump | Kind::Conditional(_))));
    }
    let indirect = sweep.indirect.iter().map(|i| *i as usize);
    found.extend(indirect.filter(|i| sweep.minis[*i].kind == Kind::IndirectJump));
    found.sort_unstable();
    let leaving = |i: usize| {
        let mini = &sweep.minis[i];
        Some(Leaving { from: sweep.spans[sweep.span_at(sweep.address(mini))?].range.start, mini })
    };
    found.into_iter().filter_map(leaving).collect()
}

/// What may be addresses in the data of a program that is not relocated.
fn words_of_data(image: &Image) -> impl Iterator<Item = Svma> {
    placed_words_of_data(image).map(|(_, word)| word)
}

/// The same, each with its place.
fn placed_words_of_data(image: &Image) -> impl Iterator<Item = (Svma, Svma)> {
    let fixed = image.kind() == ImageKind::Executable;
    let data = image.segments().iter().filter(move |s| fixed && !s.executable);
    let bytes = data.filter_map(|s| Some((s.range.start, image.read(s.range.start, s.file_len as usize)?)));
    let words = bytes.flat_map(|(start, bytes)| {
        bytes.chunks_exact(8).enumerate().map(move |(i, word)| (start + 8 * i as u64, word))
    });
    words.map(|(at, word)| (at, Svma::new(u64::from_le_bytes(word.try_into().expect("8 bytes")))))
}

/// Spans of functions an instruction of which names such code of others, or where a pointer to it lies, other
/// than to go there.
fn holders(code: Code<'_>) -> BTreeSet<usize> {
    let sweep = code.sweep;
    let mut places: BTreeSet<Svma> = named(code).collect();
    let pointers = placed_words_of_data(code.image).filter(|(_, to)| places.contains(to));
    let pointers: Vec<Svma> = pointers.map(|(at, _)| at).collect();
    places.extend(pointers);
    let in_text = sweep.named.iter().map(|named| (named.at, named.to));
    let naming = in_text.chain(sweep.data_named.iter().copied()).filter(|(_, to)| places.contains(to));
    let goes_there = |at: Svma| {
        let kind = sweep.mini_at(at).map(|i| &sweep.minis[i].kind);
        matches!(kind, Some(Kind::IndirectCall | Kind::IndirectJump))
    };
    naming.filter(|(at, _)| !goes_there(*at)).filter_map(|(at, _)| sweep.span_at(at)).collect()
}

/// Whether the loader says what the slot at `at` holds.
fn is_linked(image: &Image, at: Svma) -> bool {
    let kind = image.relocation_at(at).map(|r| &r.kind);
    matches!(kind, Some(RelocationKind::Symbolic { .. } | RelocationKind::JumpSlot { .. }))
}

/// Functions, stubs and slots that are known by name.
fn named(code: Code<'_>) -> impl Iterator<Item = Svma> {
    let image = code.image;
    let looks = move |name: &str| looks_at_its_caller(name) || code.elsewhere.contains(without_version(name));
    let symbols = image.symbols_with_aliases().iter();
    let defined = symbols.filter(|s| looks_at_its_caller(&s.name)).map(|s| s.range.start);
    let stubs = image.plt_slots().iter().filter(move |s| s.name.as_deref().is_some_and(looks));
    let linked = stubs.flat_map(|slot| [slot.stub.start, slot.slot]);
    let slots = image.relocations().iter().filter(move |r| match &r.kind {
        RelocationKind::Symbolic { name, .. } | RelocationKind::JumpSlot { name, .. } => looks(name),
        _ => false,
    });
    defined.chain(linked).chain(slots.map(|r| r.at))
}

/// Names of the functions at `entries`, which the module offers to others, that look at their return
/// addresses.
pub(crate) fn that_look(code: Code<'_>, entries: &[(Svma, &str)]) -> BTreeSet<String> {
    let starts: Vec<Svma> = entries.iter().map(|entry| entry.0).collect();
    let callees = Callees::of(code, &starts);
    let look = entries.iter().filter(|(at, _)| callees.known.of(*at) != Looks::No);
    look.map(|(_, name)| (*name).to_owned()).collect()
}

/// Names of what others define and code of `code` may jump to.
pub(crate) fn onward(code: Code<'_>) -> BTreeSet<String> {
    let (image, sweep) = (code.image, code.sweep);
    let in_slot = |slot: Svma| match &image.relocation_at(slot)?.kind {
        RelocationKind::Symbolic { name, .. } | RelocationKind::JumpSlot { name, .. } => Some(&**name),
        _ => None,
    };
    let name = |jump: &Leaving<'_>| {
        let at = sweep.address(jump.mini);
        let stub = || image.plt_slot_at(sweep.target_of(at)?)?.name.as_deref();
        sweep.named_by(at).and_then(in_slot).or_else(stub)
    };
    let names = leaving(code);
    names.iter().filter_map(name).map(|name| without_version(name).to_owned()).collect()
}

/// What a function does with its return address. `called`: something calls it, whatever its rows say of its
/// start (those of `__morestack` hide it from unwinders).
fn looks_of(code: Code<'_>, span: &Span, called: bool) -> Looks {
    let doubt = &span.doubt;
    let at_least = |seen: &BTreeSet<Svma>| {
        let missed = doubt.touches.iter().any(|at| !seen.contains(at));
        if missed { Looks::Reads } else { Looks::No }
    };
    if doubt.is_part && !called {
        // What is known at its start is known to its function only.
        at_least(&BTreeSet::new())
    } else if doubt.is_part || !doubt.is_clear() {
        let followed = follow(code, span.range.start);
        followed.looks.max(at_least(&followed.seen))
    } else {
        Looks::No
    }
}

/// Targets of direct calls.
struct Called {
    /// Starts of functions.
    heads: AddressSet,
    /// All others.
    others: BTreeSet<Svma>,
}

impl Called {
    /// `entries`: what other modules may call, if it is asked for that alone. What is called there and not
    /// swept does not matter then.
    fn of(sweep: &Sweep, entries: &[Svma]) -> Self {
        let mut called = Self { heads: AddressSet::new(sweep.text), others: BTreeSet::new() };
        entries.iter().for_each(|at| called.heads.insert(*at));
        for &(at, to) in &sweep.targets {
            if called.heads.contains(to)
                || sweep.mini_at(at).is_none_or(|i| sweep.minis[i].kind != Kind::Call)
            {
                continue;
            }
            if sweep.is_head(to) {
                called.heads.insert(to);
            } else if entries.is_empty() || sweep.span_at(to).is_some() {
                called.others.insert(to);
            }
        }
        called
    }
}
