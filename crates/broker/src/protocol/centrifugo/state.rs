//! The state of a connection that few clients need, or that clients need only for a while.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::centrifugo::Ttl;

use crate::base::access::Grants;
use crate::base::ids::{ConnId, ShardId};
use crate::base::position::{Position, Since};
use crate::base::verdict::Identity;
use crate::budget::admission::Client;
use crate::budget::world::World;
use crate::client::list::part_name;
use crate::mail::presence::MemberConn;
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::front::{Clients, Connections};

/// The state.
#[derive(Default)]
pub struct Centrifugo {
    /// Commands that wait: for a verdict, for credit, or for the next turn.
    pub held: SpillBuffer,
    /// The verdict on the token of the next command, until the command is carried out.
    pub asked: Option<Box<Asked>>,
    /// Subscribe commands that no home has answered.
    pub subscribing: Vec<Subscribing>,
    /// History commands that no home has answered.
    pub histories: Vec<History>,
    /// The presence command that is not answered. The next one waits for it.
    pub presence: Option<Box<Presence>>,
    /// Subscriptions that are told of joins and leaves.
    pub watching: Vec<Watching>,
    /// Subscriptions that get deltas, sorted by their index.
    pub deltas: Vec<DeltaBase>,
    /// Subscriptions that the rights of the connection do not grant: by tokens of their own, or because the server began them.
    pub granted: Vec<Granted>,
    /// Subscriptions of the server whose positions the homes have not told.
    pub beginning: Vec<Beginning>,
    /// The id of the connect command that waits for them.
    pub connect: Option<u32>,
    /// The number of the last question to a home.
    pub last_question: u16,
}

/// The verdict on a token.
pub enum Asked {
    /// The verifier has not answered.
    Out,
    /// The verdict.
    Back(Identity),
}

/// A subscribe command that waits for its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribing {
    /// The index of the subscription with its serial number ([`part_name`]).
    pub part: u32,
    /// The id of the command.
    pub id: u32,
    /// The client has named a position.
    pub recovers: bool,
    /// The topic was deleted after that position.
    pub is_lost: bool,
    /// When the client must renew the subscription.
    pub ttl: Ttl,
}

/// A subscription that is granted apart from the rights of the connection.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Its index in the list.
    pub part: u32,
    /// The Unix second in which it ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
    /// The token that has granted it, if it was one of its own.
    pub token: Option<Arc<Grants>>,
    /// Whether the server began it.
    pub by_server: ByServer,
}

/// Whether the server has begun a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByServer {
    /// The client has.
    No,
    /// The server has, and its first page has not come. The client has missed nothing so far.
    Begins,
    /// The server has. The client must be told of each message that is lost.
    Yes,
}

/// A subscription that the server begins, until its topic's home has told where.
#[derive(Clone, Debug, Default)]
pub struct Beginning {
    /// The number of the question to the home.
    pub number: u16,
    /// The channel.
    pub channel: Box<str>,
    /// Where the client goes on, if it had the channel before.
    pub since: Option<Since>,
    /// Data for the client; empty for none.
    pub data: Box<[u8]>,
    /// The Unix second in which it ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
    /// Where it begins, once the home has told it.
    pub start: Option<Position>,
    /// The client goes on without a loss.
    pub is_recovered: bool,
}

/// A history command that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// The number of the question to the home.
    pub number: u16,
    /// The id of the command.
    pub id: u32,
    /// From the newest to the oldest.
    pub reverse: bool,
    /// The client has named a position, so it is told if messages after it are lost.
    pub since: bool,
}

/// A subscription that is told who comes to its channel, and who leaves.
pub struct Watching {
    /// Its index with its serial number ([`part_name`]).
    pub part: u32,
    /// The channel.
    pub topic: Box<[u8]>,
    /// The client that is counted as a watcher.
    pub client: Client,
    /// The next page may come when the socket has accepted the last one.
    pub waits: bool,
    /// The next changes are a snapshot, which is no news.
    pub skips: bool,
}

/// A subscription that gets deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaBase {
    /// Its index in the list.
    pub part: u32,
    /// The offset of the last message that was sent; 0 for none.
    pub sent: u64,
}

/// A presence command that waits for its members.
pub struct Presence {
    /// The id of the command.
    pub id: u32,
    /// Only how many there are.
    pub counts_only: bool,
    /// The channel.
    pub name: Box<[u8]>,
    /// The members that have come: client id, user and info.
    pub members: Vec<PresentClient>,
    /// The bytes of all of them.
    pub members_bytes: usize,
}

/// A member for the answer: client id, user and info.
pub type PresentClient = (String, String, Box<[u8]>);

impl Presence {
    /// Adds a member.
    pub fn push(&mut self, member: PresentClient) {
        let (client, user, info) = &member;
        self.members_bytes += size_of::<PresentClient>() + client.len() + user.len() + info.len();
        self.members.push(member);
    }

    fn bytes(&self) -> usize {
        size_of::<Presence>() + self.name.len() + self.members_bytes
    }
}

impl Beginning {
    fn bytes(&self) -> usize {
        self.channel.len() + self.data.len()
    }
}

impl Centrifugo {
    /// Whether nothing waits, so that the state need not be kept.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
            && self.asked.is_none()
            && self.subscribing.is_empty()
            && self.histories.is_empty()
            && self.presence.is_none()
            && self.watching.is_empty()
            && self.deltas.is_empty()
            && self.granted.is_empty()
            && self.beginning.is_empty()
            && self.connect.is_none()
    }

    /// The bytes of the state and its heap, without the held commands, which count as received bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Centrifugo>()
            + self.subscribing.capacity() * size_of::<Subscribing>()
            + self.histories.capacity() * size_of::<History>()
            + self.watching.capacity() * size_of::<Watching>()
            + self.watching.iter().map(|it| it.topic.len()).sum::<usize>()
            + self.presence.as_ref().map_or(0, |it| it.bytes())
            + self.deltas.capacity() * size_of::<DeltaBase>()
            + self.granted.capacity() * size_of::<Granted>()
            + self.beginning.capacity() * size_of::<Beginning>()
            + self.beginning.iter().map(Beginning::bytes).sum::<usize>()
    }
}

/// The state of a connection, if it has any.
pub(super) fn state(conns: &Connections, slot: u32) -> Option<&Centrifugo> {
    conns.find_extra(slot)?.protocol_state.centrifugo.as_deref()
}

/// The state of a connection, made if necessary.
pub(super) fn state_mut(conns: &mut Connections, slot: u32) -> &mut Centrifugo {
    conns
        .extra(slot)
        .protocol_state
        .centrifugo
        .get_or_insert_default()
}

/// Whether the subscription with this index waits for its first page.
pub(super) fn is_subscribing(clients: &Clients, slot: u32, part: u32) -> bool {
    let name = part_name(&clients.conns, slot, part);
    let state = state(&clients.conns, slot);
    state.is_some_and(|it| it.subscribing.iter().any(|waits| waits.part == name))
}

/// The text of an epoch.
pub fn epoch_text(epoch: u32) -> String {
    format!("{epoch:08x}")
}

/// The number of this process in the ids of its clients. All nodes of a cluster have one epoch, and each is another writer.
fn process_number(world: &World) -> u32 {
    let writer = world.writer.unwrap_or_default();
    world.epoch ^ writer as u32 ^ (writer >> 32) as u32
}

/// The id of this process as a node.
pub(super) fn node_id(world: &World) -> String {
    format!("{:08x}", process_number(world))
}

/// The connection whose client has this id, and its shard. `None` if the id is of another process. The connection may have ended.
pub fn client_named(world: &World, id: &str) -> Option<(ShardId, ConnId)> {
    let mut parts = id.splitn(4, '-');
    let mut part = || u32::from_str_radix(parts.next()?, 16).ok();
    let (process, shard, generation, slot) = (part()?, part()?, part()?, part()?);
    let conn = ConnId {
        slot,
        generation: u16::try_from(generation).ok()?,
    };
    let shard = ShardId::try_from(shard).ok()?;
    (process == process_number(world)).then_some((shard, conn))
}

/// The id of the client, which no other connection has.
pub(super) fn client_id(clients: &Clients, slot: u32) -> String {
    let at = MemberConn {
        shard: clients.ctx.own_shard,
        conn: clients.conns.id_of(slot),
    };
    client_id_text(&clients.ctx.world, at)
}

/// The id that a connection of this process has in this protocol, whatever protocol it speaks.
pub fn client_id_text(world: &World, at: MemberConn) -> String {
    let (process, ConnId { slot, generation }) = (process_number(world), at.conn);
    format!("{process:08x}-{:04x}-{generation:04x}-{slot:08x}", at.shard)
}
