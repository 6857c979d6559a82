//! A connection that speaks MQTT 3.1.1 or 5.0, over TCP or within the binary frames of a WebSocket. `packets` reads
//! what comes; `connect` opens the session and ends it, `publish` takes the client's messages, `subscribe` makes its
//! subscriptions, `list` has them and `unsubscribe` ends them, `deliver` sends it messages and takes its
//! acknowledgements, `suspend` makes the stored form of its session and `resume` reads it.
//!
//! Invariants: nothing is done for a client before its session is there; answers to its publishes go out in their
//! order [MQTT-4.6.0-2, -3]; a wrong packet ends its own connection and no other, with the reason code of the
//! specification. A single subscription costs as much memory as over WebSocket, and 20 bytes.

pub(crate) mod access;
pub(crate) mod client;
pub(crate) mod close;
pub(crate) mod closing_sessions;
pub(crate) mod connect;
pub(crate) mod deliver;
pub(crate) mod filters;
pub(crate) mod give;
pub(crate) mod list;
pub(crate) mod matched;
pub(crate) mod options;
pub(crate) mod overlap;
pub(crate) mod packets;
pub(crate) mod page;
pub(crate) mod plain;
pub(crate) mod publish;
pub(crate) mod reading;
mod receive_maximum;
mod resume;
pub(crate) mod retained_latest;
pub(crate) mod retention;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod subscribe;
mod suspend;
mod unsubscribe;
