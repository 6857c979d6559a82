//! libFuzzer entry point of `pusher`, which feeds events of Pusher's protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::pusher(data));
