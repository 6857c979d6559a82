//! libFuzzer entry point of `deflate`, which feeds data to the compression of WebSocket messages (permessage-deflate) and to its
//! inflation.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::deflate(data));
