//! The history command. It is a question to the topic's home (the part of a shard that keeps the topic), not a subscription.
//!
//! Invariant: an answer is one page (a bounded run) of the log, so its work and bytes have the bounds of any page.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{self, Answer, HistoryResult, Publication};

use crate::base::access::Right;
use crate::base::position::Since;
use crate::client::list::count_asked_pages;
use crate::client::subscriptions::ask_of;
use crate::io::Io;
use crate::mail::{Attach, AttachOutcome, Frames, Page, ReplyTo};
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::publication::Data;
use crate::protocol::centrifugo::reply::{Refused, write_error, write_reply};
use crate::protocol::centrifugo::state::{History, epoch_text, state, state_mut};
use crate::protocol::centrifugo::subscribe::{check_name, position};
use crate::protocol::front::{Clients, Subscriptions};

/// Marks an answer that is not for a subscription: no list has so long an index.
const NO_PART: u32 = 0xffff;
/// The bit at which the number of a history command begins.
const NUMBER_SHIFT: u32 = 16;

/// Asks the topic's home for the messages.
pub(super) fn client_asks_history(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    id: u32,
    wanted: &centrifugo::History<'_>,
) -> Result<(), Refused> {
    if wanted.channel.is_empty() {
        return Err(Refused::bad("a history without a channel"));
    }
    check_name(clients, slot, wanted.channel)?;
    let name = wanted.channel.as_bytes();
    if let Err(denied) = clients.check_right(slot, Right::Subscribe, name) {
        clients.note_denied(slot, denied, name);
        return Err(Refused::for_reason(clients, slot, denied));
    }
    // A negative limit is none.
    let most = u32::try_from(wanted.limit).unwrap_or(u32::MAX);
    let since = match (wanted.since, wanted.reverse) {
        _ if most == 0 => Since::Live,
        (None, false) => Since::Oldest,
        (None, true) => Since::Newest(most),
        (Some(at), false) => match position(clients, at.epoch, at.offset) {
            Some(position) => Since::At(position),
            None => return Err(Refused::error(ErrorCode::UNRECOVERABLE_POSITION)),
        },
        (Some(_), true) => return Err(Refused::error(ErrorCode::NOT_AVAILABLE)),
    };
    let asked = History {
        number: ask_for_page(clients, subs, slot, name, (since, most)),
        id,
        reverse: wanted.reverse,
        since: matches!(since, Since::At(_)),
    };
    state_mut(&mut clients.conns, slot).histories.push(asked);
    Ok(())
}

/// Asks the topic's home for at most this number of messages, without a subscription. Returns the number of the question.
pub(super) fn ask_for_page(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    name: &[u8],
    (since, most): (Since, u32),
) -> u16 {
    let state = state_mut(&mut clients.conns, slot);
    state.last_question = state.last_question.wrapping_add(1);
    let number = state.last_question;
    count_asked_pages(&mut clients.conns, slot, 1);
    let part = NO_PART | u32::from(number) << NUMBER_SHIFT;
    let to = clients.conns.reply_to(slot, part);
    let (hash, _) = clients.ctx.hash_and_home_of(name);
    let topic = subs.topics.open(hash, name);
    let ask = Attach {
        most: most.max(1),
        is_next_page: true,
        read_only: true,
        ..ask_of(clients, &subs.topics, topic, to, since)
    };
    subs.attach(&clients.ctx, ask);
    // The request names the topic, and the answer does not need it.
    subs.topics.close_if_unused(topic);
    number
}

/// The number of the question that a page answers; `None` if it is for a subscription.
pub(super) fn question_of(to: ReplyTo) -> Option<u16> {
    (to.part & NO_PART == NO_PART).then_some((to.part >> NUMBER_SHIFT) as u16)
}

/// Answers a history command with the page for its question.
pub(super) fn history_answered<I: Io>(
    clients: &mut Clients,
    (slot, number): (u32, u16),
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let asked = state(&clients.conns, slot).map_or(&[][..], |it| &it.histories);
    let Some(at) = asked.iter().position(|asked| asked.number == number) else {
        return;
    };
    let asked = state_mut(&mut clients.conns, slot).histories.remove(at);
    if page.attached != AttachOutcome::Yes && page.attached != AttachOutcome::Gone {
        let Refused::Error(code, words) =
            Refused::for_reason(clients, slot, page.attached.refusal())
        else {
            return;
        };
        write_error(clients, slot, asked.id, code, &words);
    } else if asked.since && (page.gap || page.attached == AttachOutcome::Gone) {
        let code = ErrorCode::UNRECOVERABLE_POSITION;
        write_error(clients, slot, asked.id, code, code.text);
    } else if asked.reverse && !page.at_head {
        // The page ends before the newest message.
        let words = "so many messages do not fit into one answer; ask for fewer";
        write_error(clients, slot, asked.id, ErrorCode::LIMIT_EXCEEDED, words);
    } else {
        write_history(clients, slot, asked, (page, frames));
    }
    clients.send_reply(slot, io);
}

fn write_history(
    clients: &mut Clients,
    slot: u32,
    asked: History,
    (page, frames): (&Page, &Frames),
) {
    let (first, count) = (page.first as usize, page.count as usize);
    let records = frames.pages.get(first..first + count).unwrap_or_default();
    let format = format_of(clients.conns.get(slot));
    let data = records
        .iter()
        .map(|it| (Data::of(format, frames.data(it)), it.offset));
    let data: Vec<_> = data.collect();
    let publications = data.iter().map(|(data, offset)| data.publication(*offset));
    let mut publications: Vec<Publication<'_>> = publications.collect();
    if asked.reverse {
        publications.reverse();
    }
    let result = HistoryResult {
        publications: &publications,
        epoch: &epoch_text(page.epoch),
        offset: page.last.max(page.head),
    };
    let before = clients.scratch.reply.len();
    write_reply(clients, slot, asked.id, Answer::History(result));
    let bytes = clients.scratch.reply.len() - before;
    clients.meter.stats.sent(count, bytes);
}
