//! See `restitch_fuzz::targets::program_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::program_file(data));
