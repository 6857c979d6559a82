//! Decodes the body of a packet (MQTT 5.0 chapter 3, MQTT 3.1.1 chapter 3).
//!
//! Invariant: every byte that has a meaning in MQTT is checked, and no byte is copied. Payloads and passwords may contain any bytes.

use super::base::{PacketType, Qos, V311_BRIDGE, Version};
use super::error::Error;
use super::header::Header;
use super::lists::{ReasonCodes, SubscribeFilters, UnsubscribeFilters};
use super::packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, Publish, SubAck, Subscribe, UnsubAck,
    Unsubscribe, Will,
};
use super::property_set::Properties;
use super::property_set::is_topic_name;
use super::property_table;
use super::property_table::Property;
use super::read::Reader;
use super::reason::ReasonCode;

/// Reads a packet from its fixed header and its body.
///
/// A CONNECT names its version in its body. `version` applies to all other packets.
///
/// # Errors
/// The first error of the packet, also if the length of `body` differs from the length in the header. Only CONNECT has errors about the
/// protocol name or version.
pub fn decode(version: Version, header: Header, body: &[u8]) -> Result<Packet<'_>, Error> {
    if body.len() != header.body_bytes() {
        return Err(Error::Truncated);
    }
    let kind = header.kind();
    // The version of a CONNECT is known only from its body.
    if header.is_length_padded && version == Version::V5 && kind != PacketType::Connect {
        return Err(Error::VariableByteInteger);
    }
    let mut rest = Reader(body);
    let packet = match kind {
        PacketType::Connect => return Ok(Packet::Connect(read_connect(header, rest)?)),
        PacketType::ConnAck => Packet::ConnAck(read_connack(version, &mut rest)?),
        PacketType::Publish => return Ok(Packet::Publish(read_publish(version, header, rest)?)),
        PacketType::PubAck => Packet::PubAck(read_ack(version, kind, &mut rest)?),
        PacketType::PubRec => Packet::PubRec(read_ack(version, kind, &mut rest)?),
        PacketType::PubRel => Packet::PubRel(read_ack(version, kind, &mut rest)?),
        PacketType::PubComp => Packet::PubComp(read_ack(version, kind, &mut rest)?),
        PacketType::Subscribe => return Ok(Packet::Subscribe(read_subscribe(version, rest)?)),
        PacketType::SubAck => return Ok(Packet::SubAck(read_suback(version, rest)?)),
        PacketType::Unsubscribe => {
            return Ok(Packet::Unsubscribe(read_unsubscribe(version, rest)?));
        }
        PacketType::UnsubAck => return Ok(Packet::UnsubAck(read_unsuback(version, rest)?)),
        PacketType::PingReq => Packet::PingReq,
        PacketType::PingResp => Packet::PingResp,
        PacketType::Disconnect => Packet::Disconnect(read_disconnect(version, &mut rest)?),
        PacketType::Auth => Packet::Auth(read_auth(version, &mut rest)?),
    };
    rest.expect_end()?;
    Ok(packet)
}

/// The properties of a packet. A 3.1.1 packet has none.
fn read_properties<'a>(
    version: Version,
    kind: PacketType,
    rest: &mut Reader<'a>,
) -> Result<Properties<'a>, Error> {
    match version {
        Version::V311 => Ok(Properties::NONE),
        Version::V5 => Properties::read(
            rest,
            property_table::allowed(kind),
            property_table::repeatable(kind),
        ),
    }
}

/// Bits of the connect flags (section 3.1.2.3).
pub(super) mod connect_flag {
    pub const RESERVED: u8 = 1;
    pub const CLEAN_START: u8 = 1 << 1;
    pub const WILL: u8 = 1 << 2;
    pub const WILL_QOS: u8 = 3 << 3;
    pub const WILL_RETAIN: u8 = 1 << 5;
    pub const PASSWORD: u8 = 1 << 6;
    pub const USER_NAME: u8 = 1 << 7;
}

fn read_connect<'a>(header: Header, mut rest: Reader<'a>) -> Result<Connect<'a>, Error> {
    let (version, is_bridge) = read_protocol(&mut rest)?;
    if header.is_length_padded && version == Version::V5 {
        return Err(Error::VariableByteInteger);
    }
    let flags = rest.byte()?;
    let will_qos = check_connect_flags(version, flags)?;
    let keep_alive_s = rest.u16()?;
    let properties = read_properties(version, PacketType::Connect, &mut rest)?;
    let client_id = rest.text()?;
    let will = match flags & connect_flag::WILL != 0 {
        true => Some(read_will(version, flags, will_qos, &mut rest)?),
        false => None,
    };
    let user_name = match flags & connect_flag::USER_NAME != 0 {
        true => Some(rest.text()?),
        false => None,
    };
    let password = match flags & connect_flag::PASSWORD != 0 {
        true => Some(rest.binary()?),
        false => None,
    };
    rest.expect_end()?;
    Ok(Connect {
        version,
        bridge: is_bridge,
        clean_start: flags & connect_flag::CLEAN_START != 0,
        keep_alive_s,
        properties,
        client_id,
        will,
        user_name,
        password,
    })
}

/// Reads the protocol name and version (sections 3.1.2.1 and 3.1.2.2), and whether the client is a bridge.
fn read_protocol(rest: &mut Reader<'_>) -> Result<(Version, bool), Error> {
    let name = rest.binary()?;
    if name != b"MQTT" && name != b"MQIsdp" {
        return Err(Error::ProtocolName);
    }
    match (name, rest.byte()?) {
        (b"MQTT", 4) => Ok((Version::V311, false)),
        (b"MQTT", V311_BRIDGE) => Ok((Version::V311, true)),
        (b"MQTT", 5) => Ok((Version::V5, false)),
        (_, level) => Err(Error::ProtocolVersion(level)),
    }
}

/// Checks the connect flags: the reserved bit, the will and the password. Returns the QoS of the will.
fn check_connect_flags(version: Version, flags: u8) -> Result<Qos, Error> {
    let will_qos =
        Qos::from_repr((flags & connect_flag::WILL_QOS) >> 3).ok_or(Error::ConnectFlags)?;
    let has_will_bits = flags & (connect_flag::WILL_QOS | connect_flag::WILL_RETAIN) != 0;
    let has_password_alone =
        flags & (connect_flag::PASSWORD | connect_flag::USER_NAME) == connect_flag::PASSWORD;
    if flags & connect_flag::RESERVED != 0
        || (has_will_bits && flags & connect_flag::WILL == 0)
        || (has_password_alone && version == Version::V311)
    {
        return Err(Error::ConnectFlags);
    }
    Ok(will_qos)
}

fn read_will<'a>(
    version: Version,
    flags: u8,
    qos: Qos,
    rest: &mut Reader<'a>,
) -> Result<Will<'a>, Error> {
    let properties = match version {
        Version::V311 => Properties::NONE,
        Version::V5 => Properties::read(rest, property_table::WILL, Property::UserProperty.bit())?,
    };
    let topic = rest.text()?;
    if !is_topic_name(topic) {
        return Err(Error::TopicName);
    }
    Ok(Will {
        qos,
        retain: flags & connect_flag::WILL_RETAIN != 0,
        properties,
        topic,
        payload: rest.binary()?,
    })
}

fn read_connack<'a>(version: Version, rest: &mut Reader<'a>) -> Result<ConnAck<'a>, Error> {
    let flags = rest.byte()?;
    if flags & 0xFE != 0 {
        return Err(Error::ConnAckFlags);
    }
    let code = rest.byte()?;
    let reason = match version {
        Version::V311 => ReasonCode::from_connect_return_code(code),
        Version::V5 => ReasonCode::for_packet(code, PacketType::ConnAck),
    };
    let reason = reason.ok_or(Error::ReasonCode(code))?;
    let session_present = flags != 0;
    if session_present && reason != ReasonCode::SUCCESS {
        return Err(Error::SessionPresent);
    }
    Ok(ConnAck {
        session_present,
        reason,
        properties: read_properties(version, PacketType::ConnAck, rest)?,
    })
}

fn read_publish<'a>(
    version: Version,
    header: Header,
    mut rest: Reader<'a>,
) -> Result<Publish<'a>, Error> {
    let topic = rest.text()?;
    let qos = header.qos();
    let packet_id = match qos {
        Qos::AtMostOnce => None,
        _ => Some(rest.packet_id()?),
    };
    let properties = read_properties(version, PacketType::Publish, &mut rest)?;
    if !is_topic_name(topic) {
        match version {
            Version::V5 if !topic.is_empty() => return Err(Error::TopicName),
            Version::V5 if properties.has(Property::TopicAlias) => {}
            Version::V5 => return Err(Error::TopicNameMissing),
            Version::V311 => return Err(Error::TopicName),
        }
    }
    Ok(Publish {
        dup: header.dup(),
        qos,
        retain: header.retain(),
        topic,
        packet_id,
        properties,
        payload: rest.0,
    })
}

/// Reads a PUBACK, PUBREC, PUBREL or PUBCOMP (section 3.4.2.1).
fn read_ack<'a>(
    version: Version,
    kind: PacketType,
    rest: &mut Reader<'a>,
) -> Result<Ack<'a>, Error> {
    let packet_id = rest.packet_id()?;
    let (reason, properties) = match version {
        Version::V311 => (ReasonCode::SUCCESS, Properties::NONE),
        Version::V5 => read_reason_and_properties(kind, rest)?,
    };
    Ok(Ack {
        packet_id,
        reason,
        properties,
    })
}

/// Reads the reason code and the properties at the end of a 5.0 packet. The sender may omit the properties, or both. A missing reason code
/// means success.
fn read_reason_and_properties<'a>(
    kind: PacketType,
    rest: &mut Reader<'a>,
) -> Result<(ReasonCode, Properties<'a>), Error> {
    if rest.is_empty() {
        return Ok((ReasonCode::SUCCESS, Properties::NONE));
    }
    let code = rest.byte()?;
    let reason = ReasonCode::for_packet(code, kind).ok_or(Error::ReasonCode(code))?;
    let properties = match rest.is_empty() {
        true => Properties::NONE,
        false => read_properties(Version::V5, kind, rest)?,
    };
    Ok((reason, properties))
}

fn read_subscribe(version: Version, mut rest: Reader<'_>) -> Result<Subscribe<'_>, Error> {
    Ok(Subscribe {
        packet_id: rest.packet_id()?,
        properties: read_properties(version, PacketType::Subscribe, &mut rest)?,
        filters: SubscribeFilters::read(version, rest.0)?,
    })
}

fn read_suback(version: Version, mut rest: Reader<'_>) -> Result<SubAck<'_>, Error> {
    Ok(SubAck {
        packet_id: rest.packet_id()?,
        properties: read_properties(version, PacketType::SubAck, &mut rest)?,
        reasons: ReasonCodes::read(version, PacketType::SubAck, rest.0)?,
    })
}

fn read_unsubscribe(version: Version, mut rest: Reader<'_>) -> Result<Unsubscribe<'_>, Error> {
    Ok(Unsubscribe {
        packet_id: rest.packet_id()?,
        properties: read_properties(version, PacketType::Unsubscribe, &mut rest)?,
        filters: UnsubscribeFilters::read(rest.0)?,
    })
}

fn read_unsuback(version: Version, mut rest: Reader<'_>) -> Result<UnsubAck<'_>, Error> {
    let packet_id = rest.packet_id()?;
    let properties = read_properties(version, PacketType::UnsubAck, &mut rest)?;
    let reasons = match version {
        Version::V311 => {
            rest.expect_end()?;
            ReasonCodes::NONE
        }
        Version::V5 => ReasonCodes::read(version, PacketType::UnsubAck, rest.0)?,
    };
    Ok(UnsubAck {
        packet_id,
        properties,
        reasons,
    })
}

fn read_disconnect<'a>(version: Version, rest: &mut Reader<'a>) -> Result<Disconnect<'a>, Error> {
    let (reason, properties) = match version {
        Version::V311 => (ReasonCode::NORMAL_DISCONNECTION, Properties::NONE),
        Version::V5 => read_reason_and_properties(PacketType::Disconnect, rest)?,
    };
    Ok(Disconnect { reason, properties })
}

/// An empty AUTH means success (section 3.15.2.1). A longer AUTH must name its authentication method.
fn read_auth<'a>(version: Version, rest: &mut Reader<'a>) -> Result<Auth<'a>, Error> {
    if version == Version::V311 {
        return Err(Error::PacketType);
    }
    if rest.is_empty() {
        return Ok(Auth {
            reason: ReasonCode::SUCCESS,
            properties: Properties::NONE,
        });
    }
    let code = rest.byte()?;
    let reason = ReasonCode::for_packet(code, PacketType::Auth).ok_or(Error::ReasonCode(code))?;
    let properties = read_properties(version, PacketType::Auth, rest)?;
    match properties.has(Property::AuthenticationMethod) {
        true => Ok(Auth { reason, properties }),
        false => Err(Error::AuthenticationMethod),
    }
}
