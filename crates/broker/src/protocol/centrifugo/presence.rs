//! The commands presence and presence_stats: who subscribes to a channel, and how many do. The topic's home (the part of a shard that keeps the topic) is
//! asked.
//!
//! The protocol has one reply for all members, so the pages (bounded parts) of the home are collected up to a limit. A connection has only one such command
//! pending. The next one waits for its answer.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{Answer, ClientInfo, Payload};

use crate::base::access::Right;
use crate::client::presence::ask_presence;
use crate::io::Io;
use crate::mail::ReplyTo;
use crate::mail::presence::{PresenceAsk, PresenceChange, PresenceCounts, PresencePage};
use crate::protocol::centrifugo::join_leave::push_changes;
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::publication::Data;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_error, write_reply};
use crate::protocol::centrifugo::state::{
    PendingPresence, PresentClient, client_id_text, state, state_mut,
};
use crate::protocol::centrifugo::subscribe::check_name;
use crate::protocol::front::{Clients, Lanes, Queues};

/// Marks an answer as that to a command. No subscription has this key.
const COMMAND: u32 = u32::MAX;
/// The approximate limit of the bytes of the members in one reply.
const MEMBERS_BYTES_MAX: usize = 1 << 20;

/// Asks the topic's home for the members, or for how many there are.
pub(super) fn handle_presence_command(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    id: u32,
    (channel, counts_only): (&str, bool),
) -> Result<(), CommandRefusal> {
    if channel.is_empty() {
        return Err(CommandRefusal::bad_request("a presence without a channel"));
    }
    check_name(clients, slot, channel)?;
    let name = channel.as_bytes();
    if let Err(denied) = clients.check_right(slot, Right::Presence, name) {
        clients.report_denied(slot, denied, name);
        return Err(CommandRefusal::for_reason(clients, slot, denied));
    }
    let rules = &clients.ctx.world.rules;
    if !rules.get(rules.number_for(name)).presence {
        return Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE));
    }
    state_mut(&mut clients.conns, slot).pending_presence = Some(Box::new(PendingPresence {
        id,
        counts_only,
        name: name.into(),
        members: Vec::new(),
        members_bytes: 0,
    }));
    // No member has a greater number, so the answer has only the counts.
    let after = if counts_only { u64::MAX } else { 0 };
    ask(clients, lanes, slot, name, after);
    Ok(())
}

/// Whether a presence command of the connection is not answered.
pub(super) fn awaits_members(clients: &Clients, slot: u32) -> bool {
    state(&clients.conns, slot).is_some_and(|it| it.pending_presence.is_some())
}

fn ask(clients: &Clients, lanes: &mut Lanes, slot: u32, name: &[u8], after: u64) {
    let to = clients.conns.reply_to(slot, COMMAND);
    ask_presence(clients, lanes, name, PresenceAsk::Read(to, after));
}

/// Handles a page of members for a command, or of changes for a subscription.
pub(crate) fn handle_centrifugo_presence<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    if to.part != COMMAND {
        return push_changes(clients, lanes, to, page, io);
    }
    let slot = to.slot;
    let Some(mut pending) = state_mut(&mut clients.conns, slot).pending_presence.take() else {
        return;
    };
    let mut last_member = 0;
    for change in page.changes.iter() {
        if let PresenceChange::Join(member) = change {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let client = client_id_text(&clients.ctx.world, member.at, member.process);
            pending.push((client, text(member.user), member.info.into()));
            last_member = member.id;
        }
    }
    // The bytes that the members take at least, without user and info.
    let least_bytes = page.counts.listed as usize * size_of::<PresentClient>();
    if pending.counts_only {
        let PresenceCounts {
            clients: all,
            users,
            ..
        } = page.counts;
        let answer = Answer::PresenceStats {
            clients: all,
            users,
        };
        write_reply(clients, slot, pending.id, answer);
    } else if !page.more {
        write_members(clients, slot, &pending);
    } else if pending.members_bytes.max(least_bytes) > MEMBERS_BYTES_MAX {
        let refusal = "so many clients do not fit into one answer; presence_stats counts them";
        write_error(
            clients,
            slot,
            pending.id,
            ErrorCode::LIMIT_EXCEEDED,
            refusal,
        );
    } else {
        ask(clients, lanes, slot, &pending.name, last_member);
        state_mut(&mut clients.conns, slot).pending_presence = Some(pending);
        return;
    }
    clients.send_reply(slot, io);
    // Commands may wait for this answer.
    queues.resume_later(clients, clients.conns.id_of(slot));
}

fn write_members(clients: &mut Clients, slot: u32, pending: &PendingPresence) {
    let format = format_of(clients.conns.get(slot));
    let infos: Vec<_> = (pending.members.iter())
        .map(|(_, _, info)| Data::optional(format, info))
        .collect();
    let members = pending.members.iter().zip(&infos);
    let members = members.map(|((client, user, _), info)| {
        let info = ClientInfo {
            user,
            client,
            conn_info: info.payload(),
            chan_info: Payload::Value(b""),
        };
        (&client[..], info)
    });
    let members: Vec<(&str, ClientInfo<'_>)> = members.collect();
    write_reply(clients, slot, pending.id, Answer::Presence(&members));
}
