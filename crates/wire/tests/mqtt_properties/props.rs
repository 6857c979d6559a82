//! MQTT properties as pairs of identifier and value: which packets may have them (a table that is independent of the codec), how they are
//! built, and what the getters return.

use crate::packets::{bytes, texts, topics};
use crore_wire::mqtt::{Properties, PropertyWriter, Qos, Version};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(u32),
    Text(String),
    Bytes(Vec<u8>),
    Pair(String, String),
}

/// Properties in a given order.
#[derive(Clone, Debug, PartialEq)]
pub struct Props(pub Vec<(u8, Value)>);

// The properties of each packet by section 2.2.2.2, table 2-4. Left out are those that the strategies add: user properties everywhere, the
// data that goes with 0x15, and more than one 0x0B in PUBLISH.
pub const CONNECT: &[u8] = &[0x11, 0x15, 0x17, 0x19, 0x21, 0x22, 0x27];
pub const WILL: &[u8] = &[0x01, 0x02, 0x03, 0x08, 0x09, 0x18];
pub const CONNACK: &[u8] = &[
    0x11, 0x12, 0x13, 0x15, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x27, 0x28, 0x29, 0x2A,
];
pub const PUBLISH: &[u8] = &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23];
pub const ACK: &[u8] = &[0x1F];
pub const SUBSCRIBE: &[u8] = &[0x0B];
pub const UNSUBSCRIBE: &[u8] = &[];
pub const DISCONNECT: &[u8] = &[0x11, 0x1C, 0x1F];
const AUTH: &[u8] = &[0x1F];

/// Some of `ids` and some user properties, in any order. None in 3.1.1.
pub fn any_of(version: Version, ids: &'static [u8]) -> BoxedStrategy<Props> {
    if version == Version::V311 {
        return Just(Props(Vec::new())).boxed();
    }
    let ids = prop::sample::subsequence(ids, 0..=ids.len());
    (ids, vec(property(0x26), 0..3))
        .prop_flat_map(|(ids, users)| {
            let values: Vec<_> = ids.into_iter().map(property).collect();
            (values, Just(users))
        })
        .prop_map(|(mut values, users)| {
            values.extend(users);
            values
        })
        .prop_shuffle()
        .prop_map(Props)
        .boxed()
}

/// Properties with a method, which AUTH must have, and perhaps with data.
pub fn auth() -> BoxedStrategy<Props> {
    let data = proptest::option::of(property(0x16));
    (any_of(Version::V5, AUTH), property(0x15), data)
        .prop_map(|(mut props, method, data)| {
            props.0.push(method);
            props.0.extend(data);
            props
        })
        .boxed()
}

fn property(id: u8) -> BoxedStrategy<(u8, Value)> {
    let value = match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A => {
            (0..2_u32).prop_map(Value::Number).boxed()
        }
        0x13 | 0x22 => (0..=0xFFFF_u32).prop_map(Value::Number).boxed(),
        0x21 | 0x23 => (1..=0xFFFF_u32).prop_map(Value::Number).boxed(),
        0x0B => (1..=0x0FFF_FFFF_u32).prop_map(Value::Number).boxed(),
        0x27 => (1..=u32::MAX).prop_map(Value::Number).boxed(),
        0x02 | 0x11 | 0x18 => any::<u32>().prop_map(Value::Number).boxed(),
        0x08 => topics().prop_map(Value::Text).boxed(),
        0x09 | 0x16 => bytes().prop_map(Value::Bytes).boxed(),
        0x26 => (texts(), texts())
            .prop_map(|(n, v)| Value::Pair(n, v))
            .boxed(),
        _ => texts().prop_map(Value::Text).boxed(),
    };
    value.prop_map(move |value| (id, value)).boxed()
}

impl Props {
    /// The properties, made with the builder.
    pub fn built(&self) -> PropertyWriter {
        let mut buf = PropertyWriter::new();
        for (id, value) in &self.0 {
            match value {
                Value::Number(value) => put_number(&mut buf, *id, *value),
                Value::Text(value) => put_text(&mut buf, *id, value),
                Value::Bytes(value) if *id == 0x09 => {
                    buf.correlation_data(value).unwrap();
                }
                Value::Bytes(value) => {
                    buf.authentication_data(value).unwrap();
                }
                Value::Pair(name, value) => {
                    buf.user_property(name, value).unwrap();
                }
            }
        }
        buf
    }

    /// Panics unless the getters of `actual` return these values, and `None` for all other properties.
    pub fn assert_is(&self, actual: &Properties<'_>) {
        let ids: Vec<u8> = actual.iter().map(|(property, _)| property.id()).collect();
        assert!(self.0.iter().map(|(id, _)| id).eq(&ids));
        let users = self.0.iter().filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((name.as_str(), value.as_str())),
            _ => None,
        });
        assert!(users.eq(actual.user_properties()));
        for id in (1..=0x2A).filter(|&id| id != 0x26) {
            let expected = self.0.iter().find(|(other, _)| *other == id);
            let (number, text, bytes) = match expected.map(|(_, value)| value) {
                Some(Value::Number(value)) => (Some(*value), None, None),
                Some(Value::Text(value)) => (None, Some(value.as_str()), None),
                Some(Value::Bytes(value)) => (None, None, Some(value.as_slice())),
                _ => (None, None, None),
            };
            assert_eq!(get_number(actual, id), number.or(default(id)), "0x{id:02X}");
            assert_eq!(get_text(actual, id), text, "0x{id:02X}");
            assert_eq!(get_bytes(actual, id), bytes, "0x{id:02X}");
        }
    }
}

fn put_number(buf: &mut PropertyWriter, id: u8, value: u32) {
    let (yes, short) = (value == 1, value as u16);
    match id {
        0x01 => buf.payload_is_utf8(yes),
        0x02 => buf.message_expiry_interval_s(value),
        0x0B => buf.subscription_identifier(value),
        0x11 => buf.session_expiry_interval_s(value),
        0x13 => buf.server_keep_alive_s(short),
        0x17 => buf.request_problem_information(yes),
        0x18 => buf.will_delay_interval_s(value),
        0x19 => buf.request_response_information(yes),
        0x21 => buf.receive_maximum(short),
        0x22 => buf.topic_alias_maximum(short),
        0x23 => buf.topic_alias(short),
        0x24 => buf.maximum_qos(Qos::from_repr(short as u8).unwrap()),
        0x25 => buf.retain_available(yes),
        0x27 => buf.maximum_packet_size_bytes(value),
        0x28 => buf.wildcard_subscription_available(yes),
        0x29 => buf.subscription_identifiers_available(yes),
        0x2A => buf.shared_subscription_available(yes),
        _ => panic!("0x{id:02X} is no number"),
    };
}

fn put_text(buf: &mut PropertyWriter, id: u8, value: &str) {
    match id {
        0x03 => buf.content_type(value),
        0x08 => buf.response_topic(value),
        0x12 => buf.assigned_client_identifier(value),
        0x15 => buf.authentication_method(value),
        0x1A => buf.response_information(value),
        0x1C => buf.server_reference(value),
        0x1F => buf.reason_string(value),
        _ => panic!("0x{id:02X} is no text"),
    }
    .unwrap();
}

fn get_number(actual: &Properties<'_>, id: u8) -> Option<u32> {
    match id {
        0x01 => actual.payload_format_indicator().map(u32::from),
        0x02 => actual.message_expiry_interval_s(),
        0x0B => actual.subscription_identifier(),
        0x11 => actual.session_expiry_interval_s(),
        0x13 => actual.server_keep_alive_s().map(u32::from),
        0x17 => Some(actual.request_problem_information().into()),
        0x18 => Some(actual.will_delay_interval_s()),
        0x19 => Some(actual.request_response_information().into()),
        0x21 => Some(actual.receive_maximum().into()),
        0x22 => Some(actual.topic_alias_maximum().into()),
        0x23 => actual.topic_alias().map(u32::from),
        0x24 => Some(actual.maximum_qos().bits().into()),
        0x25 => Some(actual.retain_available().into()),
        0x27 => actual.maximum_packet_size_bytes(),
        0x28 => Some(actual.wildcard_subscription_available().into()),
        0x29 => Some(actual.subscription_identifiers_available().into()),
        0x2A => Some(actual.shared_subscription_available().into()),
        _ => None,
    }
}

/// The value that an absent property has, if the specification gives one.
fn default(id: u8) -> Option<u32> {
    match id {
        0x17 | 0x25 | 0x28..=0x2A => Some(1),
        0x18 | 0x19 | 0x22 => Some(0),
        0x21 => Some(65_535),
        0x24 => Some(2),
        _ => None,
    }
}

fn get_text<'a>(actual: &Properties<'a>, id: u8) -> Option<&'a str> {
    match id {
        0x03 => actual.content_type(),
        0x08 => actual.response_topic(),
        0x12 => actual.assigned_client_identifier(),
        0x15 => actual.authentication_method(),
        0x1A => actual.response_information(),
        0x1C => actual.server_reference(),
        0x1F => actual.reason_string(),
        _ => None,
    }
}

fn get_bytes<'a>(actual: &Properties<'a>, id: u8) -> Option<&'a [u8]> {
    match id {
        0x09 => actual.correlation_data(),
        0x16 => actual.authentication_data(),
        _ => None,
    }
}
