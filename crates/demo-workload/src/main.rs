//! The program `restitch-demo-workload`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    restitch_demo_workload::run(std::env::args().skip(1))
}
