//! MQTT 3.1.1 and 5.0 (OASIS, 2014 and 2019): every control packet, from bytes and to bytes.
//!
//! * [`sniff()`] says from the first bytes whether a connection speaks MQTT.
//! * [`fixed_header`] gives the length of the next packet, [`decode()`] its content. Nothing is copied or allocated: text,
//!   payload, properties and lists are borrowed from the bytes and checked when decoded.
//! * [`encode`] appends packets of both directions, [`PropertyBuf`] makes their properties.
//! * [`Filter`] takes a topic filter apart, `$share` included.
//!
//! Numbers in brackets are those of the normative statements, of 5.0 unless 3.1.1 is named.
//!
//! Invariants: no input panics; each refusal is an [`Error`] with the reason code to answer with; a decoded packet obeys
//! every rule that can be checked on the packet alone; an encoded packet decodes to the same again. Deliberately absent:
//! all that needs a memory of earlier packets (the first packet is CONNECT, packet ids in use, quotas, which aliases exist,
//! what the server offers), and limits on topics, see [`crate::topic`].

mod base;
mod decode;
pub mod encode;
mod error;
mod filter;
mod header;
mod lists;
mod options;
mod packet;
mod property_getters;
mod property_set;
mod property_table;
mod property_writer;
mod read;
mod reason;
mod sniff;
mod write;

pub use base::{
    FIELD_MAX, FILTERS_MAX, FIXED_HEADER_MAX, PACKET_BYTES_MAX, PacketId, PacketType, Qos,
    REMAINING_LENGTH_MAX, USER_PROPERTIES_MAX, Version,
};
pub use decode::decode;
pub use error::Error;
pub use filter::{Filter, FilterError};
pub use header::{Header, fixed_header};
pub use lists::{Filters, ReasonCodes, TopicFilters};
pub use options::{RetainHandling, SubscribeOptions};
pub use packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, Publish, SubAck, Subscribe, UnsubAck,
    Unsubscribe, Will,
};
pub use property_getters::{SubscriptionIdentifiers, UserProperties};
pub use property_set::Properties;
pub use property_table::Property;
pub use property_writer::{PropertyBuf, Unfit};
pub use reason::ReasonCode;
pub use sniff::{Sniff, sniff};
