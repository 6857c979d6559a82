//! Implements [`Protocol`] for Pusher's protocol.

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::budget::stats::Transport;
use crate::client::list::live::deliver_live_messages;
use crate::client::list::page::{handle_topic_page, request_next_pages};
use crate::client::list::{index_with_serial, move_to_row, subscription_at_mut};
use crate::client::protocols::{Protocol, TopicPage};
use crate::client::row::{Row, SUBSCRIPTION_LIST, State};
use crate::client::types::SubscriptionRef;
use crate::home::Home;
use crate::io::Io;
use crate::mail::{Frames, Outcome, ReplyTo};
use crate::protocol::encode::Encoding;
use crate::protocol::front::{AllProtocols, Clients, Front};
use crate::protocol::pusher::close::pusher_end;
use crate::protocol::pusher::codec::{PusherCodec, is_excluded, tells_positions};
use crate::protocol::pusher::options::AWAITS_PONG;
use crate::protocol::pusher::ping::client_is_silent;
use crate::protocol::pusher::presence::{ask_for_changes, watch_begun};
use crate::protocol::pusher::publish::handle_outcome;
use crate::protocol::pusher::reasons::close_code_of;
use crate::protocol::pusher::requests::{awaits_answers, handle_event};
use crate::store::slab::NONE;

/// Pusher's protocol, in the frames of a WebSocket.
pub(crate) struct Pusher;

/// The second until which a client that has just sent something may be silent.
pub(super) fn silent_until_s(clients: &Clients) -> u32 {
    clients.ctx.now.s + clients.ctx.world.settings.pusher.activity_timeout_s
}

impl Protocol<AllProtocols> for Pusher {
    type SubscriptionHandler = PusherCodec;

    fn transport(_row: &Row) -> Transport {
        Transport::Pusher
    }

    fn has_frames(_row: &Row) -> bool {
        true
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        if !bytes.is_empty() {
            // Every byte is a sign of life, also a part of a frame and a pong of WebSocket.
            front.clients.conns.get_mut(slot).consumer.options &= !AWAITS_PONG;
        }
        front.receive_frames(slot, bytes, home, io);
    }

    fn handle_frame<I: Io>(
        front: &mut Front,
        slot: u32,
        data: &[u8],
        _is_binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        handle_event(front, slot, data, home, io);
        true
    }

    fn awaits_answers(clients: &Clients, slot: u32) -> bool {
        awaits_answers(clients, slot)
    }

    fn frame_overhead_bytes(clients: &Clients) -> usize {
        clients.ctx.world.settings.pusher.event_beside_bytes
    }

    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        let slot = conn.slot;
        front
            .queues
            .resume_reading(&mut front.clients.conns, conn, io);
        if front.clients.conns.get(slot).link.unprocessed_input != NONE {
            front.receive_frames(slot, &mut [], home, io);
        }
        if front.clients.conns.get(slot).consumer.state == State::Pusher {
            request_next_pages::<PusherCodec, _>(&mut front.clients, &mut front.subs, slot);
            ask_for_changes(&mut front.clients, &mut front.subs.lanes, slot);
        }
    }

    fn each_second<I: Io>(front: &mut Front, slot: u32, _io: &mut I) {
        move_to_row(&mut front.clients.conns, slot);
    }

    fn silent_until_s(clients: &Clients, _slot: u32) -> u32 {
        silent_until_s(clients)
    }

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        client_is_silent(&mut front.clients, slot, io);
    }

    /// The app of a connection does not change, and no other right applies.
    fn settings_changed<I: Io>(_front: &mut Front, _slot: u32, _io: &mut I) -> bool {
        false
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        pusher_end(clients, slot, reason, io);
    }

    fn stays_after(reason: Reason) -> bool {
        close_code_of(reason).is_none()
    }

    fn handle_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
        handle_outcome(&mut front.clients, to.slot, outcome, io);
    }

    fn handle_page<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        page: TopicPage<'_>,
        io: &mut I,
    ) {
        let (slot, sub_index) = (subscription.slot, subscription.sub_index);
        let sub_key = index_with_serial(&front.clients.conns, slot, sub_index);
        handle_topic_page::<PusherCodec, _, I>(front, (slot, sub_index), page, io);
        watch_begun(&mut front.clients, &mut front.subs.lanes, slot, sub_key);
    }

    /// All subscribers get the same events, except a connection that published one of the run, and those that are told positions.
    fn deliver_live<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        frames: &Frames,
        io: &mut I,
    ) {
        let SubscriptionRef {
            slot, sub_index, ..
        } = subscription;
        let mut records = front.feed.run.records().iter();
        let is_shared = !tells_positions(&front.clients, slot)
            && !records.any(|record| is_excluded(&front.clients, slot, record, frames));
        if !is_shared {
            if !front.clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
                front.clients.move_to_list(slot);
            }
            return deliver_live_messages::<PusherCodec, _, I>(
                front,
                (slot, sub_index),
                frames,
                io,
            );
        }
        // A subscription in the row needs no side row for this.
        if front.clients.conns.get(slot).has_option(SUBSCRIPTION_LIST)
            && let Some(last) = front.feed.run.records().last()
            && let Some(sub) = subscription_at_mut(&mut front.clients.conns, slot, sub_index)
        {
            sub.offset = last.offset;
        }
        front.push_encoded(subscription, Encoding::PusherFrame, frames, io);
    }
}
