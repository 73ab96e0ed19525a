//! From records to branches.
//!
//! Problem: direct jumps and calls leave no record, and those of returns and other indirect branches say only
//! where they went. Idea: who follows the program straight on from one branch's target comes to the next
//! branch that no record names, or before it to the one that the next record names: a conditional branch that
//! was taken. So a burst's way is known as exactly as if each branch had left a record.

use super::BurstEnd;
use restitch_address::{Avma, LoadBias};
use restitch_emit::window::{self, BurstBranch, BurstTable};
use restitch_evaluate::Taken;

/// Most branches that a burst can tell of: a program whose direct branches lead through many others could
/// make each record stand for so many that memory ends.
const MOST_BRANCHES: usize = 1 << 22;

/// What there is to know for it, of all modules.
#[derive(Debug)]
pub(super) struct Decoder {
    /// What control that runs straight on comes to without a record's naming it, by address.
    stops: Vec<Stop>,
    /// By module: the first number and what the numbers from it on mean.
    numbers: Vec<(u32, Vec<Numbered>)>,
}

/// A direct branch with a number.
#[derive(Debug, Clone, Copy)]
struct Numbered {
    from: Avma,
    to: Place,
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    at: Avma,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A direct jump or call.
    Direct(Place),
    /// A branch whose target is in a record.
    Indirect,
    /// The burst ends here: what comes next has no copy.
    Leave,
}

/// Where the program is between two branches: an address, and which stop is the first at or behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    at: Avma,
    stop: u32,
}

impl Decoder {
    /// That of tables, each with what is added to its module's addresses. Their numbers ascend.
    pub fn new(modules: &[(LoadBias, &BurstTable)]) -> Self {
        let mut stops = Vec::new();
        for (bias, table) in modules {
            let direct = |to| Kind::Direct(Place { at: bias.to_actual(to), stop: 0 });
            let kind = |branch: &BurstBranch| branch.to.map_or(Kind::Indirect, direct);
            stops.extend(table.unnamed.iter().map(|b| Stop { at: bias.to_actual(b.from), kind: kind(b) }));
            stops.extend(table.leaves.iter().map(|at| Stop { at: bias.to_actual(*at), kind: Kind::Leave }));
        }
        stops.sort_unstable_by_key(|stop| stop.at);
        let at: Vec<Avma> = stops.iter().map(|stop| stop.at).collect();
        let place = |to: Avma| Place { at: to, stop: at.partition_point(|at| *at < to) as u32 };
        for stop in &mut stops {
            if let Kind::Direct(to) = &mut stop.kind {
                *to = place(to.at);
            }
        }
        let numbered = |bias: LoadBias, b: &BurstBranch| {
            let to = b.to.unwrap_or(b.from);
            Numbered { from: bias.to_actual(b.from), to: place(bias.to_actual(to)) }
        };
        let numbers = modules
            .iter()
            .map(|(bias, table)| (table.first, table.branches.iter().map(|b| numbered(*bias, b)).collect()))
            .collect();
        Self { stops, numbers }
    }

    /// The branches of a burst that began at `start`, oldest first. Its indirect branches went to what the
    /// window's `table` holds at the places that records name. It ends early where a record means nothing.
    pub fn branches(&self, table: &[u8], start: Avma, records: &[u8], end: BurstEnd) -> Vec<Taken> {
        let mut branches = Vec::with_capacity(records.len() / 2);
        let mut place = self.place(start);
        for record in records.chunks_exact(4) {
            let record = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
            let next = match record & window::INDIRECT {
                0 => self.direct(place, record, &mut branches),
                _ => self.indirect(place, table, record & !window::INDIRECT, &mut branches),
            };
            let Some(next) = next.filter(|_| branches.len() < MOST_BRANCHES) else { return branches };
            place = next;
        }
        // How far a burst came that ended at a record, or was ended in between, is not known.
        if matches!(end, BurstEnd::NoCopy | BurstEnd::NoTarget) {
            self.follow(place, None, &mut branches);
        }
        branches
    }

    fn place(&self, at: Avma) -> Place {
        Place { at, stop: self.stops.partition_point(|stop| stop.at < at) as u32 }
    }

    fn direct(&self, place: Place, number: u32, branches: &mut Vec<Taken>) -> Option<Place> {
        let i = self.numbers.partition_point(|(first, _)| *first <= number).checked_sub(1)?;
        let (first, of_module) = &self.numbers[i];
        let branch = of_module.get((number - first) as usize)?;
        self.follow(place, Some(branch.from), branches)?;
        branches.push(Taken { from: branch.from, to: branch.to.at });
        Some(branch.to)
    }

    fn indirect(&self, place: Place, table: &[u8], offset: u32, branches: &mut Vec<Taken>) -> Option<Place> {
        let to: [u8; 8] = table.get(offset as usize..)?.first_chunk().copied()?;
        let to = Avma::new(u64::from_le_bytes(to));
        let stop = self.follow(place, None, branches).filter(|stop| stop.kind == Kind::Indirect)?;
        branches.push(Taken { from: stop.at, to });
        Some(self.place(to))
    }

    /// Follows direct branches to the next stop that is none; or else until control runs straight on to
    /// `until`, which is told by that stop, or by a stop behind `until`. `None` if it never comes to either.
    fn follow(&self, mut place: Place, until: Option<Avma>, branches: &mut Vec<Taken>) -> Option<Stop> {
        const BEHIND_ALL: Stop = Stop { at: Avma::new(u64::MAX), kind: Kind::Leave };
        // There is no cycle of such branches in a version; but a record is what the program's memory holds.
        for _ in 0..=self.stops.len() {
            let stop = self.stops.get(place.stop as usize).copied().unwrap_or(BEHIND_ALL);
            if let Some(until) = until
                && (place.at..stop.at).contains(&until)
            {
                return Some(stop);
            }
            match stop.kind {
                Kind::Direct(to) => {
                    branches.push(Taken { from: stop.at, to: to.at });
                    place = to;
                }
                _ => return until.is_none().then_some(stop),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_address::{Svma, SvmaRange};

    const BIAS: u64 = 0x10_0000;

    /// 0x100: conditional to 0x140 (7). 0x110: call of 0x200. 0x120: jump to 0x100 (8). 0x148: way out.
    /// 0x208: conditional to 0x220 (9). 0x210: jump to 0x220. 0x230: return.
    fn decoder() -> Decoder {
        let at = Svma::new;
        let branch = |from, to: Option<u64>| BurstBranch { from: at(from), to: to.map(at) };
        let table = BurstTable {
            window: SvmaRange::new(at(0x8000), 0x1000),
            table: Avma::new(BIAS + 0x8000 + window::TABLE),
            bits: 4,
            first: 7,
            branches: vec![
                branch(0x100, Some(0x140)),
                branch(0x120, Some(0x100)),
                branch(0x208, Some(0x220)),
            ],
            unnamed: vec![branch(0x110, Some(0x200)), branch(0x210, Some(0x220)), branch(0x230, None)],
            leaves: vec![at(0x148)],
            entries: Vec::new(),
            inserted: Vec::new(),
        };
        Decoder::new(&[(LoadBias::between(at(0), Avma::new(BIAS)), &table)])
    }

    fn decoded(records: &[u32], end: BurstEnd) -> Vec<(u64, u64)> {
        // The pair at 16 is of the address behind the call.
        let table: Vec<u8> = [1, 2, BIAS + 0x115, 3].into_iter().flat_map(u64::to_le_bytes).collect();
        let records: Vec<u8> = records.iter().flat_map(|record| record.to_le_bytes()).collect();
        let branches = decoder().branches(&table, Avma::new(BIAS + 0x104), &records, end);
        branches.iter().map(|b| (b.from.get() - BIAS, b.to.get() - BIAS)).collect()
    }

    const RETURN: u32 = window::INDIRECT | 16;

    /// The window is the program's to write.
    #[test]
    fn a_window_that_lies_ends_the_burst() {
        let first = (0x110, 0x200);
        for record in
            [0, 6, 10, window::INDIRECT - 1, window::INDIRECT | 25, window::INDIRECT | 0x7fff_ffff, u32::MAX]
        {
            let found = decoded(&[record, 7], BurstEnd::Full);
            assert!(
                found.len() <= 3 && found.iter().all(|b| *b == first || b.0 == 0x210 || b.0 == 0x230),
                "{record:x}: {found:x?}"
            );
        }
        // The program says that it has taken what leads through others again and again.
        let many = decoded(&vec![RETURN; 3 * MOST_BRANCHES / 2], BurstEnd::Full);
        assert!(many.len() <= MOST_BRANCHES + 3, "{}", many.len());
    }

    #[test]
    fn direct_branches_are_found_between_records() {
        let all = [
            (0x110, 0x200),
            (0x210, 0x220),
            (0x230, 0x115),
            (0x120, 0x100),
            (0x110, 0x200),
            (0x208, 0x220),
            (0x230, 0x115),
        ];
        assert_eq!(decoded(&[RETURN, 8, 9, RETURN], BurstEnd::Full), all);
        assert_eq!(decoded(&[RETURN, 8, 9], BurstEnd::Full), all[..6]);
        assert_eq!(decoded(&[RETURN], BurstEnd::Signal), all[..3]);
        assert_eq!(decoded(&[], BurstEnd::Full), []);
    }

    #[test]
    fn a_burst_that_comes_to_its_end_by_itself_is_known_to_there() {
        // To the return without a target that is known; to the way out.
        assert_eq!(decoded(&[RETURN, 8], BurstEnd::NoTarget)[4..], [(0x110, 0x200), (0x210, 0x220)]);
        assert_eq!(decoded(&[RETURN, 8, 7], BurstEnd::NoCopy)[4..], [(0x100, 0x140)]);
        assert_eq!(decoded(&[], BurstEnd::NoCopy), [(0x110, 0x200), (0x210, 0x220)]);
    }

    #[test]
    fn records_that_cannot_be_end_it() {
        let before = [(0x110, 0x200), (0x210, 0x220), (0x230, 0x115)];
        for wrong in [6, 10, window::INDIRECT | 32, window::INDIRECT | 25] {
            assert_eq!(decoded(&[RETURN, wrong, 8], BurstEnd::Full)[..3], before);
            assert_eq!(decoded(&[RETURN, wrong, 8], BurstEnd::Full).len(), 3, "{wrong:x}");
        }
        // The next return cannot come before the jump.
        assert_eq!(decoded(&[RETURN, RETURN], BurstEnd::Full).len(), 3);
    }
}
