//! libFuzzer entry point of `body`, which feeds the chunked body of an HTTP request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::body(data));
