//! Checks a message before it is published, for all protocols: its topic, its length and the right to publish it
//! ([`check_message`], [`Clients::check_publish`]). Other fields are checked in [`fields`](crate::mail::fields).
//!
//! HTTP requests and WebSocket frames announce their length, so topic and right are checked before the data arrive (`http/judge`,
//! `websocket/publish`). `admission` checks the rates of publishes. The home (the part of a shard that keeps the topic) checks
//! whether it has room (`home/admit`).

use crore_wire::topic::{self, TopicError};

use crate::base::access::Right;
use crate::base::reason::Reason;
use crate::base::settings::Limits;
use crate::client::parts::Clients;
use crate::client::types::ProtocolTypes;

/// Why a message is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishRefusal {
    /// The topic's name is not valid.
    Name(TopicError),
    /// The client lacks the right to publish it.
    Denied(Reason),
    /// Another reason.
    Other(Reason),
}

impl PublishRefusal {
    /// The reason, without what is wrong with a name.
    pub fn reason(&self) -> Reason {
        match self {
            PublishRefusal::Name(_) => Reason::BadName,
            PublishRefusal::Denied(reason) | PublishRefusal::Other(reason) => *reason,
        }
    }
}

/// Checks a message's topic and length. `may_reserved` tells whether the client may publish to a reserved name.
///
/// # Errors
/// Why it is not published.
pub fn check_message(
    limits: &Limits,
    name: &[u8],
    bytes: usize,
    may_reserved: impl FnOnce() -> bool,
) -> Result<(), PublishRefusal> {
    topic::check_name(name, limits.topic_bytes).map_err(PublishRefusal::Name)?;
    if topic::is_reserved(name) && !may_reserved() {
        return Err(PublishRefusal::Other(Reason::Reserved));
    }
    match bytes <= limits.message_bytes {
        true => Ok(()),
        false => Err(PublishRefusal::Other(Reason::MessageTooLong)),
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// Checks a message's topic and length, and the client's right to publish it.
    pub(crate) fn check_publish(
        &self,
        slot: u32,
        name: &[u8],
        bytes: usize,
        may_reserved: impl FnOnce() -> bool,
    ) -> Result<(), PublishRefusal> {
        check_message(&self.ctx.world.settings.limits, name, bytes, may_reserved)?;
        self.check_right(slot, Right::Publish, name)
            .map_err(PublishRefusal::Denied)
    }
}
