//! See `restitch_fuzz::group_modules::group_module`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::group_modules::group_module(data));
