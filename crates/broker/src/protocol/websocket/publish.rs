//! Publishes the frames of a WebSocket: the upgrade on a publish path, the messages, and their acknowledgements in the meta
//! subprotocol.

use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::websocket::frame::{self, Opcode};

use crate::base::access::Right;
use crate::base::journal::EventKind;
use crate::base::position::{self, Position};
use crate::base::reason::Reason;
use crate::client::asking::publish_as;
use crate::client::row::State;
use crate::home::Home;
use crate::io::Io;
use crate::mail::message::{Headers, Publish, is_binary};
use crate::mail::{Outcome, WantedAnswer};
use crate::protocol::front::{Clients, Subscriptions};
use crate::protocol::http::options::{META_FRAMES, PUBLISHES};
use crate::protocol::http::state::PublishTarget;
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::http::task::Flow;
use crate::protocol::websocket::handshake::{FrameContent, accept_upgrade};

/// Publishes the data of a frame, if the connection may publish. False if the connection has ended.
pub(crate) fn publish_frame<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    data: &[u8],
    is_binary_frame: bool,
    home: &mut Option<Home>,
    io: &mut I,
) -> bool {
    if !clients.conns.get(slot).has_option(PUBLISHES) {
        return true;
    }
    let wants_ack = clients.conns.get(slot).has_option(META_FRAMES);
    let side_row = clients.conns.ensure_side_row(slot);
    let Some(mut publish_to) = side_row.protocol_state.publish_to.take() else {
        clients.end_as_broken(slot);
        return false;
    };
    let number = publish_to.frame_count;
    publish_to.frame_count = number.wrapping_add(1);
    if let Err(denied) = clients.check_right(slot, Right::Publish, &publish_to.name) {
        // The right was granted when the connection began, and was lost later.
        clients.send_reply(slot, io);
        end_stream(clients, slot, denied, io);
        return false;
    }
    if let Err(reached) = clients.check_publish_rate(slot) {
        clients
            .conns
            .ensure_side_row(slot)
            .protocol_state
            .publish_to = Some(publish_to);
        return refuse_frame(clients, slot, number, reached, io);
    }
    let (_, home_shard) = clients.ctx.hash_and_home_of(&publish_to.name);
    let content_type: &[u8] = if is_binary_frame {
        b"application/octet-stream"
    } else {
        b""
    };
    let message = Publish {
        hash: publish_to.hash,
        name: &publish_to.name,
        data,
        headers: Headers {
            content_type,
            qos: 1,
            binary: is_binary_frame && is_binary(content_type, data),
            ..Headers::default()
        },
        dedup: None,
        client: clients.conns.get(slot).consumer.client,
    };
    let to = clients.conns.reply_to(slot, number);
    let answer = if wants_ack {
        WantedAnswer::OutcomeAndInfo(to)
    } else {
        WantedAnswer::Failure(to)
    };
    let outcome = publish_as(clients, subs, home, slot, home_shard, &message, answer);
    clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .publish_to = Some(publish_to);
    outcome.is_none_or(|outcome| handle_frame_outcome(clients, slot, number, outcome, io))
}

/// Handles the outcome of a published frame. Without acknowledgements, a refusal closes the connection. False if the connection has
/// ended.
pub(crate) fn handle_frame_outcome<I: Io>(
    clients: &mut Clients,
    slot: u32,
    number: u32,
    outcome: Outcome,
    io: &mut I,
) -> bool {
    if clients.conns.get(slot).has_option(META_FRAMES) {
        clients.send_reply(slot, io);
        acknowledge(clients, slot, number, outcome, io);
        return true;
    }
    let Some(reason) = outcome.refusal() else {
        return true;
    };
    clients.send_reply(slot, io);
    end_stream(clients, slot, reason, io);
    false
}

/// Refuses a frame that exceeds a rate: by an acknowledgement if the client gets them, else by closing the connection.
fn refuse_frame<I: Io>(
    clients: &mut Clients,
    slot: u32,
    number: u32,
    reason: Reason,
    io: &mut I,
) -> bool {
    clients.send_reply(slot, io);
    if clients.conns.get(slot).has_option(META_FRAMES) {
        acknowledge(clients, slot, number, Outcome::NoRoom(reason), io);
        return true;
    }
    end_stream(clients, slot, reason, io);
    false
}

/// Upgrades a connection on a publish path. It has no subscription, so the answer is sent at once.
pub(crate) fn upgrade_to_publish<I: Io>(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    name: &[u8],
    io: &mut I,
) -> Flow {
    if let Err(reason) = accept_upgrade(clients, slot, head, FrameContent::Messages) {
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    let (hash, _) = clients.ctx.hash_and_home_of(name);
    clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .publish_to = Some(PublishTarget {
        hash,
        name: name.into(),
        frame_count: 0,
    });
    let row = clients.conns.get_mut(slot);
    row.consumer.options |= PUBLISHES;
    row.consumer.state = State::WebSocket;
    clients.send_reply(slot, io);
    Flow::Wait
}

/// Sends the acknowledgement of a published frame, in the meta subprotocol.
pub(crate) fn acknowledge<I: Io>(
    clients: &mut Clients,
    slot: u32,
    number: u32,
    outcome: Outcome,
    io: &mut I,
) {
    let mut text = Vec::with_capacity(64);
    text.extend_from_slice(b"ack: ");
    position::write_decimal(&mut text, u64::from(number));
    match outcome {
        Outcome::Done(info) | Outcome::Existed(info) | Outcome::Replayed(info) => {
            text.extend_from_slice(if info.subscribers > 0 {
                b"\nstatus: 201\nid: "
            } else {
                b"\nstatus: 202\nid: "
            });
            position::write(&mut text, Position::new(info.epoch, info.offset));
        }
        refused => {
            let reason = refused.refusal().unwrap_or(Reason::Broken);
            clients.refused(slot, reason);
            clients.record_event(slot, EventKind::Refused, reason.text().as_bytes());
            text.extend_from_slice(b"\nstatus: ");
            let status = reason.row().status.unwrap_or_default();
            position::write_decimal(&mut text, u64::from(status));
        }
    }
    text.extend_from_slice(b"\n\n");
    let mut bytes = Vec::with_capacity(text.len() + 4);
    frame::write_frame(&mut bytes, Opcode::Text, &text);
    clients.send_bytes(slot, &bytes, io);
}
