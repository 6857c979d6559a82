//! Implements [`Protocol`] for Centrifugo's protocol.

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::budget::stats::Transport;
use crate::client::list::live::deliver_live_messages;
use crate::client::list::subscription_at_mut;
use crate::client::protocols::{Protocol, TopicPage};
use crate::client::row::{Row, SUBSCRIPTION_LIST};
use crate::client::types::{PartialInput, SubscriptionRef};
use crate::home::Home;
use crate::io::Io;
use crate::mail::{Frames, Outcome, ReplyTo};
use crate::protocol::centrifugo::close::{centrifugo_end, stays_after};
use crate::protocol::centrifugo::codec::CentrifugoCodec;
use crate::protocol::centrifugo::commands::held_command_bytes;
use crate::protocol::centrifugo::delta::has_deltas;
use crate::protocol::centrifugo::expiry::{
    end_expired, end_revoked, end_subscriptions_without_right,
};
use crate::protocol::centrifugo::history::{answer_history_command, question_of};
use crate::protocol::centrifugo::join_leave::review_pushes;
use crate::protocol::centrifugo::one_way::handle_one_way_frame;
use crate::protocol::centrifugo::options::{ONE_WAY, pushes_of};
use crate::protocol::centrifugo::ping::centrifugo_each_second;
use crate::protocol::centrifugo::publish::handle_centrifugo_outcome;
use crate::protocol::centrifugo::renewal::ask_for_renewals;
use crate::protocol::centrifugo::server_side::handle_told_position;
use crate::protocol::centrifugo::tokens::centrifugo_handle_verdict;
use crate::protocol::front::{AllProtocols, Clients, Connections, Front, Queues};
use crate::protocol::http::options::UPGRADE;

/// Centrifugo's client protocol, in the frames of a WebSocket or in the body of an answer.
pub(crate) struct Centrifugo;

impl Protocol<AllProtocols> for Centrifugo {
    type SubscriptionHandler = CentrifugoCodec;

    fn transport(_row: &Row) -> Transport {
        Transport::Centrifugo
    }

    fn has_frames(row: &Row) -> bool {
        row.has_option(UPGRADE)
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        // In the body of an answer only the server sends. The client's request is complete, so other bytes are discarded.
        if front.clients.conns.get(slot).has_option(UPGRADE) {
            front.receive_frames(slot, bytes, home, io);
        }
    }

    fn handle_frame<I: Io>(
        front: &mut Front,
        slot: u32,
        data: &[u8],
        _is_binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        match front.clients.conns.get(slot).has_option(ONE_WAY) {
            true => handle_one_way_frame(front, slot, data, home, io),
            false => front.handle_centrifugo_frame(slot, data, home, io),
        }
    }

    fn frame_overhead_bytes(clients: &Clients) -> usize {
        clients.ctx.world.settings.centrifugo.frame_beside_bytes
    }

    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        front.centrifugo_resume(conn.slot, home, io);
    }

    fn each_second<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        ask_for_renewals(front, slot, io);
        if !end_expired(&mut front.clients, &mut front.subs, slot, io) {
            centrifugo_each_second(&mut front.clients, slot, io);
        }
    }

    /// Held commands are not in the spill.
    fn has_waiting_input(_conns: &Connections, _slot: u32) -> bool {
        true
    }

    fn partial_input(conns: &Connections, slot: u32) -> PartialInput {
        PartialInput {
            bytes: held_command_bytes(conns, slot),
            bytes_behind: 0,
        }
    }

    fn handle_verdict(clients: &mut Clients, queues: &mut Queues, conn: ConnId, verdict: Identity) {
        centrifugo_handle_verdict(clients, queues, conn, verdict);
    }

    fn settings_changed<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        end_revoked(&mut front.clients, &mut front.subs, slot, io);
        review_pushes(&mut front.clients, &mut front.subs.lanes, slot);
        end_subscriptions_without_right(&mut front.clients, &mut front.subs, slot);
        front.clients.send_reply(slot, io);
        false
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        centrifugo_end(clients, slot, reason, io);
    }

    fn stays_after(reason: Reason) -> bool {
        stays_after(reason)
    }

    fn handle_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
        handle_centrifugo_outcome(&mut front.clients, to.slot, to.part, outcome, io);
    }

    fn handle_requested_page<I: Io>(
        front: &mut Front,
        to: ReplyTo,
        page: TopicPage<'_>,
        io: &mut I,
    ) -> bool {
        let Some(number) = question_of(to) else {
            return false;
        };
        let question = (to.slot, number);
        if !handle_told_position(front, question, page, io) {
            answer_history_command(&mut front.clients, question, page, io);
        }
        true
    }

    /// All subscribers without deltas get the same push. For a client with several subscriptions, the subscription's offset is stored too.
    fn deliver_live<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        frames: &Frames,
        io: &mut I,
    ) {
        let SubscriptionRef {
            slot, sub_index, ..
        } = subscription;
        if has_deltas(&front.clients.conns, slot, sub_index) {
            if !front.clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
                front.clients.move_to_list(slot);
            }
            return deliver_live_messages::<CentrifugoCodec, _, I>(
                front,
                (slot, sub_index),
                frames,
                io,
            );
        }
        if let Some(last) = front.feed.run.records().last()
            && let Some(sub) = subscription_at_mut(&mut front.clients.conns, slot, sub_index)
        {
            sub.offset = last.offset;
        }
        let encoding = pushes_of(front.clients.conns.get(slot));
        front.push_encoded(subscription, encoding, frames, io);
    }
}
