//! What the code for all protocols asks a waiting long-poll.

use crate::base::reason::Reason;
use crate::budget::stats::Transport;
use crate::client::codec::NoCodec;
use crate::client::protocols::{Holds, MatchPage, Matches, Protocol, TopicPage};
use crate::client::row::{MULTI, Row};
use crate::home::Home;
use crate::io::Io;
use crate::mail::{Attached, Frames};
use crate::protocol::front::{AllProtocols, Clients, Connections, Front, Queues};
use crate::protocol::http::answer::answer_reason;
use crate::protocol::http::close::end_http;
use crate::protocol::http::options::KEEP;
use crate::protocol::http::pipelined::{forget_pipelined, hold_pipelined};
use crate::protocol::longpoll::filtered::{match_page, poll_matched};
use crate::protocol::longpoll::poll::{answer_poll, end_poll, poll_page};
use crate::protocol::stream::filtered::new_matches;
use crate::protocol::stream::page::not_attached;

/// A request that waits for a message.
pub(crate) struct Poll;

impl Protocol<AllProtocols> for Poll {
    type Codec = NoCodec;

    fn transport(_row: &Row) -> Transport {
        Transport::LongPoll
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        _home: &mut Option<Home>,
        io: &mut I,
    ) {
        hold_pipelined(front, slot, bytes, io);
    }

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        end_poll(front, slot, io);
    }

    fn holds(_row: &Row) -> Holds {
        Holds::Pipelined
    }

    fn drop_pipelined<I: Io>(conns: &mut Connections, queues: &Queues, slot: u32, io: &mut I) {
        forget_pipelined(conns, queues, slot, io);
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        end_http(clients, slot, reason, io);
    }

    fn try_end<I: Io>(front: &mut Front, slot: u32, reason: Reason, io: &mut I) -> bool {
        answer_reason(front, slot, reason, io);
        true
    }

    fn move_off<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        front.clients.conns.get_mut(slot).consumer.options &= !KEEP;
        end_poll(front, slot, io);
        true
    }

    fn page<I: Io>(front: &mut Front, of: (u32, u32, u32), page: TopicPage<'_>, io: &mut I) {
        let (_, _, _, _) = front.parts();
        match page.0.attached {
            Attached::Yes => poll_page(front, of, page, io),
            refused => not_attached(front, of.0, refused, io),
        }
    }

    fn match_page<I: Io>(front: &mut Front, of: (u32, u32), page: MatchPage<'_>, io: &mut I) {
        match_page(front, of, page, io);
    }

    fn live<I: Io>(front: &mut Front, of: (u32, u32, u32), frames: &Frames, io: &mut I) {
        let (slot, topic, part) = of;
        let (clients, _, feed, _) = front.parts();
        let first = feed.run.records()[0];
        if clients.conns.get(slot).wants(MULTI) {
            clients.conns.extra_mut(slot).list[part as usize].offset = first.offset;
        }
        answer_poll(front, (slot, topic), (&first, frames), io);
    }

    fn live_matched<I: Io>(front: &mut Front, slot: u32, matches: Matches<'_>, io: &mut I) {
        let clients = &mut front.clients;
        let (_, messages, frames) = matches;
        let picks = new_matches(clients, slot, matches);
        if !picks.is_empty() {
            poll_matched(front, slot, (&picks, messages, frames), io);
        }
    }
}
