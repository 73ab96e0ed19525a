//! See `restitch_fuzz::targets::image`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::image(data));
