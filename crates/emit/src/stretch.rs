//! Stretches of the version that come from one function: what gets one unwind entry and one symbol.

use crate::model::VersionSymbol;
use crate::plan::Plan;
use crate::request::Request;
use restitch_address::SvmaRange;
use restitch_program::FuncId;
use std::ops::Range;

/// Neighbouring slots of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub function: FuncId,
    /// Slot numbers: indices into [`Stretches::order`].
    pub slots: Range<usize>,
    /// Offset of the first byte in the version.
    pub start: u32,
    /// Offset behind the last byte; not `start`.
    pub end: u32,
    /// Whether it is among the hot code.
    pub hot: bool,
}

/// All stretches in order of address.
pub(crate) struct Stretches {
    /// Slot numbers in order of address.
    pub order: Vec<u32>,
    pub all: Vec<Stretch>,
}

/// Finds them.
pub(crate) fn stretches(plan: &Plan) -> Stretches {
    let order: Vec<u32> = plan.order().map(|slot| slot as u32).collect();
    let mut all: Vec<Stretch> = Vec::new();
    for (i, &number) in order.iter().enumerate() {
        let slot = &plan.slots[number as usize];
        let hot = i < plan.hot_len();
        match all.last_mut() {
            Some(last) if last.function == slot.function && last.hot == hot => {
                last.slots.end = i + 1;
                last.end = slot.end;
            }
            _ => all.push(Stretch {
                function: slot.function,
                slots: i..i + 1,
                start: slot.start,
                end: slot.end,
                hot,
            }),
        }
    }
    all.retain(|stretch| stretch.start != stretch.end);
    Stretches { order, all }
}

/// Names for them: `f` where the function's entry is, `f.part` for other hot pieces, `f.cold` for the rest.
pub(crate) fn symbols(request: &Request<'_>, plan: &Plan, stretches: &Stretches) -> Vec<VersionSymbol> {
    let name = |stretch: &Stretch| {
        let function = request.program.function(stretch.function);
        let mut name = match &function.name {
            Some(name) => name.to_string(),
            None => format!("sub_{:x}", function.range.start.get()),
        };
        let mut slots = stretches.order[stretch.slots.clone()].iter().map(|slot| &plan.slots[*slot as usize]);
        let has_entry =
            slots.any(|slot| !slot.stub && !slot.duplicate && Some(slot.block) == function.entry_block());
        if !has_entry && !name.ends_with(".cold") {
            name.push_str(if stretch.hot { ".part" } else { ".cold" });
        }
        name
    };
    let symbol = |stretch: &Stretch| VersionSymbol {
        name: name(stretch),
        range: SvmaRange::between(plan.at(stretch.start), plan.at(stretch.end)),
    };
    stretches.all.iter().map(symbol).collect()
}
