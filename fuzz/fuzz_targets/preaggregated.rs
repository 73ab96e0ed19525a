//! See `restitch_fuzz::foreign_profiles::preaggregated`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::foreign_profiles::preaggregated(data));
