//! See `restitch_apply_process::testing::record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_apply_process::testing::record(data));
