//! libFuzzer entry point of `connection`, which feeds operations of clients of every transport (connect, write, read, close) to a server
//! with two shards.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::connection(data));
