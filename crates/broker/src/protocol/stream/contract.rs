//! Implements [`Protocol`] for event streams, and for WebSockets that began with a request.

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::budget::stats::Transport;
use crate::client::codec::NoSubscriptionHandler;
use crate::client::protocols::{InputKind, MatchPage, Matches, Protocol, TopicPage};
use crate::client::row::{Row, SUBSCRIPTION_LIST, State};
use crate::client::types::SubscriptionRef;
use crate::home::Home;
use crate::io::Io;
use crate::mail::{AttachOutcome, Frames, Outcome, ReplyTo};
use crate::protocol::encode::Encoding;
use crate::protocol::front::{AllProtocols, Clients, Front};
use crate::protocol::http::close::tell_when_to_come_back;
use crate::protocol::http::publish::outcomes::request_outcome;
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::sse::comment_if_quiet;
use crate::protocol::stream::catch_up::catch_up;
use crate::protocol::stream::filtered::{handle_match_page, pick_live_matches, send_matches};
use crate::protocol::stream::interest::may_follow;
use crate::protocol::stream::live::deliver_live_of_topic;
use crate::protocol::stream::refused_attach::handle_refused_attach;
use crate::protocol::stream::stream_pages::stream_page;
use crate::protocol::websocket::heartbeat::ping_if_quiet;
use crate::protocol::websocket::publish::{handle_frame_outcome, publish_frame};
use crate::store::slab::NONE;

/// An event stream, or a WebSocket that began with a request.
pub(crate) struct Stream;

fn is_websocket(row: &Row) -> bool {
    row.consumer.state == State::WebSocket
}

impl Protocol<AllProtocols> for Stream {
    type SubscriptionHandler = NoSubscriptionHandler;

    fn transport(row: &Row) -> Transport {
        match is_websocket(row) {
            true => Transport::WebSocket,
            false => Transport::Sse,
        }
    }

    fn has_frames(row: &Row) -> bool {
        is_websocket(row)
    }

    /// An event stream needs nothing from its client.
    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        if is_websocket(front.clients.conns.get(slot)) {
            front.receive_frames(slot, bytes, home, io);
        }
    }

    fn handle_frame<I: Io>(
        front: &mut Front,
        slot: u32,
        data: &[u8],
        is_binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        let (clients, subs) = (&mut front.clients, &mut front.subs);
        publish_frame(clients, subs, slot, data, is_binary, home, io)
    }

    /// Continues with the held frames, and with subscriptions that fell behind.
    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        if is_websocket(front.clients.conns.get(conn.slot)) {
            front
                .queues
                .resume_reading(&mut front.clients.conns, conn, io);
            front.receive_frames(conn.slot, &mut [], home, io);
        }
        // One of the frames may have ended the connection.
        let row = front.clients.conns.get(conn.slot);
        let streams = matches!(row.consumer.state, State::Sse | State::WebSocket);
        if streams && row.link.outbox == NONE {
            catch_up(front, conn.slot);
        }
    }

    fn outbox_drained(front: &mut Front, slot: u32) {
        catch_up(front, slot);
    }

    fn each_second<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let clients = &mut front.clients;
        let row = clients.conns.get(slot);
        match is_websocket(row) {
            _ if row.link.outbox != NONE => {}
            true => ping_if_quiet(clients, slot, io),
            false => comment_if_quiet(clients, slot, io),
        }
    }

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let row = front.clients.conns.get_mut(slot);
        match is_websocket(row) {
            true => front.clients.end_connection(slot, Reason::TooSlow, io),
            false => row.link.deadline_s = 0,
        }
    }

    fn unprocessed_input_kind(row: &Row) -> InputKind {
        match is_websocket(row) {
            true => InputKind::Incomplete,
            false => InputKind::MustStay,
        }
    }

    fn settings_changed<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        let clients = &front.clients;
        let permission =
            may_follow(clients, slot).and_then(|()| clients.check_subscriptions(&front.subs, slot));
        permission.is_err_and(|denied| Self::end_for_reason(front, slot, denied, io))
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        end_stream(clients, slot, reason, io);
    }

    fn stays_after(reason: Reason) -> bool {
        reason.row().close.is_none()
    }

    fn move_off<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        let clients = &mut front.clients;
        if !is_websocket(clients.conns.get(slot)) {
            tell_when_to_come_back(clients, slot, io);
        }
        Self::end(clients, slot, Reason::Restart, io);
        true
    }

    fn handle_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
        let clients = &mut front.clients;
        if is_websocket(clients.conns.get(to.slot)) {
            handle_frame_outcome(clients, to.slot, to.part, outcome, io);
            return;
        }
        request_outcome(front, to, outcome, io);
    }

    fn handle_page<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        page: TopicPage<'_>,
        io: &mut I,
    ) {
        match page.0.attached {
            AttachOutcome::Yes => stream_page(front, subscription, page, io),
            refused => handle_refused_attach(front, subscription.slot, refused, io),
        }
    }

    fn handle_filter_page<I: Io>(
        front: &mut Front,
        group: (u32, u32),
        page: MatchPage<'_>,
        io: &mut I,
    ) {
        handle_match_page(front, group, page, io);
    }

    /// A stream on several topics gets its messages encoded for itself, since a position names all of them.
    #[inline]
    fn shared_encoding(row: &Row) -> Option<Encoding> {
        (!row.has_option(SUBSCRIPTION_LIST)).then(|| Encoding::of_request(row))
    }

    fn deliver_live<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        frames: &Frames,
        io: &mut I,
    ) {
        let SubscriptionRef {
            slot,
            topic,
            sub_index,
        } = subscription;
        deliver_live_of_topic(front, slot, (topic, sub_index), frames, io);
    }

    fn deliver_matched<I: Io>(front: &mut Front, slot: u32, matches: Matches<'_>, io: &mut I) {
        let clients = &mut front.clients;
        let (_, messages, frames) = matches;
        let picks = pick_live_matches(clients, slot, matches);
        if !picks.is_empty() {
            let matches = (&picks[..], messages, frames);
            send_matches(front, slot, matches, io);
        }
    }
}
