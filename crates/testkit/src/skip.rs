//! Tests that cannot run say so.

/// Prints `SKIPPED: reason`; panics if `RESTITCH_NO_SKIP=1`, unless the reason contains what
/// `RESTITCH_MAY_SKIP` says (it could not be installed here). Called by [`skip!`](crate::skip).
pub fn skipped(reason: &str) {
    let may_skip =
        std::env::var("RESTITCH_MAY_SKIP").is_ok_and(|what| !what.is_empty() && reason.contains(&what));
    if !may_skip && std::env::var_os("RESTITCH_NO_SKIP").is_some_and(|v| v == "1") {
        panic!("RESTITCH_NO_SKIP=1, but this test cannot run: {reason}; install what is missing");
    }
    println!("SKIPPED: {reason}");
}

/// Prints `SKIPPED: reason`, whatever the environment. Called by
/// [`skip_unsupported!`](crate::skip_unsupported).
pub fn unsupported(reason: &str) {
    println!("SKIPPED: {reason}");
}

/// Ends the test (returns from the function) because something that could be installed is not there. Takes
/// the reason, as `format!` does.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skipped(&format!($($reason)+));
        return;
    }};
}

/// Ends the test (returns from the function) because this machine can never run it. Takes the reason, as
/// `format!` does.
#[macro_export]
macro_rules! skip_unsupported {
    ($($reason:tt)+) => {{
        $crate::unsupported(&format!($($reason)+));
        return;
    }};
}

/// The value of an `Option`; if it is none, skips the test:
/// `let gcc = require!(find_program("gcc"), "gcc");`.
#[macro_export]
macro_rules! require {
    ($value:expr, $($what:tt)+) => {
        match $value {
            Some(value) => value,
            None => $crate::skip!("{} is not available", format!($($what)+)),
        }
    };
}
