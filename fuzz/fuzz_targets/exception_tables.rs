//! See `restitch_fuzz::targets::exception_tables`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::exception_tables(data));
