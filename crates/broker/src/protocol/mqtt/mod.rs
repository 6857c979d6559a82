//! A connection with MQTT 3.1.1 or 5.0, over TCP or in binary frames of a WebSocket.
//!
//! `packets` decodes received packets. `connect` opens and ends the session, `publish` takes the client's messages, `subscribe`, `list` and
//! `unsubscribe` are its subscriptions, `deliver` sends messages and takes acknowledgements. `suspend` makes the stored form of a session, and `resume`
//! reads it. `details` describes a connection to the operator. `contract` implements the trait of all protocols.
//!
//! Invariants:
//! * The server carries out no packet of a client before the client has its session.
//! * A client's publishes are answered in the order in which it sent them [MQTT-4.6.0-2, -3].
//! * An invalid packet ends only the connection that sent it, with the reason code of the specification.
//! * A client with a single plain subscription takes 20 bytes more memory than a WebSocket with one subscription.

pub(crate) mod access;
pub(crate) mod client;
pub(crate) mod close;
pub(crate) mod closing_sessions;
pub(crate) mod codec;
pub(crate) mod connect;
pub(crate) mod contract;
pub(crate) mod deliver;
pub(crate) mod details;
pub(crate) mod options;
pub(crate) mod outgoing_publish;
pub(crate) mod overlap;
pub(crate) mod packets;
pub(crate) mod plain;
pub(crate) mod publish;
pub(crate) mod read_positions;
mod receive_maximum;
pub(crate) mod record;
mod resume;
pub(crate) mod retained_latest;
pub(crate) mod retention;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod subscribe;
mod subscription;
mod suspend;
mod unsubscribe;
