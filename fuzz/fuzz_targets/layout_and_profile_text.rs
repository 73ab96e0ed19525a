//! See `restitch_fuzz::targets::layout_and_profile_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::layout_and_profile_text(data));
