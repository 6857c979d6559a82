//! Tests encoded and forwarded values, reason codes, and which side may send which packet.

use crore_wire::mqtt::Version::V5;
use crore_wire::mqtt::{
    Error, Packet, PacketType, Properties, PropertyWriter, ReasonCode, USER_PROPERTIES_MAX,
    Unencodable, Version, decode, encode, fixed_header,
};

const MAX: usize = 1 << 20;

/// Decodes one packet, using its own length field.
fn decode_complete(version: Version, bytes: &[u8]) -> Result<Packet<'_>, Error> {
    let (header, at) = fixed_header(bytes, MAX)?.expect("a whole header");
    assert_eq!(at + header.body_bytes(), bytes.len(), "{bytes:?}");
    decode(version, header, &bytes[at..])
}

#[test]
fn server_only_packets_are_refused_from_clients() {
    let not = |kind| Some(Error::NotFromClient(kind));
    let code = |code| Some(Error::ReasonCode(code));
    let table: [(&[u8], Option<Error>); 16] = [
        (b"\x20\x03\0\0\0", not(PacketType::ConnAck)),
        (b"\x90\x04\0\x01\0\0", not(PacketType::SubAck)),
        (b"\xB0\x04\0\x01\0\0", not(PacketType::UnsubAck)),
        (b"\xD0\0", not(PacketType::PingResp)),
        (b"\x30\x06\0\x01t\x02\x0B\x01", not(PacketType::Publish)),
        (b"\xE0\x06\0\x04\x1C\0\x01s", not(PacketType::Disconnect)),
        (b"\xE0\x01\x8E", code(0x8E)),
        (b"\xE0\x01\x87", code(0x87)),
        (b"\xF0\0", code(0)),
        (b"\x30\x04\0\x01t\0", None),
        (b"\xC0\0", None),
        (b"\xE0\0", None),
        (b"\xE0\x01\x04", None),
        (b"\xE0\x01\x93", None),
        (b"\xF0\x06\x19\x04\x15\0\x01m", None),
        (b"\x62\x02\0\x01", None),
    ];
    for (bytes, error) in table {
        let packet = decode_complete(V5, bytes).unwrap();
        assert_eq!(packet.check_from_client().err(), error, "{packet:?}");
        if let Some(error) = error {
            assert_eq!(error.reason(), ReasonCode::PROTOCOL_ERROR);
        }
    }
}

#[test]
fn values_that_do_not_fit_are_not_written() {
    let long = "x".repeat(65_536);
    let mut properties = PropertyWriter::new();
    assert_eq!(properties.reason_string(&long).err(), Some(Unencodable));
    assert_eq!(properties.content_type("a\0").err(), Some(Unencodable));
    assert_eq!(
        properties.correlation_data(long.as_bytes()).err(),
        Some(Unencodable)
    );
    assert_eq!(
        properties.user_property("n", &long).err(),
        Some(Unencodable)
    );
    assert_eq!(properties.user_property("\0", "v").err(), Some(Unencodable));
    assert_eq!(properties.properties(), Properties::NONE);
    for _ in 0..USER_PROPERTIES_MAX {
        properties.user_property("n", "v").unwrap();
    }
    assert_eq!(properties.user_property("n", "v").err(), Some(Unencodable));
    properties.clear();
    assert_eq!(properties.properties(), Properties::NONE);
    properties.content_type(&long[1..]).unwrap();
    assert_eq!(properties.properties().content_type(), Some(&long[1..]));
}

#[test]
fn a_message_is_forwarded_with_what_belongs_to_it() {
    let mut from = PropertyWriter::new();
    from.topic_alias(3).payload_is_utf8(true);
    from.user_property("b", "2").unwrap();
    from.content_type("text/plain").unwrap();
    from.subscription_identifier(9);
    from.response_topic("r").unwrap();
    from.correlation_data(b"\0").unwrap();
    from.message_expiry_interval_s(60);
    from.user_property("a", "1").unwrap();
    let mut forwarded = PropertyWriter::new();
    forwarded.message_expiry_interval_s(59);
    forwarded.forward(&from.properties());
    let actual = forwarded.properties();
    assert_eq!(actual.message_expiry_interval_s(), Some(59));
    assert_eq!(actual.topic_alias(), None);
    assert_eq!(actual.subscription_identifier(), None);
    assert_eq!(actual.payload_format_indicator(), Some(1));
    assert_eq!(actual.content_type(), Some("text/plain"));
    assert_eq!(actual.response_topic(), Some("r"));
    assert_eq!(actual.correlation_data(), Some(&b"\0"[..]));
    assert!(actual.user_properties().eq([("b", "2"), ("a", "1")]));
}

#[test]
#[should_panic(expected = "properties of this packet")]
fn property_in_a_packet_that_may_not_have_it_panics() {
    let mut properties = PropertyWriter::new();
    properties.topic_alias(1);
    let id = std::num::NonZeroU16::MIN;
    encode::unsubscribe(
        &mut Vec::new(),
        V5,
        id,
        &properties.properties(),
        ["a"].into_iter(),
    );
}

#[test]
fn reason_codes_have_the_specification_s_names() {
    let name = |code: ReasonCode| (code.value(), code.name());
    assert_eq!(name(ReasonCode::SUCCESS), (0, "Success"));
    assert_eq!(
        name(ReasonCode::SESSION_TAKEN_OVER),
        (0x8E, "Session taken over")
    );
    let last = ReasonCode::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED;
    assert_eq!(name(last), (0xA2, "Wildcard Subscriptions not supported"));
    for code in 0..=5 {
        let reason = ReasonCode::from_connect_return_code(code).unwrap();
        assert_eq!(reason.connect_return_code(), Some(code));
    }
    assert_eq!(ReasonCode::from_connect_return_code(6), None);
}
