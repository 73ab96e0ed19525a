//! A group that counts, in force in a stock kernel under a load that makes a known number of calls.

mod common;

use common::counting::Model;
use common::{Bench, bench, file, had, program};
use restitch_guest::{Guest, Job, Source, build_control_module, take_view};
use restitch_testkit::{scratch, skip_unsupported};

/// The function whose calls are counted, and how many there are.
const ROOT: &str = "do_sys_poll";
const CALLS: u64 = 1000;
const GROUP: &str = "restitch_do_sys_poll";

/// The numbers in the lines between two words.
fn numbers(text: &str, from: &str, to: &str) -> Vec<u64> {
    let lines = text.lines().skip_while(|line| *line != from).skip(1).take_while(|line| *line != to);
    lines.map(|line| line.parse().unwrap_or_else(|_| panic!("{line} in {text}"))).collect()
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
    let positioned = Model::read(&view, kernel.release(), &control).counting(&[ROOT], 1).remove(0);
    let module = positioned.module.file().to_vec();
    let script = format!(
        "insmod /control.ko && insmod /group.ko || exit 1\nexec 3<>/dev/restitch-kernel\n\
         echo 'enable {GROUP}' >&3\necho before\n/counters {GROUP}\n/loads polls {CALLS}\n\
         echo after\n/counters {GROUP}\necho end\n"
    );
    let files_in = vec![
        loads,
        counters,
        file("/control.ko", Source::Path(control)),
        file("/group.ko", Source::Bytes(module)),
    ];
    let text = guest().run(&Job { script, files_in, files_out: Vec::new() }).unwrap().text;
    let (before, after) = (numbers(&text, "before", "after"), numbers(&text, "after", "end"));
    let counting = positioned.counting.unwrap();
    assert_eq!([before.len(), after.len()], [counting.counters(); 2], "{text}");
    let values: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let counts = counting.counts(&values);
    let root = counts.iter().find(|function| function.name == ROOT).unwrap();
    let entry = root.blocks.iter().find(|block| block.range.start == root.address).unwrap();
    assert_eq!(entry.count, CALLS, "{text}");
    // Nobody was in the function then or before: what enters a block leaves it.
    let entered = |at| root.edges.iter().filter(|way| way.to == at).map(|way| way.count).sum::<u64>();
    for block in root.blocks.iter().filter(|block| block.range.start != root.address) {
        assert_eq!(entered(block.range.start), block.count, "{block:?}");
    }
    let hottest = root.blocks.iter().map(|block| block.count).max().unwrap();
    println!("{} blocks, the hottest was executed {hottest} times", counting.blocks());
}
