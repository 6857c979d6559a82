//! libFuzzer entry point of `frames`, which feeds WebSocket frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::frames(data));
