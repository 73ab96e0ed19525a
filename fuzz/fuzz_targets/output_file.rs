//! See `restitch_fuzz::targets::output_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::output_file(data));
