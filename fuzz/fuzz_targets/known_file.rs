//! See `restitch_fuzz::batch_files::known_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::batch_files::known_file(data));
