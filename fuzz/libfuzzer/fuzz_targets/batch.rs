//! `batch` for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::batch(data));
