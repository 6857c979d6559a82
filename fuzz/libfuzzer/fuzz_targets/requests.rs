//! libFuzzer entry point of `requests`, which feeds the bytes of one HTTP connection to a server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::requests(data));
