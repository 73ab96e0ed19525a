//! Which free place a version gets.
//!
//! **No place that a version had before**, as far as is known: unwinders may keep what they found out about
//! an address for ever (nongnu libunwind does). The journal knows the places of its own time; against those
//! of an earlier attach helps chance.
//!
//! **No place that words of memory point into.** A retired version is unmapped when no word of the process's
//! memory points into it ([`crate::memory::search`]), so a place is compared with the words that there are
//! when it is chosen, and the one that fewest point into is taken. Below 4 GiB, where programs at fixed
//! addresses and their versions are, each number of 32 bits that lies in memory as a word of 64 looks like an
//! address: lengths, limits, counts; and since words count at whatever byte they begin, small numbers look
//! like the lowest addresses. The C library alone keeps 3,093,558 (0x2f3436, its non-temporal threshold) with
//! some processors. At higher addresses it is what was mapped there before: freed memory of the C library
//! still says where the stacks and thread-local data of ended threads were, and a storm of threads has had
//! stacks and arenas in all of the next GiB. What the program computes later may look like an address still.

use crate::memory::stray_pointers::StrayPointers;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{Gap, GapError, GapRequest, Mapping, Side, find_gap, find_places};
use std::time::{SystemTime, UNIX_EPOCH};

/// The place for `request` among `maps`: below the module if possible, of no version before (`used`) if there
/// is room for that, at a distance that is left to chance, and where as few of the `strays` as can be point
/// to. They are asked for with the window that all places are in.
pub(crate) fn find(
    maps: &[Mapping],
    used: Vec<AvmaRange>,
    request: &GapRequest,
    strays: impl FnOnce(AvmaRange) -> StrayPointers,
) -> Result<Gap, GapError> {
    let nearest = find_gap(maps, request)?;
    let Some(model) = maps.first() else { return Ok(nearest) };
    let line = |range: AvmaRange| Mapping { range, ..model.clone() };
    let with = |more: Vec<AvmaRange>| merged(maps.to_vec(), more.into_iter().map(line).collect());
    let by_chance = with(used.iter().copied().chain([skipped(nearest)]).collect());
    let kinds = [&by_chance, &with(used), maps];
    let near = request.near;
    let window = AvmaRange::between(
        Avma::new(near.end.get().saturating_sub(request.reach)),
        Avma::new(near.start.get().saturating_add(request.reach)),
    );
    let strays = strays(window);
    let found = quietest(&kinds, request, nearest.side, |range| strays.within(range));
    Ok(found.unwrap_or(nearest))
}

/// Of all places in `kinds` of maps one with the least `cost`: among those on the wanted side if there is
/// one, then of the first kind that has one, the nearest.
fn quietest(
    kinds: &[&[Mapping]],
    request: &GapRequest,
    side: Side,
    cost: impl Fn(AvmaRange) -> u64,
) -> Option<Gap> {
    let mut best: Option<((u64, bool), Gap)> = None;
    for maps in kinds {
        let Ok(places) = find_places(maps, request) else { continue };
        for gap in places {
            let key = (cost(gap.range), gap.side != side);
            if best.as_ref().is_none_or(|(least, _)| key < *least) {
                best = Some((key, gap));
            }
            if key.0 == 0 {
                // What comes behind it is no better.
                break;
            }
        }
    }
    best.map(|(_, gap)| gap)
}

/// What lies between the module and a distance from it that is left to chance.
fn skipped(nearest: Gap) -> AvmaRange {
    const MOST_PAGES: u64 = 1 << 17;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // A Weyl sequence spreads neighbouring times over all places.
    let pages = (now.as_micros() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47;
    let distance = pages % MOST_PAGES * PAGE;
    match nearest.side {
        Side::Below => AvmaRange::between(
            Avma::new(nearest.range.end.get().saturating_sub(distance)).align_down(PAGE),
            nearest.range.end,
        ),
        Side::Above => AvmaRange::new(nearest.range.start, distance),
    }
}

/// The union of two memory maps: what is free in it is free in both.
pub(crate) fn merged(mut maps: Vec<Mapping>, more: Vec<Mapping>) -> Vec<Mapping> {
    if more.is_empty() {
        return maps;
    }
    maps.extend(more);
    maps.sort_by_key(|m| (m.range.start, m.range.end));
    let mut out: Vec<Mapping> = Vec::new();
    for mut m in maps {
        if let Some(last) = out.last() {
            m.range.start = m.range.start.max(last.range.end);
        }
        if m.range.start < m.range.end {
            out.push(m);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_procfs::parse_maps;

    fn mapped(ranges: &[(u64, u64)]) -> Vec<Mapping> {
        let lines: String =
            ranges.iter().map(|(from, to)| format!("{from:x}-{to:x} r-xp 0 00:00 0\n")).collect();
        parse_maps(lines.as_bytes()).expect("lines of maps")
    }

    fn near(from: u64, to: u64, len: u64) -> GapRequest {
        GapRequest::near(AvmaRange::between(Avma::new(from), Avma::new(to)), len)
    }

    proptest! {
        /// As few as can be, on the wanted side if that costs nothing, and as near as that allows.
        #[test]
        fn no_place_is_quieter(
            taken in prop::collection::btree_set(16u64..600, 0..12),
            words in prop::collection::vec(0x1_0000u64..0x40_0000, 0..60),
            pages in 1u64..200,
        ) {
            let mut ranges: Vec<(u64, u64)> = taken.iter().map(|p| (p * 4096, (p + 1) * 4096)).collect();
            ranges.push((0x40_0000, 0x41_0000));
            let (maps, request) = (mapped(&ranges), near(0x40_0000, 0x41_0000, pages * 4096));
            let cost = |r: AvmaRange| words.iter().filter(|w| r.contains(Avma::new(**w))).count() as u64;
            let found = quietest(&[&maps], &request, Side::Below, cost).expect("there is room above");
            prop_assert!(maps.iter().all(|m| !m.range.overlaps(&found.range)));
            // What is above has no words in it.
            prop_assert_eq!(cost(found.range), 0);
            let fits = |start: &u64| {
                let range = AvmaRange::new(Avma::new(*start), pages * 4096);
                range.end.get() <= 0x40_0000 && maps.iter().all(|m| !m.range.overlaps(&range)) && cost(range) == 0
            };
            let nearest = (16..1024).map(|p| p * 4096).filter(fits).max();
            prop_assert_eq!(nearest, (found.side == Side::Below).then_some(found.range.start.get()));
        }
    }

    #[test]
    fn where_words_point_everywhere_the_fewest_decide() {
        let (maps, mut request) = (mapped(&[(0x40_0000, 0x41_0000)]), near(0x40_0000, 0x41_0000, 4096));
        request.reach = 0x10_0000;
        let cost = |r: AvmaRange| if r.start == Avma::new(0x48_0000) { 2 } else { 3 };
        let found = quietest(&[&maps], &request, Side::Below, cost).expect("a place");
        assert_eq!((found.range.start, found.side), (Avma::new(0x48_0000), Side::Above));
        let found = quietest(&[&maps], &request, Side::Below, |_| 1).expect("a place");
        assert_eq!((found.range.start, found.side), (Avma::new(0x3f_f000), Side::Below));
    }

    #[test]
    fn high_places_that_words_point_into_are_avoided() {
        // As a program keeps where the stacks of its ended threads were: in the whole of half a GiB below the
        // module, and in one page behind that.
        let high = 0x7f55_0000_0000;
        let (page, far) = (0x1000, 0x2000_0000);
        let stale: Vec<u64> =
            (1..=far / page).map(|i| high - i * page).chain([high - far - 9 * page]).collect();
        let strays = |window: AvmaRange| StrayPointers::of_words(&stale, window);
        let maps = mapped(&[(high, high + page)]);
        let found = find(&maps, Vec::new(), &near(high, high + page, 4 * page), strays).expect("a place");
        assert_eq!(found.side, Side::Below);
        assert!(stale.iter().all(|word| !found.range.contains(Avma::new(*word))), "{found:?}");
    }

    #[test]
    fn places_of_earlier_versions_are_avoided() {
        let (maps, mut request) = (mapped(&[(0x40_0000, 0x41_0000)]), near(0x40_0000, 0x41_0000, 0x1000));
        request.reach = 0x1_2000;
        let strays = |window| StrayPointers::of(std::iter::empty(), window);
        let range = |from, to| AvmaRange::between(Avma::new(from), Avma::new(to));
        let place = |used: Vec<AvmaRange>| find(&maps, used, &request, strays).expect("a place").range.start;
        assert_eq!(place(vec![range(0x3f_f000, 0x40_0000)]), Avma::new(0x3f_e000));
        // Rather than above the module, where things grow.
        assert_eq!(place(vec![range(0x3f_e000, 0x40_0000)]), Avma::new(0x3f_f000));
    }
}
