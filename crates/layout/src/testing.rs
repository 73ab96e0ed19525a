//! Layouts for tests of what comes behind a layout: emission, its proof, output files.

use std::collections::HashSet;

use restitch_program::{BlockId, Edge, EdgeKind, Program, Terminator};

use crate::model::{Fragment, Layout, Prefetch, Tail};

/// All blocks in the original order.
pub fn whole(program: &Program) -> Layout {
    let fragment = |f| Fragment { blocks: program.blocks_of(f).collect(), align: 16 };
    let hot = program.function_ids().map(fragment).filter(|f| !f.blocks.is_empty()).collect();
    Layout { hot, ..Layout::default() }
}

/// All blocks in a random order, cut into fragments, a third of them cold.
pub fn shuffled(program: &Program, mut seed: u64) -> Layout {
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let mut blocks: Vec<BlockId> = program.block_ids().collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random(i + 1));
    }
    let mut layout = Layout::default();
    let mut rest = &blocks[..];
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(rest.len().min(1 + random(20)));
        let fragment = Fragment { blocks: head.to_vec(), align: 1 << random(6) };
        if random(3) == 0 {
            layout.cold.push(fragment)
        } else {
            layout.hot.push(fragment)
        }
        rest = tail;
    }
    layout
}

/// Random duplicates behind half of the blocks: ways from block to block, of up to five.
pub fn duplicated(program: &Program, mut layout: Layout, mut seed: u64) -> Layout {
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let placed: HashSet<BlockId> = layout.blocks().collect();
    let mut behind: Vec<BlockId> = layout.blocks().filter(|_| random(2) == 0).collect();
    behind.sort_unstable();
    for block in behind {
        let (mut at, mut blocks) = (block, Vec::new());
        for _ in 0..1 + random(5) {
            let falls = |e: &Edge| e.kind != EdgeKind::Table && placed.contains(&e.to);
            let ways: Vec<BlockId> =
                program.out_edges(at).map(|(_, e)| e).filter(|e| falls(e)).map(|e| e.to).collect();
            if ways.is_empty() || matches!(program.block(at).terminator, Terminator::ShortConditional(_)) {
                break;
            }
            at = ways[random(ways.len())];
            blocks.push(at);
        }
        let conditional = matches!(program.block(at).terminator, Terminator::Conditional(..));
        if !blocks.is_empty() {
            layout.tails.push(Tail { behind: block, blocks, turned: conditional && random(2) == 0 });
        }
    }
    layout
}

/// A third of the blocks that can fetch a byte of a random block ahead; some of these blocks may be in no
/// fragment of the layout.
pub fn fetching(program: &Program, mut layout: Layout, mut seed: u64) -> Layout {
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let may = |id: &BlockId| program.block(*id).terminator_at() != program.block(*id).start;
    let mut at: Vec<BlockId> = layout.blocks().filter(may).collect();
    at.sort_unstable();
    for at in at {
        let (target, offset) = (BlockId(random(program.blocks.len()) as u32), random(40) as u32);
        if random(3) == 0 {
            layout.prefetches.push(Prefetch { at, target, offset });
        }
    }
    layout
}

/// Half of the blocks of [`shuffled`]: control goes back to the original code all the time.
pub fn half(program: &Program, seed: u64) -> Layout {
    let mut layout = shuffled(program, seed);
    for fragment in layout.hot.iter_mut().chain(&mut layout.cold) {
        fragment.blocks.retain(|b| (b.0 ^ b.0 >> 3 ^ seed as u32) & 1 == 0);
    }
    layout.hot.retain(|f| !f.blocks.is_empty());
    layout.cold.retain(|f| !f.blocks.is_empty());
    layout
}
