//! libFuzzer entry point of `snapshot`, which feeds changes to the snapshot of a server, from which a new server restores its state.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::snapshot(data));
