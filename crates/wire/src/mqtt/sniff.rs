//! Recognises an MQTT connection by its first packet, which is always a CONNECT. MQTT 3.1 (`MQIsdp`) counts as MQTT, so that the refusal
//! for its clients is an MQTT packet.

/// Whether the first bytes are a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// The bytes begin a CONNECT.
    Mqtt,
    /// The bytes begin something else.
    NotMqtt,
    /// There are too few bytes to decide.
    More,
}

/// Examines the first bytes of a connection; at most 13 are needed. A CONNECT begins with type 1 and flags 0, a remaining length of
/// one to four bytes, and the protocol name (section 3.1.2.1).
pub fn sniff(bytes: &[u8]) -> Sniff {
    let rest = match bytes {
        [] => return Sniff::More,
        [0x10, rest @ ..] => rest,
        _ => return Sniff::NotMqtt,
    };
    let name = match rest.iter().take(4).position(|byte| byte & 0x80 == 0) {
        Some(last) => &rest[last + 1..],
        None if rest.len() < 4 => return Sniff::More,
        None => return Sniff::NotMqtt,
    };
    let names: [&[u8]; 2] = [b"\0\x04MQTT", b"\0\x06MQIsdp"];
    if names.iter().any(|protocol| name.starts_with(protocol)) {
        Sniff::Mqtt
    } else if names.iter().any(|protocol| protocol.starts_with(name)) {
        Sniff::More
    } else {
        Sniff::NotMqtt
    }
}
