//! See `restitch_apply_process::testing::journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_apply_process::testing::journal(data));
