//! Whether a burst comes to an end: cycles of the program in which nothing is recorded.

use restitch_address::Svma;
use restitch_emit::window::BurstBranch;

/// A branch without a record that leads back to itself along none but such branches: control runs straight
/// from each one's target to the next one at or behind it, unless one of `ends` is before that. (Conditional
/// branches that are taken are recorded.)
pub(crate) fn unrecorded_cycle(unnamed: &[BurstBranch], ends: &[Svma]) -> Option<Svma> {
    let mut stops: Vec<BurstBranch> = unnamed.to_vec();
    stops.extend(ends.iter().map(|from| BurstBranch { from: *from, to: None }));
    stops.sort_unstable();
    // Where a walk ends that leads there, or has come there: 0 if nobody has, else the number of the walk.
    let mut walks = vec![0; stops.len()];
    for walk in 1..=stops.len() {
        let mut i = walk - 1;
        while i < stops.len() && walks[i] == 0 {
            walks[i] = walk;
            let Some(to) = stops[i].to else { break };
            i = stops.partition_point(|stop| stop.from < to);
            if walks.get(i) == Some(&walk) {
                return Some(stops[i].from);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_without_a_record_are_found() {
        let at = Svma::new;
        let branch = |from, to: u64| BurstBranch { from: at(from), to: Some(at(to)) };
        let returns = BurstBranch { from: at(0x30), to: None };
        // A call from a loop, whose callee is in front of it and returns; a jump that ends the loop.
        let calls = [branch(0x50, 0x20), branch(0x60, 0x40), branch(0x80, 0x90)];
        let with_return = [returns, calls[0], calls[1], calls[2]];
        assert_eq!(unrecorded_cycle(&with_return, &[]), None);
        // The callee has a loop; runs into the one that calls it, or is left before that; a jump to itself.
        assert_eq!(unrecorded_cycle(&[branch(0x28, 0x20), returns], &[]), Some(at(0x28)));
        assert_eq!(unrecorded_cycle(&calls, &[]), Some(at(0x50)));
        assert_eq!(unrecorded_cycle(&calls, &[at(0x48)]), None);
        assert_eq!(unrecorded_cycle(&[branch(0x10, 0x10)], &[]), Some(at(0x10)));
        assert_eq!(unrecorded_cycle(&[], &[]), None);
    }
}
