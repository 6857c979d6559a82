//! Handles posted commands. On the body of an answer only the server can send, so the client posts each frame of commands in a request. The request may come to
//! any shard, which hands the commands to the connection, and answers the request when the connection has them.
//!
//! Invariants:
//! * A session id contains a keyed digest of the connection, so it cannot be guessed and needs no memory. As in Centrifugo, everybody who knows it may act as the
//!   client.
//! * No later connection has the same session id. A connection's row is used again, but fewer connections use it in one second than there are generations.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use crore_wire::centrifugo::{Format, Scratch, decode};
use crore_wire::http::head::Head;

use crate::base::ids::{ConnId, ShardId};
use crate::base::reason::Reason;
use crate::budget::in_flight::InFlightCharge;
use crate::budget::world::World;
use crate::client::row::State;
use crate::io::Io;
use crate::mail::{ReplyTo, SessionCommands, Tell};
use crate::protocol::centrifugo::options::posts_commands;
use crate::protocol::centrifugo::state::node_id;
use crate::protocol::front::{Clients, Front, Lanes, Queues};
use crate::protocol::http::answer::answer_waiting;
use crate::protocol::http::publish::wait_for_answer;
use crate::protocol::http::state::PendingAnswer;
use crate::protocol::http::task::Flow;

/// Makes these digests different from others with the same key.
const PURPOSE: &[u8] = b"a session of Centrifugo's protocol";

/// The connection of a session.
#[derive(Clone, Copy)]
struct Session {
    shard: ShardId,
    conn: ConnId,
    began_unix_s: u32,
}

impl Session {
    fn digest(self, world: &World) -> blake3::Hash {
        let Session {
            shard,
            conn,
            began_unix_s,
        } = self;
        let mut mac = blake3::Hasher::new_keyed(&world.settings.access.key);
        mac.update(PURPOSE);
        mac.update(&u64::from(shard).to_le_bytes());
        mac.update(&conn.slot.to_le_bytes());
        mac.update(&conn.generation.to_le_bytes());
        mac.update(&began_unix_s.to_le_bytes());
        mac.finalize()
    }

    fn id(self, world: &World) -> String {
        let Session {
            shard,
            conn: ConnId { slot, generation },
            began_unix_s,
        } = self;
        let digest = self.digest(world).to_hex();
        format!("{shard:x}-{slot:x}-{generation:x}-{began_unix_s:x}-{digest}")
    }

    /// The session with this id. Its connection may have ended.
    fn from_id(world: &World, id: &str) -> Option<Session> {
        let (names, digest) = id.rsplit_once('-')?;
        let mut numbers = names
            .split('-')
            .map(|number| u32::from_str_radix(number, 16).ok());
        let mut next = || numbers.next().flatten();
        let (shard, slot, generation, began_unix_s) = (next()?, next()?, next()?, next()?);
        let session = Session {
            shard: ShardId::try_from(shard)
                .ok()
                .filter(|it| *it < world.shards)?,
            conn: ConnId {
                slot,
                generation: u16::try_from(generation).ok()?,
            },
            began_unix_s,
        };
        // Digests are compared in constant time.
        (blake3::Hash::from_hex(digest).ok()? == session.digest(world)).then_some(session)
    }
}

/// The session id of a connection.
pub(super) fn session_id(clients: &Clients, slot: u32) -> String {
    let session = Session {
        shard: clients.ctx.own_shard,
        conn: clients.conns.id_of(slot),
        began_unix_s: clients.conns.start_second(slot).unix_s(clients.ctx.now),
    };
    session.id(&clients.ctx.world)
}

/// Whether the body of a request is protobuf.
pub(super) fn is_protobuf(head: &Head<'_>) -> bool {
    head.header("content-type") == Some(b"application/octet-stream")
}

/// Hands the commands in the body of a request to the connection of their session.
pub(crate) fn hand_over_commands(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    head: &Head<'_>,
    body: &[u8],
) -> Flow {
    let format = match is_protobuf(head) {
        true => Format::Protobuf,
        false => Format::Json,
    };
    let mut scratch = Scratch::default();
    let posted = match decode::emulation(format, body, &mut scratch) {
        Ok(posted) => posted,
        Err(error) => {
            clients.respond_with_text(slot, Reason::BadBody, &format!("{error}"));
            return Flow::Next;
        }
    };
    clients.meter.work.steps.add_bytes(body.len());
    let world = &clients.ctx.world;
    if posted.node != node_id(world) {
        clients.respond_reason(slot, Reason::EmulationNode);
        return Flow::Next;
    }
    let Some(session) = Session::from_id(world, posted.session) else {
        // Centrifugo answers this too.
        clients.response_head(slot, 204).end();
        return Flow::Next;
    };
    let commands = SessionCommands {
        conn: session.conn,
        began_unix_s: session.began_unix_s,
        to: clients.conns.reply_to(slot, 0),
        data: posted.data.into(),
        charge: InFlightCharge::new(&world.admission, posted.data.len()),
    };
    lanes.tell(session.shard, Tell::Commands(Arc::new(commands)));
    wait_for_answer(&mut clients.conns, slot, PendingAnswer::Commands)
}

/// Handles posted commands for a connection of this shard, and tells the shard of the request that they have come.
pub(crate) fn take_session_commands<I: Io>(
    front: &mut Front,
    from: ShardId,
    commands: &SessionCommands,
    io: &mut I,
) {
    let (clients, slot) = (&front.clients, commands.conn.slot);
    let is_served = clients.conns.is_current(commands.conn) && {
        let row = clients.conns.get(slot);
        row.consumer.state == State::Centrifugo
            && posts_commands(row)
            && clients.conns.start_second(slot).unix_s(clients.ctx.now) == commands.began_unix_s
    };
    if is_served {
        front.handle_posted_frame(slot, &commands.data, io);
    }
    front.subs.lanes.tell(from, Tell::Fenced(commands.to));
}

/// Answers a request whose commands were handed to their connection. Returns false if the connection's request is another one.
pub(crate) fn answer_posted_commands<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    io: &mut I,
) -> bool {
    let pending = &mut clients
        .conns
        .ensure_side_row(to.slot)
        .protocol_state
        .pending_answer;
    if !matches!(pending, Some(PendingAnswer::Commands)) {
        return false;
    }
    *pending = None;
    clients.response_head(to.slot, 204).end();
    answer_waiting(clients, queues, to.slot, io);
    true
}
