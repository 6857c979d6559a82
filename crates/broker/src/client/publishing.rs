//! The checks of a message before it is published, the same for all protocols: its topic, its length, the right to publish it ([`check_message`],
//! [`Clients::check_publish`]). Its other fields are checked in [`fields`](crate::mail::fields).
//!
//! HTTP requests and WebSocket frames are read by length, and their topic and right are checked before the data are there (`http/judge`,
//! `websocket/publish`). The rates of publishes are counted in `admission`; whether a home has room for the message is checked there (`home/admit`).

use crore_wire::topic::{self, TopicError};

use crate::base::access::Right;
use crate::base::reason::Reason;
use crate::base::settings::Limits;
use crate::client::parts::Clients;
use crate::client::types::ProtocolTypes;

/// Why a message is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The topic's name is not valid.
    Name(TopicError),
    /// The client has no right to publish it.
    Denied(Reason),
    /// Another reason.
    For(Reason),
}

impl Refused {
    /// The reason, without the fault of a name.
    pub fn reason(&self) -> Reason {
        match self {
            Refused::Name(_) => Reason::BadName,
            Refused::Denied(reason) | Refused::For(reason) => *reason,
        }
    }
}

/// Checks the topic of a message and the number of its bytes. `may_reserved` says whether the client may publish to this reserved name.
///
/// # Errors
/// Why it is not published.
pub fn check_message(
    limits: &Limits,
    name: &[u8],
    bytes: usize,
    may_reserved: impl FnOnce() -> bool,
) -> Result<(), Refused> {
    topic::check_name(name, limits.topic_bytes).map_err(Refused::Name)?;
    if topic::is_reserved(name) && !may_reserved() {
        return Err(Refused::For(Reason::Reserved));
    }
    match bytes <= limits.message_bytes {
        true => Ok(()),
        false => Err(Refused::For(Reason::MessageTooLong)),
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// The same for a client, with its right to publish.
    pub(crate) fn check_publish(
        &self,
        slot: u32,
        name: &[u8],
        bytes: usize,
        may_reserved: impl FnOnce() -> bool,
    ) -> Result<(), Refused> {
        check_message(&self.ctx.world.settings.limits, name, bytes, may_reserved)?;
        self.may(slot, Right::Publish, name)
            .map_err(Refused::Denied)
    }
}
