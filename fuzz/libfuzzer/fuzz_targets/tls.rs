//! libFuzzer entry point of `tls`, which feeds changes to the TLS records that a client sends to the server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::tls(data));
