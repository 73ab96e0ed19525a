//! Greedy chains (Pettis and Hansen, *Profile guided code positioning*, PLDI 1990, section 4.2.2, bottom-up).
//!
//! The heaviest edge first, two chains are joined if the edge goes from the tail of one to the head of the other. An edge
//! can be made a fall-through whatever it was before, except through a jump table and for the taken side of branches that
//! cannot be inverted (`loop`, `jrcxz`). Ties go to the lower source address, then the lower target address.
//!
//! Greedy reaches at least a third of the best possible fall-through weight (three matroid constraints: one successor, one
//! predecessor, no cycle) and usually nearly all. It can, on contrived graphs, be worse than the order that is there; then
//! that order is kept, so that a layout never has fewer fall-throughs than the original.

use restitch_profile::Profile;
use restitch_program::{BlockId, EdgeKind, Program, Terminator};

/// Joins `members` (by [`BlockId`]) to chains. Chains are in the order of their first blocks.
pub(crate) fn chains(program: &Program, profile: &Profile, members: &[bool]) -> Vec<Vec<BlockId>> {
    let mut joints = joints(program, profile, members);
    let mut original = Links::new(program.blocks.len());
    for joint in joints.iter().filter(|j| is_in_place(program, j.from, j.to)) {
        original.join(joint);
    }
    joints.sort_unstable_by_key(|j| (std::cmp::Reverse(j.weight), j.from, j.to));
    let mut greedy = Links::new(program.blocks.len());
    for joint in &joints {
        greedy.join(joint);
    }
    let best = if original.weight > greedy.weight { original } else { greedy };
    best.chains(members)
}

/// Joins given chains of `members` further, end to end, by the same rule.
pub(crate) fn extend_chains(
    program: &Program,
    profile: &Profile,
    members: &[bool],
    chains: &[Vec<BlockId>],
) -> Vec<Vec<BlockId>> {
    let mut links = Links::new(program.blocks.len());
    for pair in chains.iter().flat_map(|chain| chain.windows(2)) {
        links.join(&Joint { weight: 0, from: pair[0], to: pair[1] });
    }
    let mut joints = joints(program, profile, members);
    joints.sort_unstable_by_key(|j| (std::cmp::Reverse(j.weight), j.from, j.to));
    joints.iter().for_each(|joint| links.join(joint));
    links.chains(members)
}

/// Something that would be a fall-through if two blocks stood one behind the other.
struct Joint {
    weight: u64,
    from: BlockId,
    to: BlockId,
}

/// All executed pairs that may be joined, each once, sorted by source and target.
fn joints(program: &Program, profile: &Profile, members: &[bool]) -> Vec<Joint> {
    let mut joints: Vec<Joint> = Vec::new();
    for (edge, &weight) in program.edges.iter().zip(&profile.edges) {
        let inside = members[edge.from.index()] && members[edge.to.index()];
        let short = matches!(program.block(edge.from).terminator, Terminator::ShortConditional(_));
        let fixed = edge.kind == EdgeKind::Table || (short && edge.kind == EdgeKind::Taken);
        if weight == 0 || !inside || fixed || edge.from == edge.to {
            continue;
        }
        match joints.iter_mut().rev().take_while(|j| j.from == edge.from).find(|j| j.to == edge.to) {
            Some(same) => same.weight = same.weight.saturating_add(weight),
            None => joints.push(Joint { weight, from: edge.from, to: edge.to }),
        }
    }
    joints.sort_unstable_by_key(|j| (j.from, j.to));
    joints
}

fn is_in_place(program: &Program, from: BlockId, to: BlockId) -> bool {
    program.block(from).end() == program.block(to).start
}

const NONE: u32 = u32::MAX;

/// Who stands behind whom.
struct Links {
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Union-find over chains.
    chain: Vec<u32>,
    weight: u64,
}

impl Links {
    fn new(blocks: usize) -> Self {
        Self {
            next: vec![NONE; blocks],
            previous: vec![NONE; blocks],
            chain: (0..blocks as u32).collect(),
            weight: 0,
        }
    }

    fn find(&mut self, mut block: u32) -> u32 {
        while self.chain[block as usize] != block {
            self.chain[block as usize] = self.chain[self.chain[block as usize] as usize];
            block = self.chain[block as usize];
        }
        block
    }

    fn join(&mut self, joint: &Joint) {
        let (from, to) = (joint.from.index(), joint.to.index());
        if self.next[from] != NONE || self.previous[to] != NONE {
            return;
        }
        let (a, b) = (self.find(joint.from.0), self.find(joint.to.0));
        if a != b {
            self.chain[a.max(b) as usize] = a.min(b);
            self.next[from] = joint.to.0;
            self.previous[to] = joint.from.0;
            self.weight = self.weight.saturating_add(joint.weight);
        }
    }

    fn chains(&self, members: &[bool]) -> Vec<Vec<BlockId>> {
        let heads = (0..self.next.len()).filter(|&b| members[b] && self.previous[b] == NONE);
        heads
            .map(|head| {
                let follow = |&b: &u32| Some(self.next[b as usize]).filter(|&n| n != NONE);
                std::iter::successors(Some(head as u32), follow).map(BlockId).collect()
            })
            .collect()
    }
}
