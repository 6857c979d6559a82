//! libFuzzer entry point of `http2`, which feeds the frames of one HTTP/2 connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::http2(data));
