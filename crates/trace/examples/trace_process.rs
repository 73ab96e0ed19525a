//! Traces a process for some seconds and prints the figures:
//! `trace_process PID [SECONDS [DEPTH [OVERHEAD-PERCENT [fixed]]]]`.

use restitch_trace::{LookAhead, Record, TraceOptions, trace};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: f64| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let look_ahead = match arguments.get(4).map(String::as_str) {
        Some("fixed") => LookAhead::Fixed,
        _ => LookAhead::Evaluate,
    };
    let options = TraceOptions {
        depth: number(2, 32.0) as usize,
        overhead: number(3, 1.0) / 100.0,
        duration: Some(Duration::from_secs_f64(number(1, 5.0))),
        look_ahead,
        ..TraceOptions::default()
    };
    match trace(number(0, 0.0) as i32, options, &AtomicBool::new(false), &mut |_: Record<'_>| {}) {
        Ok(report) => {
            println!("{report:#?}");
            println!(
                "overhead {:.2} %, usefulness {:.2}, without evaluation {:.2}, branches per second of CPU {:.0}",
                100.0 * report.overhead().unwrap_or(f64::NAN),
                report.usefulness(),
                report.usefulness_without_evaluation(),
                report.branches as f64 / report.cpu.as_secs_f64()
            );
        }
        Err(error) => eprintln!("{error}"),
    }
}
