//! libFuzzer entry point of `fields`, which feeds values of HTTP header fields, and the header of the PROXY protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::fields(data));
