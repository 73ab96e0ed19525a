//! See `restitch_fuzz::foreign_profiles::autofdo`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::foreign_profiles::autofdo(data));
