//! The commands presence and presence_stats: who subscribes to a channel, and how many do. They are questions to the topic's home (the part of a shard that
//! keeps the topic).
//!
//! The protocol has one reply for all members, so the pages (bounded parts) of the home are collected up to a limit.

use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{Answer, ClientInfo, Payload};

use crate::base::access::Right;
use crate::io::Io;
use crate::mail::presence::{PresenceAsk, PresenceChange, PresencePage};
use crate::mail::{Ask, ReplyTo, Span};
use crate::protocol::centrifugo::reply::{Refused, write_error, write_reply};
use crate::protocol::centrifugo::state::{Presence, client_id_text, state, state_mut};
use crate::protocol::centrifugo::subscribe::check_name;
use crate::protocol::front::{Clients, Lanes};

/// The bytes of the members in one reply, about.
const MEMBERS_BYTES_MAX: usize = 1 << 20;

/// Asks the topic's home for the members, or for how many there are.
pub(super) fn client_asks_presence(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    id: u32,
    (channel, counts_only): (&str, bool),
) -> Result<(), Refused> {
    if channel.is_empty() {
        return Err(Refused::bad("a presence without a channel"));
    }
    check_name(clients, slot, channel)?;
    let name = channel.as_bytes();
    if let Err(denied) = clients.may(slot, Right::Presence, name) {
        clients.note_denied(slot, denied, name);
        return Err(Refused::for_reason(clients, slot, denied));
    }
    let rules = &clients.ctx.world.rules;
    if !rules.get(rules.number_for(name)).presence {
        return Err(Refused::error(ErrorCode::NOT_AVAILABLE));
    }
    let state = state_mut(&mut clients.conns, slot);
    state.last_presence = state.last_presence.wrapping_add(1);
    let number = state.last_presence;
    state.presences.push(Presence {
        number,
        id,
        counts_only,
        name: name.into(),
        members: Vec::new(),
    });
    // Nobody came after the last number, so the counts come alone.
    let after = if counts_only { u64::MAX } else { 0 };
    ask(clients, lanes, slot, (number, name), after);
    Ok(())
}

fn ask(clients: &Clients, lanes: &mut Lanes, slot: u32, (number, name): (u32, &[u8]), after: u64) {
    let to = clients.conns.reply_to(slot, number);
    let (_, home) = clients.ctx.place_of(name);
    lanes.ask(home, |bytes| {
        Ask::Presence(PresenceAsk::Read(to, after), Span::append(bytes, name))
    });
}

/// A page of members has come.
pub(crate) fn presence_answered<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    let slot = to.slot;
    let asked = state(&clients.conns, slot).map_or(&[][..], |it| &it.presences);
    let Some(at) = asked.iter().position(|asked| asked.number == to.part) else {
        return;
    };
    let mut asked = state_mut(&mut clients.conns, slot).presences.remove(at);
    if asked.counts_only {
        let counts = page.counts;
        let (clients_count, users) = (counts.clients, counts.users);
        let answer = Answer::PresenceStats {
            clients: clients_count,
            users,
        };
        write_reply(clients, slot, asked.id, answer);
        return clients.send_reply(slot, io);
    }
    let mut last = 0;
    for change in page.changes.iter() {
        if let PresenceChange::Join(member) = change {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let client = client_id_text(&clients.ctx.world, member.at);
            asked
                .members
                .push((client, text(member.user), member.info.into()));
            last = member.id;
        }
    }
    if !page.more {
        write_members(clients, slot, &asked);
        return clients.send_reply(slot, io);
    }
    if asked.bytes() > MEMBERS_BYTES_MAX {
        let words = "so many clients do not fit into one answer; presence_stats counts them";
        write_error(clients, slot, asked.id, ErrorCode::LIMIT_EXCEEDED, words);
        return clients.send_reply(slot, io);
    }
    ask(clients, lanes, slot, (asked.number, &asked.name), last);
    state_mut(&mut clients.conns, slot).presences.push(asked);
}

fn write_members(clients: &mut Clients, slot: u32, asked: &Presence) {
    let members = asked.members.iter().map(|(client, user, info)| {
        let info = ClientInfo {
            user,
            client,
            conn_info: Payload::Value(info),
            chan_info: Payload::Value(b""),
        };
        (&client[..], info)
    });
    let members: Vec<(&str, ClientInfo<'_>)> = members.collect();
    write_reply(clients, slot, asked.id, Answer::Presence(&members));
}
