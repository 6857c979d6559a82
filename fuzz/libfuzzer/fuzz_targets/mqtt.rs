//! libFuzzer entry point of `mqtt`, which feeds MQTT control packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| crore_fuzz::mqtt(data));
