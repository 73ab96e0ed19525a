//! See `restitch_fuzz::kernels::kernel_lists`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::kernels::kernel_lists(data));
