//! The control packets as values that borrow (MQTT 5.0 chapter 3). Decoding makes them, [`encode`](super::encode) takes
//! them. Fields that only 5.0 has are empty or at their default in 3.1.1.

use super::base::{PacketId, PacketType, Qos, Version};
use super::error::Error;
use super::lists::{Filters, ReasonCodes, TopicFilters};
use super::property_set::Properties;
use super::property_table::Property;
use super::reason::ReasonCode;

/// Any control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is what its value says
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
    /// Its type.
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
    /// CONNACK, SUBACK, UNSUBACK, PINGRESP; a PUBLISH with subscription identifiers [MQTT-3.3.4-6]; a DISCONNECT
    /// with a server reference or with a reason that only servers have; an AUTH that says success.
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

/// Connection request (section 3.1). The server decides about an empty client id (section 3.1.3.1), user name and password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The version of the connection from here on.
    pub version: Version,
    /// The client is a bridge of another broker, as the protocol level of 3.1.1 says (0x84); false in 5.0.
    pub bridge: bool,
    /// Clean Start; Clean Session in 3.1.1, where it also ends the session with the connection.
    pub clean_start: bool,
    /// Keep Alive in seconds, 0 for none.
    pub keep_alive_s: u16,
    /// Properties of the connection; the will has its own.
    pub properties: Properties<'a>,
    /// Client Identifier; empty asks the server for one.
    pub client_id: &'a str,
    /// Will Message.
    pub will: Option<Will<'a>>,
    /// User Name.
    pub user_name: Option<&'a str>,
    /// Password; in 3.1.1 only with a user name.
    pub password: Option<&'a [u8]>,
}

/// The message that is published when the connection ends without a DISCONNECT (section 3.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// Will QoS.
    pub qos: Qos,
    /// Will Retain.
    pub retain: bool,
    /// Properties of the will, with its delay.
    pub properties: Properties<'a>,
    /// Will Topic; a topic name.
    pub topic: &'a str,
    /// Will Payload.
    pub payload: &'a [u8],
}

/// Connect acknowledgement (section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// The server goes on with an earlier session; never with a failure.
    pub session_present: bool,
    /// The outcome of the CONNECT; in 3.1.1 by its return code.
    pub reason: ReasonCode,
    /// Properties: the features that the server supports.
    pub properties: Properties<'a>,
}

/// A message (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// It may have been sent before; never with QoS 0.
    pub dup: bool,
    /// QoS.
    pub qos: Qos,
    /// To a server: retain the message. From a server: it is a retained message.
    pub retain: bool,
    /// Topic Name; empty only with a topic alias.
    pub topic: &'a str,
    /// Present exactly when the QoS is not 0 [MQTT-2.2.1-2].
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
    /// The outcome; 3.1.1 knows only success.
    pub reason: ReasonCode,
    /// Reason string and user properties.
    pub properties: Properties<'a>,
}

/// Subscribe request (section 3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// For the SUBACK.
    pub packet_id: PacketId,
    /// Subscription identifier and user properties.
    pub properties: Properties<'a>,
    /// One or more.
    pub filters: Filters<'a>,
}

/// Subscribe acknowledgement (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// Of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Reason string and user properties.
    pub properties: Properties<'a>,
    /// One for each filter, in order.
    pub reasons: ReasonCodes<'a>,
}

/// Unsubscribe request (section 3.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// For the UNSUBACK.
    pub packet_id: PacketId,
    /// User properties.
    pub properties: Properties<'a>,
    /// One or more.
    pub filters: TopicFilters<'a>,
}

/// Unsubscribe acknowledgement (section 3.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    /// Of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Reason string and user properties.
    pub properties: Properties<'a>,
    /// One for each filter, in order; none in 3.1.1.
    pub reasons: ReasonCodes<'a>,
}

/// Disconnect notification (section 3.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why; always normal in 3.1.1, where only clients send it.
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
