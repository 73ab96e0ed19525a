//! Groups that count, in force in a stock kernel under loads that make a known number of calls on two
//! processors at once: by counters that each processor has, and by such that all share. That each block and
//! edge is counted exactly is in `exact_counts.rs`.

mod common;

use common::counting::Model;
use common::{Bench, bench, file, had, program};
use restitch_guest::{Guest, Job, Source, build_control_module, take_view};
use restitch_kernel_group::CounterMemory;
use restitch_kernel_position::{Positioned, Request};
use restitch_testkit::{scratch, skip_unsupported};

/// The function whose calls are counted, and how many each of two loads makes.
const ROOT: &str = "do_sys_poll";
const CALLS: u64 = 10_000;
/// How many calls deep what it calls is counted: the second is too much for counters of each processor's own.
const DEPTHS: [usize; 2] = [1, 4];

/// Counts by each module in turn.
fn script() -> String {
    let group = Request::name_for(ROOT);
    let each = DEPTHS.map(|depth| {
        format!(
            "insmod /group-{depth}.ko || exit 1\necho 'enable {group}' >&3 || exit 1\n\
             echo before {depth}\n/counters {group}\n/loads polls {CALLS} & /loads polls {CALLS}; wait\n\
             echo after {depth}\n/counters {group}\necho end {depth}\necho 'disable {group}' >&3 || exit 1\n\
             within 300 grep -q '^{group} registered ' /dev/restitch-kernel || exit 1\n\
             rmmod {group} || exit 1\n"
        )
    });
    format!("insmod /control.ko || exit 1\nexec 3<>/dev/restitch-kernel\n{}", each.concat())
}

/// The numbers in the lines between two lines.
fn numbers(text: &str, from: &str, to: &str) -> Vec<u64> {
    let lines = text.lines().skip_while(|line| *line != from).skip(1).take_while(|line| *line != to);
    lines.map(|line| line.parse().unwrap_or_else(|_| panic!("{line} in {text}"))).collect()
}

/// Compares what a module has counted with what the loads did.
fn compare(module: &Positioned, depth: usize, text: &str) {
    let before = numbers(text, &format!("before {depth}"), &format!("after {depth}"));
    let after = numbers(text, &format!("after {depth}"), &format!("end {depth}"));
    let counting = module.counting.as_ref().unwrap();
    assert_eq!([before.len(), after.len()], [counting.counters(); 2], "{text}");
    let values: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let counts = counting.counts(&values);
    let root = counts.iter().find(|function| function.name == ROOT).unwrap();
    let entry = root.blocks.iter().find(|block| block.range.start == root.address).unwrap();
    assert_eq!(entry.count, 2 * CALLS, "{depth}: {text}");
    println!("{depth} calls deep: {} counters ({:?})", counting.counters(), counting.memory);
}

#[test]
fn calls_of_a_function_of_a_stock_kernel_are_counted_exactly() {
    let Bench { lab, kernel } = &had!(bench());
    let folder = scratch();
    let programs = ["loads", "counters"].map(|name| program(name, &format!("/{name}"), folder.path()));
    let [Some(loads), Some(counters)] = programs else { skip_unsupported!("gcc is not available") };
    let control = had!(build_control_module(lab, kernel));
    let view = folder.path().join("view");
    let guest = || Guest::new(lab, kernel).append("nokaslr").processors(2);
    take_view(&guest(), kernel, &view).unwrap();
    let model = Model::read(&view, kernel.release(), &control);
    let modules = DEPTHS.map(|depth| model.counting(&[ROOT], depth).remove(0));
    assert_eq!(modules[1].counting.as_ref().unwrap().memory, CounterMemory::Shared);
    let mut files_in = vec![loads, counters, file("/control.ko", Source::Path(control))];
    files_in.extend(DEPTHS.iter().zip(&modules).map(|(depth, module)| {
        file(&format!("/group-{depth}.ko"), Source::Bytes(module.module.file().to_vec()))
    }));
    let output = guest().run(&Job { script: script(), files_in, files_out: Vec::new() }).unwrap();
    assert_eq!(output.status, 0, "{}", output.text);
    for (depth, module) in DEPTHS.iter().zip(&modules) {
        compare(module, *depth, &output.text);
    }
}
