//! libFuzzer entry point of `position`, which feeds the text of a position: the point in the messages from which a subscriber reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::position(data));
