//! See `restitch_fuzz::targets::program_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::program_text(data));
