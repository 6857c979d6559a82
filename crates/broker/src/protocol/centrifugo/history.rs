//! The history command. It requests a page from the topic's home (the part of a shard that keeps the topic), without a subscription.
//!
//! Invariant: an answer is one page (a bounded run) of the log, so its work and bytes have the bounds of any page.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{self, Answer, HistoryResult, Publication};

use crate::base::access::Right;
use crate::base::position::Since;
use crate::client::list::count_asked_pages;
use crate::client::subscriptions::page_request;
use crate::io::Io;
use crate::mail::{Attach, AttachOutcome, Frames, Page, ReplyTo};
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::publication::MessageContent;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_error, write_reply};
use crate::protocol::centrifugo::state::{PendingHistory, epoch_text, state, state_mut};
use crate::protocol::centrifugo::subscribe::{check_name, position};
use crate::protocol::front::{Clients, Subscriptions};

/// The index that marks an answer as not for a subscription. No list of subscriptions is that long.
const NO_PART: u32 = 0xffff;
/// The first bit of the request's number in the number of the answer.
const NUMBER_SHIFT: u32 = 16;

/// Asks the topic's home for the messages.
pub(super) fn handle_history(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    id: u32,
    command: &centrifugo::History<'_>,
) -> Result<(), CommandRefusal> {
    if command.channel.is_empty() {
        return Err(CommandRefusal::bad_request("a history without a channel"));
    }
    check_name(clients, slot, command.channel)?;
    let name = command.channel.as_bytes();
    if let Err(denied) = clients.check_right(slot, Right::Subscribe, name) {
        clients.report_denied(slot, denied, name);
        return Err(CommandRefusal::for_reason(clients, slot, denied));
    }
    // A negative limit stands for no limit.
    let count_max = u32::try_from(command.limit).unwrap_or(u32::MAX);
    let since = match (command.since, command.reverse) {
        _ if count_max == 0 => Since::Live,
        (None, false) => Since::Oldest,
        (None, true) => Since::Newest(count_max),
        (Some(start), false) => match position(clients, start.epoch, start.offset) {
            Some(position) => Since::At(position),
            None => return Err(CommandRefusal::error(ErrorCode::UNRECOVERABLE_POSITION)),
        },
        (Some(_), true) => return Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE)),
    };
    let pending = PendingHistory {
        number: ask_for_page(clients, subs, slot, name, (since, count_max)),
        id,
        is_reverse: command.reverse,
        has_position: matches!(since, Since::At(_)),
    };
    state_mut(&mut clients.conns, slot)
        .pending_histories
        .push(pending);
    Ok(())
}

/// Asks the topic's home for at most `count_max` messages, without a subscription. Returns the number of the request.
pub(super) fn ask_for_page(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    name: &[u8],
    (since, count_max): (Since, u32),
) -> u16 {
    let state = state_mut(&mut clients.conns, slot);
    state.last_question = state.last_question.wrapping_add(1);
    let number = state.last_question;
    count_asked_pages(&mut clients.conns, slot, 1);
    let reply_number = NO_PART | u32::from(number) << NUMBER_SHIFT;
    let to = clients.conns.reply_to(slot, reply_number);
    let (hash, _) = clients.ctx.hash_and_home_of(name);
    let topic = subs.topics.find_or_create(hash, name);
    let ask = Attach {
        messages_max: count_max.max(1),
        is_next_page: true,
        read_only: true,
        ..page_request(clients, &subs.topics, topic, to, since)
    };
    subs.attach(&clients.ctx, ask);
    // The request names the topic, and the answer does not need it.
    subs.topics.free_if_unused(topic);
    number
}

/// The number of the request that a page answers; `None` if the page is for a subscription.
pub(super) fn question_of(to: ReplyTo) -> Option<u16> {
    (to.part & NO_PART == NO_PART).then_some((to.part >> NUMBER_SHIFT) as u16)
}

/// Answers a history command with the home's page.
pub(super) fn answer_history_command<I: Io>(
    clients: &mut Clients,
    (slot, number): (u32, u16),
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let pending = state(&clients.conns, slot).map_or(&[][..], |it| &it.pending_histories);
    let Some(index) = pending.iter().position(|pending| pending.number == number) else {
        return;
    };
    let pending = state_mut(&mut clients.conns, slot)
        .pending_histories
        .remove(index);
    if page.attached != AttachOutcome::Yes && page.attached != AttachOutcome::Gone {
        let CommandRefusal::Error(code, text) =
            CommandRefusal::for_reason(clients, slot, page.attached.refusal())
        else {
            return;
        };
        write_error(clients, slot, pending.id, code, &text);
    } else if pending.has_position && (page.gap || page.attached == AttachOutcome::Gone) {
        let code = ErrorCode::UNRECOVERABLE_POSITION;
        write_error(clients, slot, pending.id, code, code.text);
    } else if pending.is_reverse && !page.at_head {
        // The page ends before the newest message.
        let text = "so many messages do not fit into one answer; ask for fewer";
        write_error(clients, slot, pending.id, ErrorCode::LIMIT_EXCEEDED, text);
    } else {
        write_history(clients, slot, pending, (page, frames));
    }
    clients.send_reply(slot, io);
}

fn write_history(
    clients: &mut Clients,
    slot: u32,
    pending: PendingHistory,
    (page, frames): (&Page, &Frames),
) {
    let (first, count) = (page.first as usize, page.count as usize);
    let records = frames.pages.get(first..first + count).unwrap_or_default();
    let format = format_of(clients.conns.get(slot));
    let contents = records.iter();
    let contents = contents.map(|record| MessageContent::of(format, (record, frames)));
    let contents: Vec<_> = contents.collect();
    let publications = contents.iter().map(MessageContent::publication);
    let mut publications: Vec<Publication<'_>> = publications.collect();
    if pending.is_reverse {
        publications.reverse();
    }
    let result = HistoryResult {
        publications: &publications,
        epoch: &epoch_text(page.epoch),
        offset: page.last.max(page.head),
    };
    let before = clients.scratch.reply.len();
    write_reply(clients, slot, pending.id, Answer::History(result));
    let bytes = clients.scratch.reply.len() - before;
    clients.meter.stats.sent(count, bytes);
}
