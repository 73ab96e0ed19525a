//! `batch`: where optimized code is not seen to save time, some runs are in the original code for comparison,
//! and what is slower is taken back.

mod common;

use common::batching::{Batch, compiled};
use common::{code, finish};
use restitch_testkit::program;
use serde_json::{Value, json};
use std::path::Path;

/// Runs `program` so often, in a command of its own; what is said of it, and how many runs of it were held
/// out, and were in optimized code.
#[track_caller]
fn runs(batch: &Batch, trials: &str, program: &Path, times: u32) -> (Value, u64, u64) {
    let script = "i=0; while [ $i -lt \"$1\" ]; do \"$0\" --busy 0.05; [ $? = 42 ] || exit 9; i=$((i + 1)); done; sleep 0.3";
    let mut command = batch.command(&["--trials", trials]);
    command.args(["sh", "-c", script]).arg(program).arg(times.to_string());
    finish(&mut command).expect(code::DONE);
    let report = batch.report();
    let of = |list: &str| {
        let modules = report[list].as_array().into_iter().flatten();
        modules.clone().find(|m| m["path"] == *program.to_string_lossy()).cloned()
    };
    let found = of("optimized");
    let number = |kind: &str| found.as_ref().map_or(0, |m| m[kind]["runs"].as_u64().expect("a number"));
    (found.clone().or(of("left")).unwrap_or_default(), number("held_out"), number("optimized"))
}

/// What the cache says of the only module that `program` is.
fn entry(batch: &Batch, program: &Path) -> (std::path::PathBuf, Value) {
    let name = batch.files_of("optimized", program)[0].with_extension("json");
    let text = std::fs::read(&name).expect("read");
    (name, serde_json::from_slice(&text).expect("JSON"))
}

#[test]
fn doubtful_gains_are_compared_with_runs_held_out_and_losses_taken_back() {
    let Some(program) = compiled(&program("switch.c"), &["-O2"]) else { return };
    let batch = Batch::new();
    batch.optimize(std::slice::from_ref(&program));

    // The runs before were longer ones, which would look like a gain.
    let (file, mut known) = entry(&batch, &program);
    known["original"] = json!({ "runs": 0, "samples": 0, "pairs": 0 });
    std::fs::write(&file, known.to_string()).expect("written");
    // It uses a given processor time, so nothing can be saved.
    let (_, held, optimized) = runs(&batch, "on", &program, 40);
    assert_eq!((held, optimized), (0, 40), "nothing is known yet: {:#}", batch.report());
    let begun = |batch: &Batch| entry(batch, &program).1["trial"]["begun"].clone();
    assert_eq!(begun(&batch), json!(true), "{:#}", batch.report());
    let (said, held, optimized) = runs(&batch, "on", &program, 150);
    // That none of them is held out has a probability of (7/8)^150, 2e-9.
    assert!(held > 0 && held < 100 && held + optimized == 150, "{held} and {optimized}: {said:#}");
    assert_eq!(said["original"]["runs"], 0, "{said:#}");
    let known = entry(&batch, &program).1["trial"].clone();
    let times = |kind: &str| (known[kind]["runs"].as_u64(), known[kind]["seconds"].as_f64());
    let ((Some(out), Some(took)), (Some(inside), _)) = (times("held_out"), times("optimized")) else {
        panic!("{known:#}")
    };
    assert!(out <= held && inside <= optimized && inside > 50, "{known:#}");
    assert!((0.02..0.5).contains(&(took / out as f64)), "each uses 0.05 s: {known:#}");

    // One that is exported holds nobody out, and who wants no trials has none.
    let folder = batch.folder.path().join("export");
    let mut export = batch.command(&["--trials", "on", "--export", &folder.to_string_lossy()]);
    finish(export.arg("true")).expect(code::DONE);
    let stored = std::fs::read(&batch.files_of("optimized", &program)[0]).expect("read");
    let id = batch.files_of("optimized", &program)[0].with_extension("overlay");
    let exported = std::fs::read(folder.join(id.file_name().expect("a name"))).expect("exported");
    assert!(stored != exported && stored.len() == exported.len());
    assert_eq!(runs(&batch, "off", &program, 60).1, 0);
    assert_eq!(begun(&batch), json!(false));

    // Runs that take much longer for sure: the overlay is taken back, and the program runs as it is.
    let (file, mut known) = entry(&batch, &program);
    let times = |runs: f64, each: f64| json!({ "runs": runs as u64, "seconds": runs * each, "squares": runs * each * each });
    known["trial"] = json!({ "begun": true, "held_out": times(50.0, 0.04), "optimized": times(400.0, 0.4), "outcome": null });
    std::fs::write(&file, known.to_string()).expect("written");
    let (_, _, optimized) = runs(&batch, "on", &program, 3);
    assert_eq!(optimized, 3);
    let notes = batch.report()["notes"].to_string();
    assert!(notes.contains("% longer") && notes.contains("taken back"), "{notes}");
    assert!(
        batch.files_of("optimized", &program).is_empty() && batch.files_of("overlay", &program).is_empty()
    );
    let (said, held, optimized) = runs(&batch, "on", &program, 20);
    assert_eq!((held, optimized), (0, 0), "{said:#}");
    assert!(said["why"].as_str().is_some_and(|why| why.contains("taken back")), "{:#}", batch.report());
    let listed = batch.cache_command(&["list"]).stdout;
    let words: Vec<&str> = listed.split_whitespace().collect();
    assert!(words.join(" ").contains("taken back"), "{listed}");
    let verified = batch.cache_command(&["verify"]);
    assert!(!verified.stdout.contains("removed"), "{}", verified.stdout);
}
