//! Comparison with another implementation (mqtt-protocol-core). It accepts every packet that this codec encodes, and encodes the same
//! bytes. If only one of the two accepts a damaged packet, it is a known difference.

use crate::packets::{packets, versions};
use crore_wire::mqtt::{Error, Packet, ReasonCode, Version, decode, fixed_header};
use mqtt_protocol_core::mqtt::packet::{v3_1_1, v5_0};
use mqtt_protocol_core::mqtt::result_code::MqttError;
use proptest::prelude::*;
use proptest::sample::Index;

/// The packet as the other implementation encodes it after it has parsed this body.
fn encode_with_oracle(version: Version, first: u8, body: &[u8]) -> Result<Vec<u8>, MqttError> {
    /// Parses with one of the other implementation's types, which must use all bytes.
    macro_rules! parse {
        ($module:ident :: $type:ident) => {{
            let (packet, len) = $module::$type::parse(body)?;
            match len == body.len() {
                true => Ok(packet.to_continuous_buffer()),
                false => Err(MqttError::MalformedPacket),
            }
        }};
        ($module:ident :: $type:ident, $flags:expr) => {{
            let (packet, _) = $module::$type::parse($flags, body.into())?;
            Ok(packet.to_continuous_buffer())
        }};
    }
    macro_rules! of {
        ($module:ident) => {
            match first >> 4 {
                1 => parse!($module::Connect),
                2 => parse!($module::Connack),
                3 => parse!($module::Publish, first & 0x0F),
                4 => parse!($module::Puback),
                5 => parse!($module::Pubrec),
                6 => parse!($module::Pubrel),
                7 => parse!($module::Pubcomp),
                8 => parse!($module::Subscribe),
                9 => parse!($module::Suback),
                10 => parse!($module::Unsubscribe),
                11 => parse!($module::Unsuback),
                12 => parse!($module::Pingreq),
                13 => parse!($module::Pingresp),
                _ => parse!($module::Disconnect),
            }
        };
    }
    match version {
        Version::V311 => of!(v3_1_1),
        Version::V5 if first >> 4 == 15 => parse!(v5_0::Auth),
        Version::V5 => of!(v5_0),
    }
}

/// Packets that only this codec accepts: a password without a user name, which 5.0 allows (section 3.1.2.9), and Bad authentication method
/// in DISCONNECT, which the table of section 2.4 lists.
fn accepted_only_by_crore(packet: &Packet<'_>) -> bool {
    match packet {
        Packet::Connect(connect) => connect.password.is_some() && connect.user_name.is_none(),
        Packet::Disconnect(disconnect) => {
            disconnect.reason == ReasonCode::BAD_AUTHENTICATION_METHOD
        }
        _ => false,
    }
}

/// Errors that only this codec reports, since the other implementation leaves these checks to its caller.
fn accepted_only_by_oracle(error: Error) -> bool {
    matches!(
        error,
        Error::AuthenticationMethod
            | Error::ConnAckFlags
            | Error::ConnectFlags
            | Error::Filter(_)
            | Error::NoLocalShared
            | Error::Nul
            | Error::SessionPresent
            | Error::SubscribeReserved
            | Error::TopicName
    )
}

proptest! {
    #[test]
    fn other_implementation_reads_and_writes_our_packets(
        (version, packet) in versions().prop_flat_map(|v| (Just(v), packets(v))),
    ) {
        let bytes = packet.encoded(version);
        let (header, at) = fixed_header(&bytes, bytes.len()).unwrap().unwrap();
        if accepted_only_by_crore(&decode(version, header, &bytes[at..]).unwrap()) {
            return Ok(());
        }
        let encoded = encode_with_oracle(version, bytes[0], &bytes[at..]);
        prop_assert_eq!(encoded.map_err(|error| format!("{error:?}")), Ok(bytes));
    }

    #[test]
    fn damaged_packets_are_judged_alike_by_both_implementations(
        (version, packet) in versions().prop_flat_map(|v| (Just(v), packets(v))),
        at in any::<Index>(),
        byte in any::<u8>(),
    ) {
        let bytes = packet.encoded(version);
        let (header, start) = fixed_header(&bytes, bytes.len()).unwrap().unwrap();
        let mut body = bytes[start..].to_vec();
        if body.is_empty() {
            return Ok(());
        }
        let at = at.index(body.len());
        body[at] = byte;
        let decoded = decode(version, header, &body);
        match (decoded, encode_with_oracle(version, bytes[0], &body)) {
            (Ok(decoded), Err(theirs)) => prop_assert!(accepted_only_by_crore(&decoded), "{decoded:?}: {theirs:?}"),
            (Err(decoded), Ok(theirs)) => prop_assert!(accepted_only_by_oracle(decoded), "{decoded:?}: {theirs:?}"),
            _ => {}
        }
    }
}
