//! libFuzzer entry point of `centrifugo`, which feeds frames of Centrifugo's client protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::centrifugo(data));
