//! See `restitch_fuzz::batch_files::batch_counts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::batch_files::batch_counts(data));
