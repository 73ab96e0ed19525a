//! What a tracing version has beside its code, and what it has not.

use crate::subject::Subject;
use restitch_emit::window::{self, BurstTable};

/// Checks the form of a tracing version and where its window and the table for its look-ups are.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(s: &Subject<'_>, table: &BurstTable) -> Result<(), &'static str> {
    let v = s.version;
    let none = v.redirects.is_empty() && v.map.places.is_empty() && v.counters.is_none();
    if !none || [v.tables, v.lsda].iter().any(|part| !part.is_empty()) {
        return Err("it has redirects, places, counters or tables");
    }
    if !(4..=24).contains(&table.bits) {
        return Err("the table of its window has an odd size");
    }
    let window = table.window;
    let is_whole = window::window_len(table.bits) == window.len();
    let has_room = is_whole || window::WORDS_LEN == window.len();
    if !has_room || window.overlaps(&v.loaded()) || window.overlaps(&s.image.span()) {
        return Err("its window is too short or lies on something else");
    }
    let own = s.bias.map(|bias| bias.to_actual(window.start) + window::TABLE);
    if is_whole && own != Some(table.table) {
        return Err("its look-ups search another window than its own, which is whole");
    }
    Ok(())
}
