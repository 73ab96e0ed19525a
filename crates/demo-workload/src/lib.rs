//! A server-like program whose speed is decided by the processor's front end: what `restitch demo` makes
//! faster.
//!
//! * **What the user must do**: call [`run`] with command-line arguments (the program
//!   `restitch-demo-workload` is nothing more), best as a process of its own. The code must be built with
//!   optimization.
//! * **What it does**: some 2,300 functions, generated with a fixed seed when the crate is built, serve
//!   requests that are drawn from a fixed sequence with a Zipf-like mix of 128 kinds. A request runs 125
//!   functions; code that never or seldom runs stands between the code that always does, as in a program that
//!   was built without a profile. Threads that serve requests check the sum of their results against
//!   [`LAP_CHECKSUM`], so a wrong instruction anywhere ends the program with status 1.
//! * **What it will not do**: use the network, allocate while it serves, or depend on time, addresses or the
//!   number of threads for its results.

mod args;
mod progress;
mod serve;
mod state;
mod traffic;

pub use args::{Amount, BadArguments, Options, USAGE};
pub use progress::{PROGRESS_BYTES, Progress};
pub use serve::{Failed, Served, serve};
pub use traffic::{LAP, LAP_CHECKSUM};

pub(crate) use state::State;

/// The generated functions and `HANDLERS`, one handler for each kind of request.
#[cfg(not(clippy))]
#[allow(dead_code, unused_mut, unused_assignments, unused_variables, reason = "generated code")]
mod code {
    include!(concat!(env!("OUT_DIR"), "/code.rs"));
}

/// Clippy has nothing to say about generated code, and would need a minute for it.
#[cfg(clippy)]
mod code {
    pub(crate) static HANDLERS: [fn(&mut super::State, u64) -> u64; 1] = [|state, x| {
        state.words[(state.kind & 63) as usize] ^= state.limits[0] ^ state.modes[0];
        x
    }];
}

use std::process::ExitCode;

/// Runs the workload as `args` (without the program's name) say.
///
/// Prints nothing but what was asked for. Status 0: all served and correct; 1: a wrong result or an unusable
/// progress file; 2: bad arguments.
pub fn run(args: impl IntoIterator<Item = String>) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("restitch-demo-workload: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(&options) {
        Ok(served) => {
            if matches!(options.amount, Amount::Requests(_)) {
                println!("{} requests, checksum {:016x}", served.requests, served.checksum);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("restitch-demo-workload: {error}");
            ExitCode::FAILURE
        }
    }
}
