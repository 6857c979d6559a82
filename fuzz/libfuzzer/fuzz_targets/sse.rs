//! libFuzzer entry point of `sse`, which feeds an event stream (server-sent events).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::sse(data));
