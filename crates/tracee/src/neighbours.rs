//! Places of memory that are read in one go: the pages of such a run are those of its places, and no others.

use restitch_address::{Avma, AvmaRange, PAGE};

/// Most bytes in a run, as far as its first place is not longer: they stay in a processor's own caches.
const MOST: u64 = 128 << 10;

/// `items` in runs, with the range of each. `range` says where one lies. Each begins in the last page of the
/// one before it, or in the next page.
pub(crate) fn runs<T>(
    items: &[T],
    range: impl Fn(&T) -> AvmaRange,
) -> impl Iterator<Item = (AvmaRange, &[T])> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut all = range(rest.first()?);
        let mut taken = 1;
        while let Some(next) = rest.get(taken).map(&range) {
            let follows = all.start <= next.start && next.start <= end_of_pages(all.end);
            if !follows || next.end.get() - all.start.get() > MOST {
                break;
            }
            all.end = all.end.max(next.end);
            taken += 1;
        }
        let (run, others) = rest.split_at(taken);
        rest = others;
        Some((all, run))
    })
}

fn end_of_pages(end: Avma) -> Avma {
    Avma::new(end.get().checked_next_multiple_of(PAGE).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range((at, len): &(u64, u64)) -> AvmaRange {
        AvmaRange::new(Avma::new(*at), *len)
    }

    #[test]
    fn places_of_the_same_and_the_next_page_are_one_run() {
        let places = [(0x1000, 8), (0x1ff0, 8), (0x2000, 0x1000), (0x3000, 8), (0x5000, 8), (0x1000, 8)];
        let found: Vec<_> =
            runs(&places, range).map(|(all, run)| (all.start.get(), all.end.get(), run.len())).collect();
        assert_eq!(found, [(0x1000, 0x3008, 4), (0x5000, 0x5008, 1), (0x1000, 0x1008, 1)]);
    }

    proptest! {
        #[test]
        fn a_run_touches_no_page_that_its_places_do_not(places in prop::collection::vec((0u64..1 << 20, 1u64..9000), 0..60)) {
            let found: Vec<_> = runs(&places, range).collect();
            prop_assert_eq!(found.iter().flat_map(|(_, run)| run.iter()).copied().collect::<Vec<_>>(), places.clone());
            for (all, run) in found {
                for page in (all.start.align_down(PAGE).get()..all.end.get()).step_by(PAGE as usize) {
                    let page = AvmaRange::new(Avma::new(page), PAGE);
                    prop_assert!(run.iter().any(|place| range(place).overlaps(&page)));
                }
            }
        }
    }
}
