//! The codec of MQTT 3.1.1 and 5.0 (OASIS, 2014 and 2019): decodes and encodes every control packet.
//!
//! * [`sniff()`] tells from the first bytes whether a connection speaks MQTT.
//! * [`fixed_header`] gives the length of the next packet, and [`decode()`] its content. Decoding copies and allocates nothing:
//!   text, payload, properties and lists are checked and borrowed from the input.
//! * [`encode`] writes packets in both directions, and [`PropertyWriter`] writes their properties.
//! * [`Filter`] parses a topic filter, `$share` included.
//!
//! In comments, a number in brackets names a normative statement: of MQTT 5.0, or of 3.1.1 if the comment says so.
//!
//! Invariants: no input makes the decoder panic. Each refusal is an [`Error`] with the reason code for the response. A decoded packet obeys
//! all rules that concern only this packet. An encoded packet decodes to an equal one.
//!
//! The codec deliberately sees only one packet. Rules about earlier packets or the server are checked elsewhere: whether CONNECT comes
//! first, the packet ids in use, quotas, the known topic aliases, and the features of the server. The limits for topics are in
//! [`crate::topic`].

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
pub use filter::{Filter, FilterError, split_shared};
pub use header::{Header, fixed_header};
pub use lists::{ReasonCodes, SubscribeFilters, UnsubscribeFilters};
pub use options::{RetainHandling, SubscribeOptions};
pub use packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, Publish, SubAck, Subscribe, UnsubAck,
    Unsubscribe, Will,
};
pub use property_getters::{SubscriptionIdentifiers, UserProperties};
pub use property_set::Properties;
pub use property_table::Property;
pub use property_writer::{PropertyWriter, Unencodable};
pub use reason::ReasonCode;
pub use sniff::{Sniff, sniff};
