//! Each algorithm against what its source says of it: by a plain way to find that out, or by all orders of a
//! small program.

use restitch_layout::{
    Arc, CacheDirected, Distances, Fragment, HotColdChunks, Layout, LayoutAlgorithm, Node, Score,
    cache_directed_order, hfsort_plus_order, pettis_hansen_order,
};
use restitch_profile::Profile;
use restitch_profile::testing::{Random, RandomProgram, Shape, best_of_all, walk};
use restitch_program::{BlockAttrs, BlockId, FuncId, Program};
use std::collections::BTreeMap;

/// Functions, and calls of which no two sets have the same sum.
fn call_graph(seed: u64, functions: usize) -> (Vec<Node>, Vec<Arc>) {
    let mut random = Random::new(seed);
    let nodes = (0..functions)
        .map(|_| Node { size: 16 + random.below(400) as u64, weight: 1 + random.below(1000) as u64 })
        .collect();
    let mut arcs = Vec::new();
    for _ in 0..2 * functions {
        let (from, to) = (random.below(functions), random.below(functions));
        if from != to {
            arcs.push(Arc { from, to, count: 0, offset: 0 });
        }
    }
    let mut bits: Vec<usize> = (0..arcs.len()).collect();
    for i in (1..bits.len()).rev() {
        bits.swap(i, random.below(i + 1));
    }
    arcs.iter_mut().zip(bits).for_each(|(arc, bit)| arc.count = 1 << bit);
    (nodes, arcs)
}

/// Pettis and Hansen, section 3, by going through all pairs again and again. Which functions are joined
/// follows from the sums alone; how they stand is read from the order that is to be judged.
#[test]
fn closest_is_best_as_the_paper_says() {
    for seed in 0..200 {
        let (nodes, arcs) = call_graph(seed, 8);
        let order = pettis_hansen_order(&nodes, &arcs);
        let mut calls: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for arc in &arcs {
            *calls.entry((arc.from.min(arc.to), arc.from.max(arc.to))).or_default() += arc.count;
        }
        let between = |a: usize, b: usize| calls.get(&(a.min(b), a.max(b))).copied().unwrap_or(0);
        let place = |n: usize| order.iter().position(|&m| m == n).expect("it is a permutation");
        let mut chains: Vec<Vec<usize>> = (0..nodes.len()).map(|n| vec![n]).collect();
        loop {
            let weight = |x: &[usize], y: &[usize]| -> u64 {
                x.iter().flat_map(|&a| y.iter().map(move |&b| between(a, b))).sum()
            };
            let pairs = (0..chains.len()).flat_map(|x| (0..x).map(move |y| (x, y)));
            let heaviest = pairs.max_by_key(|&(x, y)| weight(&chains[x], &chains[y]));
            let Some((x, y)) = heaviest.filter(|&(x, y)| weight(&chains[x], &chains[y]) > 0) else { break };
            let ends = |chain: &[usize]| {
                let mut places: Vec<usize> = chain.iter().map(|&n| place(n)).collect();
                places.sort_unstable();
                (places[0], places[places.len() - 1])
            };
            let ((x0, x1), (y0, y1)) = (ends(&chains[x]), ends(&chains[y]));
            let touching = if x1 < y0 { (x1, y0) } else { (y1, x0) };
            assert_eq!(touching.0 + 1, touching.1, "seed {seed}: both stand together in {order:?}");
            let possible = [(x0, y0), (x0, y1), (x1, y0), (x1, y1)].map(|(a, b)| between(order[a], order[b]));
            let made = between(order[touching.0], order[touching.1]);
            assert_eq!(
                Some(&made),
                possible.iter().max(),
                "seed {seed}: {x0}-{x1} and {y0}-{y1} of {order:?}"
            );
            let gone = chains.remove(x);
            chains[y].extend(gone);
        }
    }
}

/// The sum over all calls of what one over so many bytes is worth.
fn worth(nodes: &[Node], arcs: &[Arc], order: &[usize], of: impl Fn(f64) -> f64) -> f64 {
    let mut starts = vec![0i64; nodes.len()];
    let mut at = 0;
    for &n in order {
        starts[n] = at;
        at += nodes[n].size as i64;
    }
    let distance = |a: &Arc| (starts[a.to] - starts[a.from] - a.offset as i64).unsigned_abs() as f64;
    arcs.iter().map(|a| a.count as f64 * of(distance(a))).sum()
}

/// What the two orders for TLBs make of the distances of calls, against the best of all orders and that of
/// the addresses.
#[test]
fn orders_for_tlbs_keep_calls_short() {
    let locality = |distance: f64| distance.max(0.1).powf(-0.25);
    let on_page = |distance: f64| (1.0 - (distance / 4096.0).powi(2)).max(0.0);
    let mut sums = [[0.0; 3]; 2];
    for seed in 0..100 {
        let (nodes, mut arcs) = call_graph(seed, 6);
        // Counts of one magnitude: of powers of two the greatest would be nearly all.
        let mut random = Random::new(seed);
        arcs.iter_mut().for_each(|a| a.count = 100 + random.below(900) as u64);
        let as_they_are: Vec<usize> = (0..nodes.len()).collect();
        let directed = cache_directed_order(&nodes, &arcs, CacheDirected::default());
        let pages = hfsort_plus_order(&nodes, &arcs);
        let of = |order: &[usize], paged: bool| match paged {
            false => worth(&nodes, &arcs, order, locality),
            true => worth(&nodes, &arcs, order, on_page),
        };
        for (sum, (order, paged)) in sums.iter_mut().zip([(directed, false), (pages, true)]) {
            let optimum = best_of_all(&as_they_are, &|order| of(order, paged));
            assert!(of(&order, paged) <= optimum * (1.0 + 1e-9), "seed {seed}");
            sum[0] += of(&order, paged) / optimum;
            sum[1] += of(&as_they_are, paged) / optimum;
            sum[2] += 1.0;
        }
    }
    for (name, [reached, before, all]) in ["cdsort", "hfsort+"].into_iter().zip(sums) {
        let (reached, before) = (reached / all, before / all);
        eprintln!("{name}: {reached:.3} of the optimum, {before:.3} in the order of addresses");
        assert!(reached > 0.9 && reached > before, "{name}: {reached} {before}");
    }
}

fn movable(seed: u64, functions: usize, blocks: usize) -> (Program, Profile) {
    let program = RandomProgram::shaped(seed, Shape { functions, blocks, unmovable: 0.0 }).program;
    let profile = walk(&program, seed, 60, 0.01);
    (program, profile)
}

/// Tamches and Miller, section 2.2: which blocks are hot, and what stands where.
#[test]
fn hot_chunks_stand_in_front_of_cold_ones_as_the_paper_says() {
    let mut parted = 0;
    for seed in 0..100 {
        let (program, profile) = movable(seed, 6, 12);
        let layout = HotColdChunks::default().layout(&program, &profile);
        let entry = |f: FuncId| program.entry_block(f).expect("every function has blocks");
        let is_hot = |b: BlockId| {
            let (count, calls) =
                (profile.block(b) as f64, profile.block(entry(program.block(b).function)) as f64);
            count > 0.0 && count > 0.05 * calls
        };
        let group: Vec<FuncId> =
            program.function_ids().filter(|&f| program.blocks_of(f).any(is_hot)).collect();
        assert_eq!(layout.hot.len(), group.len(), "seed {seed}");
        for (chunk, &function) in layout.hot.iter().zip(&group) {
            assert_eq!(chunk.blocks[0], entry(function), "seed {seed}: a chunk begins with its entry");
            let mut blocks = chunk.blocks.clone();
            blocks.sort_unstable();
            let expected: Vec<BlockId> =
                program.blocks_of(function).filter(|&b| is_hot(b) || b == entry(function)).collect();
            assert_eq!(blocks, expected, "seed {seed}");
        }
        let is_padding = |b: BlockId| program.block(b).attrs.contains(BlockAttrs::PADDING);
        let is_cold = |&b: &BlockId| !is_hot(b) && b != entry(program.block(b).function) && !is_padding(b);
        let expected: Vec<BlockId> =
            group.iter().flat_map(|&f| program.blocks_of(f)).filter(is_cold).collect();
        let cold: Vec<BlockId> = layout.cold.iter().flat_map(|f| f.blocks.clone()).collect();
        assert_eq!(cold, expected, "seed {seed}");
        parted += cold.len();
    }
    assert!(parted > 100, "{parted} cold blocks of groups");
}

/// Fall-throughs of each order of blocks against the most that any order has (a maximum path cover), in
/// programs of one function with four to seven executed blocks. Chains by cycle cover keep half of it in any
/// case; greedy ones are only known to keep a third, and the others want something else, but all are held to
/// it here.
#[test]
fn orders_of_blocks_keep_half_of_the_fall_throughs() {
    let wanted = ["ph.bb", "hot-chains", "ext-tsp", "codestitcher", "codestitcher+po", "ext-tsp-across"];
    let mut sums = vec![0.0; wanted.len()];
    let mut programs = 0.0;
    for seed in 0..400 {
        let (program, profile) = movable(seed, 1, 14);
        let hot: Vec<usize> =
            program.block_ids().filter(|&b| profile.block(b) > 0).map(BlockId::index).collect();
        if !(4..=7).contains(&hot.len()) {
            continue;
        }
        let fall_through = |order: &[usize]| {
            let blocks = order.iter().map(|&b| BlockId(b as u32)).collect();
            let layout = Layout { hot: vec![Fragment { blocks, align: 1 }], ..Layout::default() };
            Score::of(&program, &profile, &layout).fall_through as f64
        };
        let best = best_of_all(&hot, &fall_through);
        programs += 1.0;
        for (sum, name) in sums.iter_mut().zip(wanted) {
            let choice: restitch_layout::LayoutChoice = name.parse().expect("it is known");
            let layout = choice.layout(&program, &profile);
            let order: Vec<usize> = layout.hot.iter().flat_map(|f| &f.blocks).map(|b| b.index()).collect();
            let reached = fall_through(&order);
            assert!(2.0 * reached >= best && reached <= best, "{name}, seed {seed}: {reached} of {best}");
            *sum += reached / best;
        }
    }
    assert!(programs > 20.0, "{programs} programs");
    for (sum, name) in sums.iter().zip(wanted) {
        eprintln!("{name}: {:.3} of the best fall-throughs on average", sum / programs);
        assert!(sum / programs > 0.9, "{name}");
    }
}

/// Distances change the layout: what is near by one level is not by another.
#[test]
fn distances_matter() {
    let (program, profile) = movable(3, 40, 20);
    let text = |levels: &[u64]| {
        let choice: restitch_layout::LayoutChoice = "codestitcher".parse().expect("it is known");
        let choice = choice.within(Distances::of_levels(levels)).expect("it knows distances");
        choice.layout(&program, &profile).to_text(&program)
    };
    assert_ne!(text(&[64]), text(&[1 << 20]));
    assert_eq!(text(&[64, 4096]), text(&[4096, 64, 64]));
}
