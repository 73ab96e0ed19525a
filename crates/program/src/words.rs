//! Words of data that jump tables consist of.

use crate::model::{JumpTable, TableEncoding};
use restitch_address::Svma;

/// The words of recognised tables of absolute addresses: they are no addresses taken, since the jumps that
/// read them are understood.
pub(crate) struct TableWords {
    /// Start and end of each table, sorted, joined.
    ranges: Vec<(Svma, Svma)>,
}

impl TableWords {
    /// Those that are believed to belong to a table.
    pub fn of(tables: &[JumpTable]) -> Self {
        Self::new(tables, |table| table.targets.len())
    }
    /// Those that may belong to a table.
    pub fn with_tails(tables: &[JumpTable]) -> Self {
        Self::new(tables, |table| table.targets.len() + table.tail.len())
    }

    fn new(tables: &[JumpTable], len: fn(&JumpTable) -> usize) -> Self {
        let mut ranges: Vec<(Svma, Svma)> = tables
            .iter()
            .filter(|t| t.encoding == TableEncoding::Absolute8)
            .map(|t| (t.table, t.table + 8 * len(t) as u64))
            .collect();
        ranges.sort_unstable();
        ranges.dedup_by(|b, a| {
            let joined = b.0 <= a.1;
            if joined {
                a.1 = a.1.max(b.1);
            }
            joined
        });
        Self { ranges }
    }
    /// Whether there is such a word at `at`.
    pub fn contains(&self, at: Svma) -> bool {
        let i = self.ranges.partition_point(|r| r.0 <= at);
        i > 0 && at < self.ranges[i - 1].1
    }
}
