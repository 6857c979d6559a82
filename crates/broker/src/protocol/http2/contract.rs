//! A link of HTTP/2 as a connection of its own.
//!
//! The link ends if it had no stream for the time that a kept-alive connection of HTTP/1.1 may be idle, or if the client has not
//! acknowledged the settings in time. While the server drains, the client is told to open no more streams (GOAWAY), and the link ends
//! after its last stream.

use alloc::vec::Vec;

use crore_wire::http::head::MAX_HEADERS;
use crore_wire::http2::{self, ErrorCode};

use crate::base::go_away::GoAway;
use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::budget::admission::Client;
use crate::budget::stats::Transport;
use crate::client::codec::NoSubscriptionHandler;
use crate::client::protocols::{Protocol, protocol_of};
use crate::client::row::{CLOSING, EOF, PAUSED, Row, SERVED, State, TURNED_AWAY};
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::protocol::front::{AllProtocols, Clients, Context, Front};
use crate::protocol::http2::receive::receive_http2;
use crate::protocol::http2::waiting::resume_link_later;
use crate::store::slab::NONE;

/// What each field counts in the size of a list of fields, besides its bytes (RFC 9113 section 10.5.1).
const FIELD_OVERHEAD: u32 = 32;

/// A link of HTTP/2.
pub(crate) struct Http2;

/// The limits for the client of a link.
pub(super) fn limits_of(ctx: &Context, client: Client) -> http2::Limits {
    let settings = &ctx.world.settings;
    let head_bytes = u32::try_from(settings.limits.head_bytes).unwrap_or(u32::MAX);
    let default = http2::Limits::default();
    let limits = http2::Limits {
        streams: settings.http.h2_streams_max,
        // The list has 32 bytes more for each field. `head_bytes` does not count them, and decides when the head is parsed.
        header_list_bytes: head_bytes.saturating_add(FIELD_OVERHEAD * MAX_HEADERS as u32),
        // A larger block ends the connection, and with it all streams, so more is read than is accepted.
        header_block_bytes: (head_bytes.saturating_mul(4)).max(default.header_block_bytes),
        ..default
    };
    match client.is_relayed() {
        true => limits.for_proxy(),
        false => limits,
    }
}

/// Begins HTTP/2 on a connection whose first bytes are its preface, if the settings allow it. Returns whether they do.
pub(crate) fn switch_if_http2<I: Io>(
    clients: &mut Clients,
    slot: u32,
    bytes: &[u8],
    io: &I,
) -> bool {
    let row = clients.conns.get(slot);
    let is_first = !row.link.has(SERVED) && row.consumer.state == State::Http;
    let http = &clients.ctx.world.settings.http;
    let is_allowed = match io.is_secure(row.link.socket) {
        true => http.h2,
        false => http.h2_cleartext,
    };
    if !is_first || !is_allowed || !http2::is_preface(bytes) {
        return false;
    }
    let row = clients.conns.get_mut(slot);
    row.consumer.state = State::Http2;
    // A browser may connect before it has a request. A link that is turned away keeps its deadline.
    if !row.link.has(TURNED_AWAY) {
        let timeouts = &clients.ctx.world.settings.timeouts;
        row.link.deadline_s = clients.ctx.now.s + timeouts.keep_alive_s;
    }
    let limits = limits_of(&clients.ctx, row.consumer.client);
    clients.conns.links.add_link(slot, &limits);
    true
}

/// Sends the link's last frames, and ends the link.
pub(super) fn end_link<I: Io>(clients: &mut Clients, slot: u32, closed: Closed, io: &mut I) {
    let frames = clients.conns.links.take_frames(slot);
    clients.send_bytes(slot, &frames, io);
    clients.scratch.set_close_reason(closed);
    clients.close_after_output(slot, io);
}

/// Tells the client why the link ends, and ends it.
fn go_away<I: Io>(
    clients: &mut Clients,
    slot: u32,
    (code, reason, closed): (ErrorCode, GoAway, Closed),
    text: &str,
    io: &mut I,
) {
    clients.meter.stats.goaways[reason as usize] += 1;
    if let Some(link) = clients.conns.links.get_mut(slot) {
        link.codec.go_away(code, text, &mut link.out);
    }
    end_link(clients, slot, closed, io);
}

fn has_streams(clients: &Clients, slot: u32) -> bool {
    let link = clients.conns.links.get(slot);
    link.is_some_and(|link| link.codec.streams() > 0)
}

impl Protocol<AllProtocols> for Http2 {
    type SubscriptionHandler = NoSubscriptionHandler;

    fn transport(_row: &Row) -> Transport {
        Transport::Http2
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        receive_http2(front, slot, bytes, home, io);
    }

    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        let queues = &front.queues;
        queues.resume_reading(&mut front.clients.conns, conn, io);
        receive_http2(front, conn.slot, &[], home, io);
    }

    /// Continues with the streams, and with requests that were held.
    fn outbox_drained(front: &mut Front, slot: u32) {
        resume_link_later(&mut front.clients, &mut front.queues, slot);
    }

    /// Ends the streams that owe no answer. Answers that are due are still sent.
    fn peer_ended<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
        let link = clients.conns.links.get(slot);
        let streams: Vec<u32> = link.map_or(Vec::new(), |link| {
            let slots = link.codec.slots().map(|(_, slot)| slot);
            slots.filter(|slot| *slot != NONE).collect()
        });
        let mut is_due = clients.conns.get(slot).link.outbox != NONE;
        for stream in streams {
            let state = clients.conns.get(stream).consumer.state;
            protocol_of!(AllProtocols, state, peer_ended(clients, stream, io));
            is_due |= !clients.conns.get(stream).link.has(CLOSING);
        }
        if !is_due {
            return clients.drop_connection(slot, CloseMode::Now);
        }
        clients.conns.get_mut(slot).link.flags |= EOF | PAUSED;
        clients.conns.update_interest(slot, io);
    }

    fn each_second<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let clients = &mut front.clients;
        let timeouts = &clients.ctx.world.settings.timeouts;
        let (idle_s, settings_s) = (timeouts.keep_alive_s, timeouts.head_s);
        let now_s = clients.ctx.now.s;
        let age_s = (clients.ctx.now.unix_s)
            .saturating_sub(clients.conns.start_second(slot).unix_s(clients.ctx.now));
        let Some(link) = clients.conns.links.get(slot) else {
            return clients.end_as_broken(slot);
        };
        let (is_idle, is_drain_told) = (link.codec.streams() == 0, link.is_told_to_stop);
        // While the link is not read, its acknowledgement may wait in the socket.
        let is_read = clients.conns.is_read(slot);
        if !link.codec.is_acknowledged() && age_s > settings_s && is_read {
            let words = "the settings were not acknowledged";
            let end = (ErrorCode::SettingsTimeout, GoAway::Timeout, Closed::Timeout);
            return go_away(clients, slot, end, words, io);
        }
        let link = &clients.conns.get(slot).link;
        if is_idle && link.has(EOF) && link.outbox == NONE {
            return clients.drop_connection(slot, CloseMode::Now);
        }
        if is_idle && (is_drain_told || link.has(TURNED_AWAY) && link.has(SERVED)) {
            let reason = if is_drain_told {
                GoAway::Drain
            } else {
                GoAway::Full
            };
            let end = (ErrorCode::NoError, reason, Closed::Operator);
            return go_away(clients, slot, end, "drain", io);
        }
        let row = clients.conns.get_mut(slot);
        if is_idle && row.link.deadline_s == 0 && row.link.outbox == NONE {
            row.link.deadline_s = now_s + idle_s;
        }
    }

    fn silent_until_s(clients: &Clients, slot: u32) -> u32 {
        match has_streams(clients, slot) {
            true => 0,
            false => clients.ctx.now.s + clients.ctx.world.settings.timeouts.keep_alive_s,
        }
    }

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let clients = &mut front.clients;
        let is_refused = clients.conns.get(slot).link.has(TURNED_AWAY);
        if has_streams(clients, slot) && !is_refused {
            clients.conns.get_mut(slot).link.deadline_s = 0;
            return;
        }
        let reason = if is_refused {
            GoAway::Full
        } else {
            GoAway::Idle
        };
        let how = (ErrorCode::NoError, reason, Closed::Done);
        go_away(clients, slot, how, "idle", io);
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        let closed = reason.row().closed;
        let code = match closed {
            Closed::Timeout | Closed::Slow | Closed::Full => ErrorCode::EnhanceYourCalm,
            Closed::Refused => ErrorCode::Protocol,
            Closed::Broken => ErrorCode::Internal,
            Closed::Peer | Closed::Done | Closed::Deleted | Closed::Operator => ErrorCode::NoError,
        };
        let how = (code, closed.into(), closed);
        go_away(clients, slot, how, reason.text(), io);
    }

    /// Always: each stream decides for itself.
    fn stays_after(_reason: Reason) -> bool {
        true
    }

    /// The streams are moved off one by one. Those that the client opens before it knows are still served.
    fn move_off<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        let clients = &mut front.clients;
        let Some(link) = clients.conns.links.get_mut(slot) else {
            return false;
        };
        if link.codec.streams() == 0 {
            let how = (ErrorCode::NoError, GoAway::Drain, Closed::Operator);
            go_away(clients, slot, how, "drain", io);
            return true;
        }
        if !core::mem::replace(&mut link.is_told_to_stop, true) {
            link.codec.drain(&mut link.out);
            clients.meter.stats.goaways[GoAway::Drain as usize] += 1;
        }
        false
    }
}
