//! Random programs and random executions of them: for the tests of this crate and of those that use it.

use restitch_address::{Svma, SvmaRange};
use restitch_program::{
    Block, BlockAttrs, BlockId, BlockRange, CallId, CallSite, CallTarget, Condition, EdgeId, EdgeKind,
    FuncId, Function, JumpTable, Movability, Program, TableEncoding, TableId, Terminator, build_edges,
};

use crate::model::Profile;

/// Two functions as text: a loop over an `if` that calls the other one.
pub const TWO_FUNCTIONS: &str = "\
function 0x1000..0x1040 f movable
  0x1000 +16 entry cond(4)/2 -> 0x1020
  0x1010 +16 - fall
    call 0x1014 +5 -> 0x1040
  0x1020 +16 target cond(5)/2 -> 0x1000
  0x1030 +16 - return/1
function 0x1040..0x1050 g movable
  0x1040 +16 entry return/1
";

/// A small, fast, seeded generator (xorshift64*).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    /// A number below `limit` (0 if that is 0).
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { ((self.bits() >> 32) as usize) % limit }
    }
    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.bits() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// What a random program looks like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Number of functions.
    pub functions: usize,
    /// At most so many blocks a function.
    pub blocks: usize,
    /// Share of functions that are not movable.
    pub unmovable: f64,
}

/// A random valid program.
#[derive(Debug, Clone)]
pub struct RandomProgram {
    /// The program.
    pub program: Program,
}

impl RandomProgram {
    /// A program of up to 6 functions with up to 12 blocks each.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self::shaped(seed, Shape { functions: 1 + random.below(6), blocks: 12, unmovable: 0.1 })
    }

    /// A program of this shape.
    pub fn shaped(seed: u64, shape: Shape) -> Self {
        let mut random = Random::new(seed ^ 0x5EED);
        let mut program = tiles(&mut random, shape);
        for id in 0..program.blocks.len() {
            terminate(&mut program, &mut random, id);
        }
        call(&mut program, &mut random);
        program.edges = build_edges(&mut program.blocks, &program.tables);
        Self { program }
    }
}

/// Functions and blocks without terminators.
fn tiles(random: &mut Random, shape: Shape) -> Program {
    let mut program = Program::default();
    let mut at = Svma::new(0x1000);
    for f in 0..shape.functions {
        at = at.align_up(16);
        let (start, first) = (at, program.blocks.len());
        for i in 0..1 + random.below(shape.blocks) {
            let mut attrs = if i == 0 { BlockAttrs::ENTRY } else { BlockAttrs::empty() };
            attrs.set(BlockAttrs::LANDING_PAD, i > 0 && random.chance(0.05));
            attrs.set(BlockAttrs::INDIRECT, i > 0 && random.chance(0.03));
            attrs.set(BlockAttrs::FLAGS_LIVE_IN, random.chance(0.1));
            let len = 8 + random.below(40) as u32;
            program.blocks.push(Block {
                start: at,
                len,
                terminator_len: 0,
                attrs,
                function: FuncId::from_index(f),
                terminator: Terminator::FallThrough,
                first_edge: EdgeId(0),
                edge_count: 0,
                first_call: CallId(0),
                call_count: 0,
            });
            at = at + u64::from(len);
        }
        program.functions.push(Function {
            range: SvmaRange::between(start, at),
            name: Some(format!("f{f}").into()),
            blocks: BlockRange::new(BlockId::from_index(first), (program.blocks.len() - first) as u32),
            movability: if random.chance(shape.unmovable) {
                Movability::OddUnwindInfo
            } else {
                Movability::Movable
            },
            redirectable: true,
        });
    }
    program
}

/// Gives block number `id` a terminator: mostly within its function and near, sometimes to another function.
fn terminate(program: &mut Program, random: &mut Random, id: usize) {
    let function = program.functions[program.blocks[id].function.index()].clone();
    let (first, count) = (function.blocks.indices().start, function.blocks.len());
    let last = id + 1 == first + count;
    let inside = |random: &mut Random| first + random.below(count);
    let target = if random.chance(0.06) { random.below(program.blocks.len()) } else { inside(random) };
    let to = program.blocks[target].start;
    let kind = random.below(100);
    let terminator = match kind {
        0..48 if !last => Terminator::Conditional(Condition::ALL[random.below(16)], to),
        48..68 if !last => Terminator::FallThrough,
        68..70 if !last => Terminator::ShortConditional(to),
        48..82 => Terminator::Jump(to),
        82..86 => {
            let targets = (0..1 + random.below(4)).map(|_| program.blocks[inside(random)].start).collect();
            let jump_at = program.blocks[id].end() + u64::MAX - 1;
            program.tables.push(JumpTable {
                jump_at,
                load_at: jump_at,
                table: Svma::new(0x10_0000),
                base: Svma::new(0x10_0000),
                encoding: TableEncoding::Absolute8,
                targets,
                tail: Vec::new(),
                copyable: true,
            });
            Terminator::Table(TableId::from_index(program.tables.len() - 1))
        }
        86..88 => Terminator::IndirectJump,
        88..90 => Terminator::Stop,
        _ => Terminator::Return,
    };
    let block = &mut program.blocks[id];
    block.terminator_len = if terminator == Terminator::FallThrough { 0 } else { 2 };
    block.terminator = terminator;
    if let Terminator::Jump(_) | Terminator::Conditional(..) | Terminator::ShortConditional(_) = terminator {
        program.blocks[target].attrs |= BlockAttrs::BRANCH_TARGET;
    }
}

/// Puts calls of function entries into a quarter of the blocks.
fn call(program: &mut Program, random: &mut Random) {
    for id in 0..program.blocks.len() {
        program.blocks[id].first_call = CallId::from_index(program.calls.len());
        if random.chance(0.25) {
            let callee = &program.functions[random.below(program.functions.len())];
            let target = if random.chance(0.2) {
                CallTarget::Indirect
            } else {
                CallTarget::Direct(callee.range.start)
            };
            let at = program.blocks[id].start + 1;
            program.calls.push(CallSite { at, len: 5, block: BlockId::from_index(id), target });
            program.blocks[id].call_count = 1;
        }
    }
}

/// The exact counts of `runs` random executions, each from a function's entry to a way out. Where a block
/// holds a call, the execution ends there with probability `loss` (the call does not return), and half of the
/// time goes on at a landing pad of the same function. Branch probabilities are fixed for each block, mostly
/// biased.
pub fn walk(program: &Program, seed: u64, runs: usize, loss: f64) -> Profile {
    let mut random = Random::new(seed ^ 0xBEEF);
    let mut profile = Profile::empty(program);
    let distance = distance_to_exit(program);
    let bias: Vec<f64> = program.blocks.iter().map(|_| [0.02, 0.1, 0.5, 0.9][random.below(4)]).collect();
    let starts: Vec<BlockId> = program
        .function_ids()
        .filter_map(|f| program.entry_block(f))
        .filter(|b| distance[b.index()] != u32::MAX)
        .collect();
    if starts.is_empty() {
        return profile;
    }
    for _ in 0..runs {
        // Low-numbered functions run more often.
        let among = 1 + random.below(starts.len());
        let mut at = starts[random.below(among)];
        let mut steps = 0;
        loop {
            profile.blocks[at.index()] += 1;
            for id in 0..program.block(at).call_count {
                profile.calls[(program.block(at).first_call.0 + id) as usize] += 1;
            }
            if program.block(at).call_count > 0 && random.chance(loss) {
                match landing_pad(program, at, &distance, &mut random) {
                    Some(pad) if random.chance(0.5) => at = pad,
                    _ => break,
                }
                continue;
            }
            steps += 1;
            match step(program, at, &distance, &bias, steps > 200, &mut random) {
                Some((edge, to)) => {
                    profile.edges[edge.index()] += 1;
                    at = to;
                }
                None => break,
            }
        }
    }
    profile
}

fn landing_pad(program: &Program, at: BlockId, distance: &[u32], random: &mut Random) -> Option<BlockId> {
    let pads: Vec<BlockId> = program
        .blocks_of(program.block(at).function)
        .filter(|&b| program.block(b).attrs.contains(BlockAttrs::LANDING_PAD))
        .filter(|b| distance[b.index()] != u32::MAX)
        .collect();
    pads.get(random.below(pads.len())).copied()
}

fn step(
    program: &Program,
    at: BlockId,
    distance: &[u32],
    bias: &[f64],
    hurry: bool,
    random: &mut Random,
) -> Option<(EdgeId, BlockId)> {
    let ways: Vec<(EdgeId, BlockId, EdgeKind)> = program
        .out_edges(at)
        .filter(|(_, e)| distance[e.to.index()] != u32::MAX)
        .map(|(id, e)| (id, e.to, e.kind))
        .collect();
    if ways.is_empty() {
        return None;
    }
    let chosen = if hurry {
        ways.iter().min_by_key(|(_, to, _)| distance[to.index()])
    } else if ways.len() == 2 && ways[1].2 == EdgeKind::Taken {
        ways.get(usize::from(random.chance(bias[at.index()])))
    } else {
        ways.get(random.below(ways.len()))
    };
    chosen.map(|&(id, to, _)| (id, to))
}

/// Edges to the nearest block that leaves the program's known flow; `u32::MAX` where there is none.
fn distance_to_exit(program: &Program) -> Vec<u32> {
    let equations = crate::equations::Equations::new(program, None);
    let mut distance = vec![u32::MAX; program.blocks.len()];
    let mut queue = std::collections::VecDeque::new();
    for id in program.block_ids() {
        if program.block(id).edge_count == 0 {
            distance[id.index()] = 0;
            queue.push_back(id);
        }
    }
    while let Some(to) = queue.pop_front() {
        for &edge in equations.in_edges(to) {
            let from = program.edges[edge.index()].from;
            if distance[from.index()] == u32::MAX {
                distance[from.index()] = distance[to.index()] + 1;
                queue.push_back(from);
            }
        }
    }
    distance
}

/// The greatest value of all orders of `items`, and at least 0.
pub fn best_of_all<T: Clone>(items: &[T], value: &impl Fn(&[T]) -> f64) -> f64 {
    fn best<T>(order: &mut [T], from: usize, value: &impl Fn(&[T]) -> f64) -> f64 {
        if from == order.len() {
            return value(order);
        }
        let mut most = 0.0f64;
        for i in from..order.len() {
            order.swap(from, i);
            most = most.max(best(order, from + 1, value));
            order.swap(from, i);
        }
        most
    }
    best(&mut items.to_vec(), 0, value)
}
