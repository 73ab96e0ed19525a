//! See `restitch_fuzz::kernels::kernel_core`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| restitch_fuzz::kernels::kernel_core(data));
