//! The state of a connection with Centrifugo's protocol that few clients need, or that clients need only for a while.

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
use crate::client::list::index_with_serial;
use crate::mail::backend::BackendResult;
use crate::mail::presence::MemberConn;
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::front::{Clients, Connections};

/// That state.
#[derive(Default)]
pub struct CentrifugoState {
    /// Commands that wait: for a verdict, for credit, or for the next turn.
    pub held_commands: SpillBuffer,
    /// The check of the next command's token, until that command is carried out.
    pub token_check: Option<Box<TokenCheck>>,
    /// What the operator's backend has to do with the connection; `None` for nothing.
    pub backend: Option<Box<BackendState>>,
    /// Subscribe commands that no home has answered.
    pub pending_subscribes: Vec<PendingSubscribe>,
    /// History commands that no home has answered.
    pub pending_histories: Vec<PendingHistory>,
    /// The presence command that is not answered. The next one waits for it.
    pub pending_presence: Option<Box<PendingPresence>>,
    /// The number of method calls that the backend has not answered (`rpc.rs`).
    pub pending_calls: u32,
    /// Subscriptions whose client is told of joins and leaves.
    pub watched_channels: Vec<WatchedChannel>,
    /// Subscriptions that get deltas, sorted by their index.
    pub deltas: Vec<DeltaBase>,
    /// Subscriptions that are not granted by the rights of the connection: they have tokens of their own, or the server began them.
    pub separate_grants: Vec<SeparateGrant>,
    /// Subscriptions that the server begins and whose positions the homes have not told yet.
    pub server_starts: Vec<ServerStart>,
    /// The connect command whose reply waits for these positions.
    pub pending_connect: Option<Box<PendingConnect>>,
    /// The number of the last request for a page that is not for a subscription.
    pub last_question: u16,
}

/// The check of a token.
pub enum TokenCheck {
    /// The verifier has not answered.
    Pending,
    /// The verifier's verdict.
    Answered(Identity),
}

/// What the operator's backend has to do with a connection.
#[derive(Default)]
pub struct BackendState {
    /// The next command is one that the backend decides. Exists from the question until the command is carried out.
    pub check: Option<BackendCheck>,
    /// What the connection token or the backend has told about the connection (JSON), for later calls.
    pub meta: Box<[u8]>,
    /// The next question to the backend whether the connection goes on, if the backend has granted it until then.
    pub renewal: Option<Renewal>,
}

impl BackendState {
    fn is_empty(&self) -> bool {
        self.check.is_none() && self.meta.is_empty() && self.renewal.is_none()
    }

    fn bytes(&self) -> usize {
        let result_bytes = match &self.check {
            Some(BackendCheck::Answered(result)) => result.bytes(),
            Some(BackendCheck::Pending(_)) | None => 0,
        };
        size_of::<BackendState>() + self.meta.len() + result_bytes
    }
}

/// A question to the backend about a command.
pub enum BackendCheck {
    /// The backend has not answered the question with this number.
    Pending(u32),
    /// Its answer.
    Answered(BackendResult),
}

/// A subscribe command that waits for its first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSubscribe {
    /// The subscription: its index and its serial number ([`index_with_serial`]).
    pub sub_key: u32,
    /// The id of the command.
    pub id: u32,
    /// The client has named a position to recover from.
    pub wants_recovery: bool,
    /// The client wants an error if messages after that position are lost.
    pub rejects_loss: bool,
    /// The topic was deleted after that position.
    pub is_lost: bool,
    /// The seconds after which the client must renew the subscription.
    pub ttl: Ttl,
    /// Data of the token or of the backend for the client; empty for none.
    pub data: Box<[u8]>,
}

/// A connect command that waits for the positions of the channels to which the server subscribes the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingConnect {
    /// The id of the command.
    pub id: u32,
    /// Data of the backend for the client; empty for none.
    pub data: Box<[u8]>,
}

/// When the backend is asked whether something that it has granted goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The Unix second of the next question.
    pub ask_unix_s: u32,
    /// The number of the question that is not answered.
    pub pending: Option<u32>,
}

/// The grant of a subscription that is not granted by the rights of the connection.
#[derive(Clone, Debug)]
pub struct SeparateGrant {
    /// The subscription's index in the list.
    pub sub_index: u32,
    /// The Unix second in which it ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
    /// The token that has granted the subscription, if there was one.
    pub token: Option<Arc<Grants>>,
    /// The next question to the backend whether the subscription goes on, if the backend has granted it until then.
    pub renewal: Option<Renewal>,
    /// Who began the subscription.
    pub started_by: StartedBy,
}

/// Who has begun a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// The client.
    Client,
    /// The server, and the first page has not come. The client has missed nothing so far.
    ServerBeforeFirstPage,
    /// The server, and the first page has come. The client must be told of each loss of messages.
    Server,
}

/// A subscription that the server begins, until the topic's home has told the position where it begins.
#[derive(Clone, Debug, Default)]
pub struct ServerStart {
    /// The number of the request to the home.
    pub number: u16,
    /// The channel.
    pub channel: Box<str>,
    /// The position after which the client continues, if it had the channel before.
    pub since: Option<Since>,
    /// Data for the client; empty for none.
    pub data: Box<[u8]>,
    /// The Unix second in which it ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
    /// Whether the client is told of joins and leaves.
    pub join_leave: bool,
    /// As [`SeparateGrant::renewal`].
    pub renewal: Option<Renewal>,
    /// The position where the subscription begins; `None` until the home has told it.
    pub position: Option<Position>,
    /// The client has lost no message since its position.
    pub is_recovered: bool,
}

/// A history command that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingHistory {
    /// The number of the request to the home.
    pub number: u16,
    /// The id of the command.
    pub id: u32,
    /// The messages are wanted from the newest to the oldest.
    pub is_reverse: bool,
    /// The client has named a position, so it is told if messages after it are lost.
    pub has_position: bool,
}

/// A subscription whose client is told who joins and leaves the channel.
pub struct WatchedChannel {
    /// The subscription: its index and its serial number ([`index_with_serial`]).
    pub sub_key: u32,
    /// The channel.
    pub topic: Box<[u8]>,
    /// The client that is counted as a watcher.
    pub client: Client,
    /// Its token grants the pushes, so that it needs no right to presence.
    pub is_granted: bool,
    /// The next page must be requested when the socket has accepted the last one.
    pub is_page_due: bool,
    /// The next changes belong to a snapshot, which the client is not told.
    pub skips_snapshot: bool,
}

/// A subscription that gets deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaBase {
    /// The subscription's index in the list.
    pub sub_index: u32,
    /// The offset of the last message that was sent; 0 for none.
    pub sent_offset: u64,
}

/// A presence command that waits for its members.
pub struct PendingPresence {
    /// The id of the command.
    pub id: u32,
    /// The client asks only for the number of members.
    pub counts_only: bool,
    /// The channel.
    pub name: Box<[u8]>,
    /// The members received so far.
    pub members: Vec<PresentClient>,
    /// The bytes of all these members.
    pub members_bytes: usize,
}

/// A member for the answer: client id, user and info.
pub type PresentClient = (String, String, Box<[u8]>);

impl PendingPresence {
    /// Adds a member.
    pub fn push(&mut self, member: PresentClient) {
        let (client, user, info) = &member;
        self.members_bytes += size_of::<PresentClient>() + client.len() + user.len() + info.len();
        self.members.push(member);
    }

    fn bytes(&self) -> usize {
        size_of::<PendingPresence>() + self.name.len() + self.members_bytes
    }
}

impl ServerStart {
    fn bytes(&self) -> usize {
        self.channel.len() + self.data.len()
    }
}

impl CentrifugoState {
    /// Whether nothing waits, so that the state need not be kept.
    pub fn is_idle(&self) -> bool {
        self.held_commands.is_empty()
            && self.token_check.is_none()
            && self.backend.as_ref().is_none_or(|it| it.is_empty())
            && self.pending_subscribes.is_empty()
            && self.pending_histories.is_empty()
            && self.pending_presence.is_none()
            && self.pending_calls == 0
            && self.watched_channels.is_empty()
            && self.deltas.is_empty()
            && self.separate_grants.is_empty()
            && self.server_starts.is_empty()
            && self.pending_connect.is_none()
    }

    /// The bytes of the heap, without the held commands, which count as received bytes.
    pub fn heap_bytes(&self) -> usize {
        self.pending_subscribes.capacity() * size_of::<PendingSubscribe>()
            + self
                .pending_subscribes
                .iter()
                .map(|it| it.data.len())
                .sum::<usize>()
            + self.backend.as_ref().map_or(0, |it| it.bytes())
            + self
                .pending_connect
                .as_ref()
                .map_or(0, |it| size_of::<PendingConnect>() + it.data.len())
            + self.pending_histories.capacity() * size_of::<PendingHistory>()
            + self.watched_channels.capacity() * size_of::<WatchedChannel>()
            + self
                .watched_channels
                .iter()
                .map(|it| it.topic.len())
                .sum::<usize>()
            + self.pending_presence.as_ref().map_or(0, |it| it.bytes())
            + self.deltas.capacity() * size_of::<DeltaBase>()
            + self.separate_grants.capacity() * size_of::<SeparateGrant>()
            + self.server_starts.capacity() * size_of::<ServerStart>()
            + self
                .server_starts
                .iter()
                .map(ServerStart::bytes)
                .sum::<usize>()
    }
}

/// The state of a connection, if it has any.
pub(super) fn state(conns: &Connections, slot: u32) -> Option<&CentrifugoState> {
    conns.find_side_row(slot)?.protocol_state.centrifugo()
}

/// The state of a connection, made if necessary.
pub(super) fn state_mut(conns: &mut Connections, slot: u32) -> &mut CentrifugoState {
    conns.ensure_side_row(slot).protocol_state.centrifugo_mut()
}

/// The next question to the backend whether the connection goes on.
pub(super) fn renewal_of_connection(conns: &Connections, slot: u32) -> Option<Renewal> {
    state(conns, slot)?.backend.as_ref()?.renewal
}

/// What the backend has to do with the connection; empty until something is set.
pub(super) fn backend_mut(conns: &mut Connections, slot: u32) -> &mut BackendState {
    state_mut(conns, slot).backend.get_or_insert_default()
}

/// Takes the question to the backend about the next command, if there is one.
pub(super) fn take_backend_check(conns: &mut Connections, slot: u32) -> Option<BackendCheck> {
    state(conns, slot)?.backend.as_ref()?;
    let backend = &mut state_mut(conns, slot).backend;
    let check = backend.as_mut().and_then(|it| it.check.take());
    if backend.as_ref().is_some_and(|it| it.is_empty()) {
        *backend = None;
    }
    check
}

/// Whether the subscription with this index waits for its first page.
pub(super) fn is_subscribing(clients: &Clients, slot: u32, sub_index: u32) -> bool {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    let state = state(&clients.conns, slot);
    state.is_some_and(|it| {
        it.pending_subscribes
            .iter()
            .any(|pending| pending.sub_key == key)
    })
}

/// The text of an epoch.
pub fn epoch_text(epoch: u32) -> String {
    format!("{epoch:08x}")
}

/// The id of this process as a node.
pub(super) fn node_id(world: &World) -> String {
    format!("{:08x}", world.process_number())
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
    (process == world.process_number()).then_some((shard, conn))
}

/// The id of the client, which no other connection has.
pub(super) fn client_id(clients: &Clients, slot: u32) -> String {
    let at = MemberConn::here(clients.ctx.own_shard, clients.conns.id_of(slot));
    client_id_text(&clients.ctx.world, at, 0)
}

/// The id that a connection has in this protocol, whatever protocol it speaks. Its process began with this writer number; 0 is this process.
pub fn client_id_text(world: &World, at: MemberConn, writer: u64) -> String {
    let ConnId { slot, generation } = at.conn;
    let process = match writer {
        0 => world.process_number(),
        writer => world.process_number_of(writer),
    };
    format!("{process:08x}-{:04x}-{generation:04x}-{slot:08x}", at.shard)
}
