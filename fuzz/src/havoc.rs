//! Damage: the mutations of AFL's havoc stage, in a fixed pseudo-random order.

use restitch_profile::testing::Random;

/// Values that decide about overflows and sign changes.
const INTERESTING: [u64; 9] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0x8000_0000, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// A damaged copy of `seed`: one to eight changes, now and then a cut.
pub fn damage(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..1 + random.below(8) {
        if !data.is_empty() {
            change(&mut data, random);
        }
    }
    if random.chance(0.05) {
        data.truncate(random.below(data.len() + 1));
    }
    data
}

fn change(data: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(data.len());
    let value = random.bits();
    match random.below(7) {
        0 => data[at] ^= 1 << random.below(8),
        1 => data[at] = value as u8,
        2 => data[at] = data[at].wrapping_add((value % 71) as u8).wrapping_sub(35),
        3 | 4 => {
            let width = 1 << random.below(4);
            let bytes = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
            let end = data.len().min(at + width);
            data[at..end].copy_from_slice(&bytes[..end - at]);
        }
        5 => {
            let (from, len) = (random.below(data.len()), 1 + random.below(32));
            let len = len.min(data.len() - at).min(data.len() - from);
            data.copy_within(from..from + len, at);
        }
        _ => {
            let len = (1 + random.below(16)).min(data.len() - at);
            if random.chance(0.5) {
                data.drain(at..at + len);
            } else {
                let copy = data[at..at + len].to_vec();
                data.splice(at..at, copy);
            }
        }
    }
}
