//! Counts of groups in force in a stock kernel are what the emulator executed in the same run, block for
//! block and edge for edge: the plugin's window opens before calls are led to copies, and closes when nobody
//! is in copies any more. `bench/verify/kernel_counts.py` does it with each kernel, and deeper.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::counting::Model;
use common::truth::{LoadedCode, Truth};
use common::{Bench, bench, file, had, program};
use restitch_guest::{
    Error, Guest, Job, Output, Plugin, Source, build_control_module, root_image, take_view,
};
use restitch_kernel::{EdgeCount, FlowEdge, Kernel, edge_counts, live_edges};
use restitch_kernel_position::{FunctionCounts, Positioned, Request};
use restitch_testkit::{scratch, skip_unsupported};

/// Functions, and loads of `tests/guest/loads.c` under which they are counted.
const ROOTS: [(&str, &[&str]); 3] =
    [("do_sys_poll", &["poll"]), ("tcp_sendmsg", &["tcp"]), ("vfs_read", &["pipe", "file"])];
/// How many calls deep what they call is counted, unless `RESTITCH_COUNTED_CALLS` says otherwise.
const DEPTH: usize = 2;
/// Seconds of each load, by a clock that counts instructions.
const SECONDS: &str = "0.2";

fn depth() -> usize {
    let named = std::env::var("RESTITCH_COUNTED_CALLS");
    named.map_or(DEPTH, |depth| depth.parse().expect("a number of calls"))
}

/// Counts under each load in turn, in a window each, and says where the modules are and what they counted.
fn script() -> String {
    let head = "insmod /control.ko || exit 1\nexec 3<>/dev/restitch-kernel\n";
    let each = ROOTS.map(|(root, loads)| {
        let group = Request::name_for(root);
        let run = |load: &&str| format!("/loads {load} {SECONDS} /work.data >/dev/null || exit 1\n");
        let loads: String = loads.iter().map(run).collect();
        format!(
            "insmod /{group}.ko || exit 1\nwindow begin\n\
             echo 'enable {group}' >&3 || exit 1\n{loads}echo 'disable {group}' >&3 || exit 1\n\
             within 300 grep -q '^{group} registered ' /dev/restitch-kernel || exit 1\nwindow end\n\
             echo {root}\ncat /sys/module/{group}/sections/.text /sys/module/{group}/sections/.text.unlikely\n\
             /counters {group}\nrmmod {group} || exit 1\n"
        )
    });
    format!("{head}{}echo end\n", each.concat())
}

/// What a group's counters had, and where its code was.
struct Read {
    loaded: LoadedCode,
    values: Vec<u64>,
}

/// Reads what the script said of a group.
fn read(text: &str, root: &str) -> Read {
    let is_number = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
    let mut lines = text.lines().skip_while(|line| *line != root).skip(1).take_while(is_number);
    let mut address = || {
        let line = lines.next().unwrap_or_else(|| panic!("{root} in {text}"));
        u64::from_str_radix(line.trim_start_matches("0x"), 16).unwrap()
    };
    let at = [address(), address()];
    Read { loaded: LoadedCode { at }, values: lines.map(|line| line.parse().unwrap()).collect() }
}

/// Where control went from a block, and how often; none is a caller.
type Ways = BTreeMap<Option<u64>, u64>;

/// The ways from a block to others that were counted.
fn ways_of(counts: &FunctionCounts, from: u64) -> BTreeMap<u64, u64> {
    let mut ways: BTreeMap<u64, u64> = BTreeMap::new();
    for way in counts.edges.iter().filter(|way| way.from.get() == from) {
        *ways.entry(way.to.get()).or_default() += way.count;
    }
    ways
}

/// What was executed of a function, by starts of original blocks.
struct ExecutedFlow {
    blocks: BTreeMap<u64, u64>,
    ways: BTreeMap<u64, Ways>,
}

impl ExecutedFlow {
    fn of(counts: &FunctionCounts, truth: &Truth<'_>) -> Self {
        let starts = counts.blocks.iter().map(|block| block.range.start.get());
        let (bare, whole): (Vec<u64>, Vec<u64>) = starts.partition(|at| truth.is_bare(*at));
        let left = |at: u64| truth.left(at, |to| ways_of(counts, at).contains_key(&to));
        let mut flow = Self {
            blocks: whole.iter().map(|at| (*at, truth.entered(*at))).collect(),
            ways: whole.iter().map(|at| (*at, left(*at))).collect(),
        };
        // Bare blocks do not lead to each other.
        for at in bare {
            let entered: u64 = flow.ways.values().filter_map(|ways| ways.get(&Some(at))).sum();
            let to = ways_of(counts, at).into_keys().next();
            flow.blocks.insert(at, entered);
            flow.ways.insert(at, Ways::from([(to, entered)]));
        }
        flow
    }
}

/// What was compared.
#[derive(Default)]
struct Compared {
    functions: usize,
    blocks: usize,
    executed_blocks: usize,
    edges: usize,
    executed_edges: usize,
    differences: Vec<String>,
}

impl Compared {
    fn differ(&mut self, what: impl FnOnce() -> String, counted: u64, truth: u64) {
        if counted != truth {
            self.differences.push(format!("{}: counted {counted}, executed {truth}", what()));
        }
    }

    fn function(&mut self, counts: &FunctionCounts, flow: &ExecutedFlow) {
        self.functions += 1;
        for block in &counts.blocks {
            let at = block.range.start.get();
            let executed = flow.blocks[&at];
            self.blocks += 1;
            self.executed_blocks += usize::from(executed > 0);
            self.differ(|| format!("{}: block {at:x}", counts.name), block.count, executed);
            self.ways(counts, at, block.count, &flow.ways[&at]);
        }
    }

    /// The ways out of a block, and how often control leaves the function there.
    fn ways(&mut self, counts: &FunctionCounts, from: u64, count: u64, left: &Ways) {
        let counted = ways_of(counts, from);
        for (to, count) in &counted {
            let executed = left.get(&Some(*to)).copied().unwrap_or_default();
            self.edges += 1;
            self.executed_edges += usize::from(executed > 0);
            self.differ(|| format!("{}: edge {from:x} to {to:x}", counts.name), *count, executed);
        }
        let inside = counted.values().sum::<u64>();
        let is_inside = |to: &Option<u64>| to.is_some_and(|to| counted.contains_key(&to));
        let outside = left.iter().filter(|(to, _)| !is_inside(to)).map(|(_, count)| count).sum();
        let what = || format!("{}: out of block {from:x} {left:x?}", counts.name);
        self.differ(what, count.wrapping_sub(inside), outside);
    }
}

/// How much follows from counts of blocks alone (section 4.1 of Tamches and Miller), and whether that is
/// true.
#[derive(Default)]
struct FromBlocks {
    edges: usize,
    exact_edges: usize,
    functions: usize,
    exact_functions: usize,
    differences: Vec<String>,
}

impl FromBlocks {
    fn function(&mut self, kernel: &Kernel, counts: &FunctionCounts, flow: &ExecutedFlow) {
        let code = kernel.code(kernel.functions.starting_at(counts.address).unwrap());
        let start = |block: usize| code.blocks[block].range.start.get();
        let executed = |block: usize| flow.blocks.get(&start(block)).copied().unwrap_or_default();
        let blocks: Vec<u64> = (0..code.blocks.len()).map(executed).collect();
        let edges = live_edges(&code);
        let ends = |edge: &FlowEdge| edge.from.zip(edge.to).map(|(from, to)| [start(from), start(to)]);
        let (mut own, mut exact) = (0, 0);
        for (edge, count) in edges.iter().zip(edge_counts(&blocks, &edges)) {
            let Some([from, to]) = ends(edge) else { continue };
            own += 1;
            let EdgeCount::Exact(count) = count else { continue };
            exact += 1;
            let is_only = edges.iter().filter(|other| ends(other) == Some([from, to])).count() == 1;
            let Some(ways) = flow.ways.get(&from).filter(|_| is_only) else { continue };
            let executed = ways.get(&Some(to)).copied().unwrap_or_default();
            if count != executed {
                let edge = format!("{}: edge {from:x} to {to:x}", counts.name);
                self.differences.push(format!("{edge}: follows {count}, executed {executed}"));
            }
        }
        self.edges += own;
        self.exact_edges += exact;
        self.functions += 1;
        self.exact_functions += usize::from(own == exact);
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Compares a group's counts with a window.
fn compare(kernel: &Kernel, root: &str, group: &Positioned, read: &Read, window: &restitch_guest::Counts) {
    assert_eq!(window.unexplained, 0, "{root}: the window is not exact");
    let counting = group.counting.as_ref().unwrap();
    assert_eq!(read.values.len(), counting.counters(), "{root}");
    let truth = Truth::new(group, &read.loaded, window);
    let (mut compared, mut from_blocks) = (Compared::default(), FromBlocks::default());
    for counts in counting.counts(&read.values) {
        assert!(counts.edges.iter().all(|way| way.is_exact), "{root}: {}", counts.name);
        let flow = ExecutedFlow::of(&counts, &truth);
        compared.function(&counts, &flow);
        from_blocks.function(kernel, &counts, &flow);
    }
    println!(
        "{root}: {} functions, {} of {} blocks and {} of {} edges executed, {} counters ({:?}), {} calls deep; \
         from blocks alone follow {:.1} % of the edges, {:.1} % of the functions",
        compared.functions,
        compared.executed_blocks,
        compared.blocks,
        compared.executed_edges,
        compared.edges,
        counting.counters(),
        counting.memory,
        depth(),
        percent(from_blocks.exact_edges, from_blocks.edges),
        percent(from_blocks.exact_functions, from_blocks.functions),
    );
    assert!(compared.differences.is_empty(), "{root}:\n{}", compared.differences.join("\n"));
    assert!(from_blocks.differences.is_empty(), "{root}:\n{}", from_blocks.differences.join("\n"));
    assert!(compared.executed_blocks > 10, "{root}: the load does not call it");
}

/// Runs the script in an exact guest.
fn run(bench: &Bench, folder: &Path, groups: &[Positioned], control: &Path) -> Result<Option<Output>, Error> {
    let Bench { lab, kernel } = bench;
    let programs = ["loads", "counters"].map(|name| program(name, &format!("/{name}"), folder));
    let [Some(loads), Some(counters)] = programs else { return Ok(None) };
    let modules = groups.iter().zip(ROOTS).map(|(group, (root, _))| {
        let bytes = Source::Bytes(group.module.file().to_vec());
        file(&format!("/{}.ko", Request::name_for(root)), bytes)
    });
    let mut files_in = vec![loads, counters, file("/control.ko", Source::Path(control.into()))];
    files_in.extend(modules);
    let image = root_image(lab, &["kmod"])?;
    let guest = Guest::new(lab, kernel).append("nokaslr").image(&image).exact().plugin(Plugin::build(lab)?);
    guest.run(&Job { script: script(), files_in, files_out: Vec::new() }).map(Some)
}

#[test]
fn counts_are_what_the_emulator_executed() {
    let bench = had!(bench());
    let Bench { lab, kernel } = &bench;
    let folder = scratch();
    let control = had!(build_control_module(lab, kernel));
    let view = folder.path().join("view");
    had!(take_view(&Guest::new(lab, kernel).append("nokaslr"), kernel, &view));
    let model = Model::read(&view, kernel.release(), &control);
    let groups = model.counting(&ROOTS.map(|(root, _)| root), depth());
    let Some(output) = had!(run(&bench, folder.path(), &groups, &control)) else {
        skip_unsupported!("gcc is not available");
    };
    assert!(output.status == 0 && output.text.ends_with("end\n"), "{}", output.text);
    assert_eq!(output.windows.len(), ROOTS.len());
    for (((root, _), group), window) in ROOTS.iter().zip(&groups).zip(&output.windows) {
        compare(&model.kernel, root, group, &read(&output.text, root), &window.counts);
    }
}
