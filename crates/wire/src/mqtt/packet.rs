//! The control packets (MQTT 5.0 chapter 3) as values that borrow from the input. [`decode`](super::decode()) makes them, and
//! [`encode`](super::encode) writes them. In a 3.1.1 packet, fields that exist only in 5.0 are empty or have their default.

use super::base::{PacketId, PacketType, Qos, Version};
use super::error::Error;
use super::lists::{ReasonCodes, SubscribeFilters, UnsubscribeFilters};
use super::property_set::Properties;
use super::property_table::Property;
use super::reason::ReasonCode;

/// Any control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the types of the values have docs
pub enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl Packet<'_> {
    /// The type of the packet.
    pub const fn kind(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::ConnAck(_) => PacketType::ConnAck,
            Self::Publish(_) => PacketType::Publish,
            Self::PubAck(_) => PacketType::PubAck,
            Self::PubRec(_) => PacketType::PubRec,
            Self::PubRel(_) => PacketType::PubRel,
            Self::PubComp(_) => PacketType::PubComp,
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::SubAck(_) => PacketType::SubAck,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::UnsubAck(_) => PacketType::UnsubAck,
            Self::PingReq => PacketType::PingReq,
            Self::PingResp => PacketType::PingResp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }

    /// Checks, for a server, that a client may send this packet.
    ///
    /// # Errors
    /// If it is a packet that only servers send: CONNACK, SUBACK, UNSUBACK, PINGRESP, a PUBLISH with subscription identifiers
    /// [MQTT-3.3.4-6], an AUTH with the reason success, or a DISCONNECT with a server reference or a reason code for servers.
    pub fn check_from_client(&self) -> Result<(), Error> {
        match self {
            Self::ConnAck(_) | Self::SubAck(_) | Self::UnsubAck(_) | Self::PingResp => {
                Err(Error::NotFromClient(self.kind()))
            }
            Self::Publish(publish) if publish.properties.has(Property::SubscriptionIdentifier) => {
                Err(Error::NotFromClient(PacketType::Publish))
            }
            Self::Disconnect(disconnect)
                if disconnect.properties.has(Property::ServerReference) =>
            {
                Err(Error::NotFromClient(PacketType::Disconnect))
            }
            Self::Disconnect(disconnect) if !disconnect.reason.disconnect_from_client() => {
                Err(Error::ReasonCode(disconnect.reason.value()))
            }
            Self::Auth(auth) if auth.reason == ReasonCode::SUCCESS => {
                Err(Error::ReasonCode(auth.reason.value()))
            }
            _ => Ok(()),
        }
    }
}

/// Connection request (section 3.1). The server must check the user name and the password, and whether it accepts an empty client id
/// (section 3.1.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The version of this packet and of all later ones.
    pub version: Version,
    /// The client is the bridge of another broker: it sent 0x84, the protocol level of 3.1.1 with the top bit set. Always false in 5.0.
    pub bridge: bool,
    /// Clean Start. In 3.1.1 this is the flag Clean Session: if it is set, the session also ends with the connection.
    pub clean_start: bool,
    /// Keep Alive in seconds; 0 switches it off.
    pub keep_alive_s: u16,
    /// Properties of the connection. The will has separate properties.
    pub properties: Properties<'a>,
    /// Client Identifier. If it is empty, the server assigns an identifier.
    pub client_id: &'a str,
    /// Will Message.
    pub will: Option<Will<'a>>,
    /// User Name.
    pub user_name: Option<&'a str>,
    /// Password. In 3.1.1 it requires a user name.
    pub password: Option<&'a [u8]>,
}

/// The message that the server publishes when the connection ends without a normal DISCONNECT (section 3.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// Will QoS.
    pub qos: Qos,
    /// Will Retain.
    pub retain: bool,
    /// Properties of the will, including its delay.
    pub properties: Properties<'a>,
    /// Will Topic; a topic name.
    pub topic: &'a str,
    /// Will Payload.
    pub payload: &'a [u8],
}

/// Connect acknowledgement (section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// The server resumes an earlier session. Never set in a refusal.
    pub session_present: bool,
    /// The outcome of the CONNECT. In 3.1.1 it is encoded as a return code.
    pub reason: ReasonCode,
    /// Properties, such as the features that the server supports.
    pub properties: Properties<'a>,
}

/// A message (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// DUP: the packet may have been sent before. Never set with QoS 0.
    pub dup: bool,
    /// QoS.
    pub qos: Qos,
    /// Sent to a server: store the message as retained. Sent by a server: the message is a retained one.
    pub retain: bool,
    /// Topic Name. It may be empty only with a topic alias.
    pub topic: &'a str,
    /// Present if and only if the QoS is not 0 [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    /// Properties of the message and of this delivery.
    pub properties: Properties<'a>,
    /// Application Message.
    pub payload: &'a [u8],
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The packet id of the PUBLISH.
    pub packet_id: PacketId,
    /// The outcome. In 3.1.1 it is always success.
    pub reason: ReasonCode,
    /// Reason string and user properties.
    pub properties: Properties<'a>,
}

/// Subscribe request (section 3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// The packet id, which the SUBACK repeats.
    pub packet_id: PacketId,
    /// Subscription identifier and user properties.
    pub properties: Properties<'a>,
    /// At least one filter.
    pub filters: SubscribeFilters<'a>,
}

/// Subscribe acknowledgement (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// The packet id of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Reason string and user properties.
    pub properties: Properties<'a>,
    /// One reason code for each filter, in order.
    pub reasons: ReasonCodes<'a>,
}

/// Unsubscribe request (section 3.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// The packet id, which the UNSUBACK repeats.
    pub packet_id: PacketId,
    /// User properties.
    pub properties: Properties<'a>,
    /// At least one filter.
    pub filters: UnsubscribeFilters<'a>,
}

/// Unsubscribe acknowledgement (section 3.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    /// The packet id of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Reason string and user properties.
    pub properties: Properties<'a>,
    /// One reason code for each filter, in order; none in 3.1.1.
    pub reasons: ReasonCodes<'a>,
}

/// Disconnect notification (section 3.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why the connection ends. In 3.1.1 only clients send DISCONNECT, and the reason is always normal.
    pub reason: ReasonCode,
    /// Session expiry, reason string, server reference, user properties.
    pub properties: Properties<'a>,
}

/// Authentication exchange (section 3.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, continue or re-authenticate.
    pub reason: ReasonCode,
    /// Method and data, reason string, user properties.
    pub properties: Properties<'a>,
}
