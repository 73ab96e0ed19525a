//! See `restitch_fuzz::targets::unwind_tables`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::unwind_tables(data));
