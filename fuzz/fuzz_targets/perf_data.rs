//! See `restitch_fuzz::targets::perf_data`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::perf_data(data));
