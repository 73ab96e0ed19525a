//! A set-associative memory with least-recently-used replacement: caches, TLBs and branch target buffers.

use crate::machine::Geometry;

/// Keys that are present.
#[derive(Debug, Clone)]
pub struct Cache {
    ways: usize,
    mask: u64,
    /// Ways of each set, the last used first.
    keys: Vec<u64>,
    /// Lookups that missed.
    pub misses: u64,
}

/// A key that no address has.
const EMPTY: u64 = u64::MAX;

impl Cache {
    /// An empty one of this shape.
    pub fn new(geometry: Geometry) -> Self {
        let (sets, ways) = (geometry.sets.max(1).next_power_of_two(), geometry.ways.max(1));
        Self { ways, mask: sets as u64 - 1, keys: vec![EMPTY; sets * ways], misses: 0 }
    }

    /// Looks `key` up and makes it the last used; whether it was there.
    pub fn touch(&mut self, key: u64) -> bool {
        let first = (key & self.mask) as usize * self.ways;
        let set = &mut self.keys[first..first + self.ways];
        let found = set.iter().position(|&k| k == key);
        set[..=found.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = key;
        self.misses += u64::from(found.is_none());
        found.is_some()
    }

    /// Brings `key` in without being asked for it: no lookup is counted.
    pub fn fetch(&mut self, key: u64) {
        let misses = self.misses;
        self.touch(key);
        self.misses = misses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut cache = Cache::new(Geometry { sets: 1, ways: 2 });
        let seen: Vec<bool> = [1, 2, 1, 3, 1, 2].into_iter().map(|k| cache.touch(k)).collect();
        assert_eq!(seen, [false, false, true, false, true, false]);
        assert_eq!(cache.misses, 4);
    }

    #[test]
    fn sets_do_not_disturb_each_other() {
        let mut cache = Cache::new(Geometry { sets: 4, ways: 1 });
        (0..4).for_each(|k| assert!(!cache.touch(k)));
        (0..4).for_each(|k| assert!(cache.touch(k)));
        assert!(!cache.touch(4) && !cache.touch(0) && cache.touch(1));
    }

    proptest! {
        /// The inclusion property of LRU: more ways never miss more.
        #[test]
        fn more_ways_never_miss_more(keys in prop::collection::vec(0u64..40, 0..300), ways in 1usize..6) {
            let misses = |ways| {
                let mut cache = Cache::new(Geometry { sets: 4, ways });
                keys.iter().for_each(|&k| { cache.touch(k); });
                cache.misses
            };
            prop_assert!(misses(ways + 1) <= misses(ways));
        }
    }
}
