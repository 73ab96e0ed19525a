//! See `restitch_fuzz::batch_files::batch_notes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::batch_files::batch_notes(data));
