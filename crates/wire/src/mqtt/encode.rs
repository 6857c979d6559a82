//! Encodes packets, for clients and servers: each function appends one packet to `out`.
//!
//! Lengths are computed first, so every byte is written once. In 3.1.1 the fields that exist only in 5.0 are omitted: properties, the
//! reasons of acknowledgements, and all subscription options except QoS.
//!
//! # Panics
//! All functions except [`publish()`] and `publish_head` panic on values that no packet can contain, because these are mistakes of the
//! caller: a text or binary field over [`FIELD_MAX`], or a packet over [`REMAINING_LENGTH_MAX`](super::REMAINING_LENGTH_MAX). Debug builds
//! also panic on a property that the packet may not have. The limits for topics and payloads of clients are far lower.

use super::base::{FIELD_MAX, PACKET_BYTES_MAX, PacketId, PacketType, Qos, V311_BRIDGE, Version};
use super::decode::connect_flag;
use super::header::{DUP, RETAIN};
use super::options::SubscribeOptions;
use super::packet::{Ack, Auth, ConnAck, Connect, Disconnect, Packet, Publish};
use super::property_set::Properties;
use super::property_table::{WILL, allowed};
use super::reason::ReasonCode;
use super::write::{
    field_len, properties_len, variable_len, write_field, write_head, write_properties,
    write_remaining_length, write_u16,
};
use alloc::vec::Vec;

/// CONNECT (section 3.1), in the version that `connect` names.
pub fn connect(out: &mut Vec<u8>, connect: &Connect<'_>) {
    let version = connect.version;
    let will = connect.will.as_ref();
    let will_len = will.map_or(0, |will| {
        properties_len(version, &will.properties) + field_len(will.topic) + 2 + will.payload.len()
    });
    let len = PROTOCOL_NAME.len()
        + 4
        + properties_len(version, &connect.properties)
        + field_len(connect.client_id)
        + will_len
        + connect.user_name.map_or(0, field_len)
        + connect.password.map_or(0, |password| 2 + password.len());
    write_head(out, PacketType::Connect, len);
    out.extend_from_slice(PROTOCOL_NAME);
    let level = match (version, connect.bridge) {
        (Version::V311, true) => V311_BRIDGE,
        _ => version.level(),
    };
    out.extend_from_slice(&[level, connect_flags(connect)]);
    write_u16(out, connect.keep_alive_s);
    write_properties(
        out,
        version,
        &connect.properties,
        allowed(PacketType::Connect),
    );
    write_field(out, connect.client_id.as_bytes());
    if let Some(will) = will {
        write_properties(out, version, &will.properties, WILL);
        write_field(out, will.topic.as_bytes());
        write_field(out, will.payload);
    }
    if let Some(user_name) = connect.user_name {
        write_field(out, user_name.as_bytes());
    }
    if let Some(password) = connect.password {
        write_field(out, password);
    }
}

const PROTOCOL_NAME: &[u8] = b"\0\x04MQTT";

fn connect_flags(connect: &Connect<'_>) -> u8 {
    let mut flags = 0;
    let mut set = |yes, flag| flags |= if yes { flag } else { 0 };
    set(connect.clean_start, connect_flag::CLEAN_START);
    set(connect.user_name.is_some(), connect_flag::USER_NAME);
    set(connect.password.is_some(), connect_flag::PASSWORD);
    if let Some(will) = &connect.will {
        set(true, connect_flag::WILL | will.qos.bits() << 3);
        set(will.retain, connect_flag::WILL_RETAIN);
    }
    flags
}

/// CONNACK (section 3.2). In 3.1.1 nothing is written if there is no return code for the reason: the server closes the connection without a
/// CONNACK [MQTT-3.2.2-6 of 3.1.1].
pub fn connack(out: &mut Vec<u8>, version: Version, connack: &ConnAck<'_>) {
    let code = match version {
        Version::V311 => connack.reason.connect_return_code(),
        Version::V5 => Some(connack.reason.value()),
    };
    let Some(code) = code else { return };
    let kind = PacketType::ConnAck;
    write_head(out, kind, 2 + properties_len(version, &connack.properties));
    out.extend_from_slice(&[connack.session_present.into(), code]);
    write_properties(out, version, &connack.properties, allowed(kind));
}

/// PUBLISH (section 3.3). The message comes from another client, so it must not cause a panic. Nothing is written if the packet would
/// exceed [`PACKET_BYTES_MAX`], the topic exceeds [`FIELD_MAX`], or the packet id does not match the QoS.
pub fn publish(out: &mut Vec<u8>, version: Version, publish: &Publish<'_>) {
    out.reserve(publish_bytes(version, publish, publish.payload.len()));
    if publish_head(out, version, publish, publish.payload.len()) {
        out.extend_from_slice(publish.payload);
    }
}

/// A PUBLISH without its payload of `payload_bytes` bytes, which the caller sends afterwards. The payload in `publish` is ignored. Returns
/// false and writes nothing in the cases in which [`publish()`] writes nothing.
pub fn publish_head(
    out: &mut Vec<u8>,
    version: Version,
    publish: &Publish<'_>,
    payload_bytes: usize,
) -> bool {
    let bytes = publish_bytes(version, publish, payload_bytes);
    let has_id = publish.packet_id.is_some() == (publish.qos != Qos::AtMostOnce);
    if bytes > PACKET_BYTES_MAX || publish.topic.len() > FIELD_MAX || !has_id {
        return false;
    }
    let flags = publish.qos.bits() << 1
        | if publish.dup { DUP } else { 0 }
        | if publish.retain { RETAIN } else { 0 };
    out.push((PacketType::Publish as u8) << 4 | flags);
    write_remaining_length(out, publish_len(version, publish, payload_bytes));
    write_field(out, publish.topic.as_bytes());
    if let Some(id) = publish.packet_id {
        write_u16(out, id.get());
    }
    write_properties(
        out,
        version,
        &publish.properties,
        allowed(PacketType::Publish),
    );
    true
}

/// The length of a whole PUBLISH in bytes, for comparison with the receiver's Maximum Packet Size [MQTT-3.1.2-24].
pub fn publish_bytes(version: Version, publish: &Publish<'_>, payload_bytes: usize) -> usize {
    let len = publish_len(version, publish, payload_bytes);
    1 + variable_len(len) + len
}

fn publish_len(version: Version, publish: &Publish<'_>, payload_bytes: usize) -> usize {
    field_len(publish.topic)
        + if publish.packet_id.is_some() { 2 } else { 0 }
        + properties_len(version, &publish.properties)
        + payload_bytes
}

/// PUBACK (section 3.4).
pub fn puback(out: &mut Vec<u8>, version: Version, ack: &Ack<'_>) {
    write_ack(out, version, PacketType::PubAck, ack);
}

/// PUBREC (section 3.5).
pub fn pubrec(out: &mut Vec<u8>, version: Version, ack: &Ack<'_>) {
    write_ack(out, version, PacketType::PubRec, ack);
}

/// PUBREL (section 3.6).
pub fn pubrel(out: &mut Vec<u8>, version: Version, ack: &Ack<'_>) {
    write_ack(out, version, PacketType::PubRel, ack);
}

/// PUBCOMP (section 3.7).
pub fn pubcomp(out: &mut Vec<u8>, version: Version, ack: &Ack<'_>) {
    write_ack(out, version, PacketType::PubComp, ack);
}

fn write_ack(out: &mut Vec<u8>, version: Version, kind: PacketType, ack: &Ack<'_>) {
    let len = reason_and_properties_len(version, ack.reason, &ack.properties);
    write_head(out, kind, 2 + len);
    write_u16(out, ack.packet_id.get());
    write_reason_and_properties(out, kind, len, ack.reason, &ack.properties);
}

/// The length of a reason code and properties. Success without properties takes no bytes. Another reason without properties takes one byte
/// (section 3.4.2.1).
fn reason_and_properties_len(
    version: Version,
    reason: ReasonCode,
    properties: &Properties<'_>,
) -> usize {
    match version {
        Version::V311 => 0,
        Version::V5 if !properties.is_empty() => 1 + properties_len(version, properties),
        Version::V5 => usize::from(reason != ReasonCode::SUCCESS),
    }
}

fn write_reason_and_properties(
    out: &mut Vec<u8>,
    kind: PacketType,
    len: usize,
    reason: ReasonCode,
    set: &Properties<'_>,
) {
    if len > 0 {
        out.push(reason.value());
    }
    if len > 1 {
        write_properties(out, Version::V5, set, allowed(kind));
    }
}

/// SUBSCRIBE (section 3.8).
pub fn subscribe<'a>(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    set: &Properties<'_>,
    filters: impl Iterator<Item = (&'a str, SubscribeOptions)> + Clone,
) {
    let kind = PacketType::Subscribe;
    let filters_len: usize = filters
        .clone()
        .map(|(filter, _)| field_len(filter) + 1)
        .sum();
    write_head(out, kind, 2 + properties_len(version, set) + filters_len);
    write_u16(out, packet_id.get());
    write_properties(out, version, set, allowed(kind));
    for (filter, options) in filters {
        write_field(out, filter.as_bytes());
        out.push(match version {
            Version::V311 => options.max_qos.bits(),
            Version::V5 => options.bits(),
        });
    }
}

/// SUBACK (section 3.9). In 3.1.1 every failure is 0x80.
pub fn suback(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    set: &Properties<'_>,
    reasons: impl Iterator<Item = ReasonCode> + Clone,
) {
    let kind = PacketType::SubAck;
    let count = reasons.clone().count();
    write_head(out, kind, 2 + properties_len(version, set) + count);
    write_u16(out, packet_id.get());
    write_properties(out, version, set, allowed(kind));
    out.extend(reasons.map(|reason| match version {
        Version::V311 if reason.is_error() => 0x80,
        _ => reason.value(),
    }));
}

/// UNSUBSCRIBE (section 3.10).
pub fn unsubscribe<'a>(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    set: &Properties<'_>,
    filters: impl Iterator<Item = &'a str> + Clone,
) {
    let kind = PacketType::Unsubscribe;
    let filters_len: usize = filters.clone().map(field_len).sum();
    write_head(out, kind, 2 + properties_len(version, set) + filters_len);
    write_u16(out, packet_id.get());
    write_properties(out, version, set, allowed(kind));
    filters.for_each(|filter| write_field(out, filter.as_bytes()));
}

/// UNSUBACK (section 3.11). In 3.1.1 it has no reason codes.
pub fn unsuback(
    out: &mut Vec<u8>,
    version: Version,
    packet_id: PacketId,
    set: &Properties<'_>,
    reasons: impl Iterator<Item = ReasonCode> + Clone,
) {
    let kind = PacketType::UnsubAck;
    let count = match version {
        Version::V311 => 0,
        Version::V5 => reasons.clone().count(),
    };
    write_head(out, kind, 2 + properties_len(version, set) + count);
    write_u16(out, packet_id.get());
    write_properties(out, version, set, allowed(kind));
    out.extend(reasons.take(count).map(ReasonCode::value));
}

/// PINGREQ (section 3.12).
pub fn pingreq(out: &mut Vec<u8>) {
    write_head(out, PacketType::PingReq, 0);
}

/// PINGRESP (section 3.13).
pub fn pingresp(out: &mut Vec<u8>) {
    write_head(out, PacketType::PingResp, 0);
}

/// DISCONNECT (section 3.14). A server does not call this in 3.1.1, where it closes the connection instead.
pub fn disconnect(out: &mut Vec<u8>, version: Version, disconnect: &Disconnect<'_>) {
    let kind = PacketType::Disconnect;
    let len = reason_and_properties_len(version, disconnect.reason, &disconnect.properties);
    write_head(out, kind, len);
    write_reason_and_properties(out, kind, len, disconnect.reason, &disconnect.properties);
}

/// AUTH (section 3.15), in 5.0 only.
pub fn auth(out: &mut Vec<u8>, auth: &Auth<'_>) {
    let kind = PacketType::Auth;
    if auth.reason == ReasonCode::SUCCESS && auth.properties.is_empty() {
        return write_head(out, kind, 0);
    }
    write_head(out, kind, 1 + properties_len(Version::V5, &auth.properties));
    out.push(auth.reason.value());
    write_properties(out, Version::V5, &auth.properties, allowed(kind));
}

/// Encodes a decoded packet again. The result may be shorter than the received bytes.
pub fn packet(out: &mut Vec<u8>, version: Version, packet: &Packet<'_>) {
    match packet {
        Packet::Connect(p) => connect(out, p),
        Packet::ConnAck(p) => connack(out, version, p),
        Packet::Publish(p) => publish(out, version, p),
        Packet::PubAck(p) => puback(out, version, p),
        Packet::PubRec(p) => pubrec(out, version, p),
        Packet::PubRel(p) => pubrel(out, version, p),
        Packet::PubComp(p) => pubcomp(out, version, p),
        Packet::Subscribe(p) => {
            subscribe(out, version, p.packet_id, &p.properties, p.filters.iter());
        }
        Packet::SubAck(p) => suback(out, version, p.packet_id, &p.properties, p.reasons.iter()),
        Packet::Unsubscribe(p) => {
            unsubscribe(out, version, p.packet_id, &p.properties, p.filters.iter());
        }
        Packet::UnsubAck(p) => unsuback(out, version, p.packet_id, &p.properties, p.reasons.iter()),
        Packet::PingReq => pingreq(out),
        Packet::PingResp => pingresp(out),
        Packet::Disconnect(p) => disconnect(out, version, p),
        Packet::Auth(p) => auth(out, p),
    }
}
