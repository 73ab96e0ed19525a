//! See `restitch_fuzz::targets::profile_store`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::targets::profile_store(data));
