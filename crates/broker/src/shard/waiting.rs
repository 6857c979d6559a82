//! What waits at a shard for the engine, and for whom.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::Client;
use crate::home::Reserved;
use crate::home::sessions::Room;
use crate::mail::orders::Ticket;
use crate::mail::{Answer, Ask, ReplyTo};

/// What a shard asked, while it waits.
pub(crate) struct Waiting {
    pub from: ShardId,
    /// The part of the sender's credit that is given back when it is done.
    pub weight: usize,
    pub what: What,
}

pub(crate) enum What {
    /// To be carried out as it was asked, with its bytes.
    Ask(Box<(Ask, Vec<u8>)>),
    /// To be applied as its record says, for someone.
    Write(For),
}

/// For whom a record is written, and what is reserved for it.
pub(crate) enum For {
    Nobody,
    Publisher(Answer, Client, Reserved),
    Order(Ticket),
    /// A member of a group, and the messages that it may be given.
    Member(ReplyTo, u32),
    /// A member that leaves this group.
    Leaver(ReplyTo, u64),
    /// A connection that claims a session; what it is counted for.
    Claimant(ReplyTo, Client, Room),
    /// The client that a session was counted for.
    Holder(Client),
    /// What is due of the partition at this place.
    Ending(usize),
}
