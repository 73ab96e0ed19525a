//! Panics in Rust: through many frames with destructors, in several threads (`--threads N`), caught, carried
//! on (`resume_unwind`) and caught again. Ends with 42 if all that was expected happened.

use std::cell::Cell;
use std::hint::black_box;
use std::panic::{catch_unwind, resume_unwind, set_hook};
use std::time::{Duration, Instant};

thread_local! {
    static ALIVE: Cell<i64> = const { Cell::new(0) };
}

struct Guard;

impl Guard {
    fn new() -> Self {
        ALIVE.set(ALIVE.get() + 1);
        Self
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        ALIVE.set(ALIVE.get() - 1);
    }
}

#[inline(never)]
fn fall(depth: u32, n: u64) -> u64 {
    let _guard = Guard::new();
    let space = black_box([n; 5]);
    match (depth, n % 4) {
        (0, 0) => resume_unwind(Box::new(n)),
        (0, 1) => panic!("{n}"),
        (0, _) => n,
        (_, even) => fall(depth - 1, n).wrapping_mul(space[1] | 1).rotate_left(even as u32 + depth),
    }
}

/// What `fall` gives where nothing is thrown.
#[inline(never)]
fn expected(depth: u32, n: u64) -> u64 {
    (1..=depth).fold(n, |value, d| value.wrapping_mul(n | 1).rotate_left((n % 4) as u32 + d))
}

#[inline(never)]
fn again(depth: u32, n: u64) -> u64 {
    let _guard = Guard::new();
    match catch_unwind(|| fall(depth, n)) {
        Ok(value) => value,
        Err(payload) => resume_unwind(payload),
    }
}

fn round(n: u64) {
    let depth = (n % 23) as u32;
    let result = catch_unwind(|| again(depth, n));
    match (n % 4, result) {
        (0, Err(payload)) => assert_eq!(payload.downcast_ref::<u64>(), Some(&n)),
        (1, Err(payload)) => assert_eq!(payload.downcast_ref::<String>(), Some(&n.to_string())),
        (2 | 3, Ok(value)) => assert_eq!(value, expected(depth, n)),
        (_, other) => wrong(&format!("{n}: {other:?}")),
    }
    if ALIVE.get() != 0 {
        wrong("a destructor was left out");
    }
}

fn wrong(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(1)
}

fn work(until: Instant) {
    let stop = std::env::var_os("RESTITCH_TEST_STOP");
    for n in 0.. {
        round(n);
        let told = || stop.as_ref().is_some_and(|s| std::path::Path::new(s).exists());
        if n % 512 == 0 && (Instant::now() >= until || told()) {
            return;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, otherwise: u64| {
        let at = arguments.iter().position(|a| a == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    set_hook(Box::new(|_| {}));
    let until = Instant::now() + Duration::from_secs(number("--seconds", 0));
    let threads: Vec<_> =
        (0..number("--threads", 1)).map(|_| std::thread::spawn(move || work(until))).collect();
    if threads.into_iter().any(|t| t.join().is_err()) {
        wrong("a check failed");
    }
    std::process::exit(42)
}
