//! Pushes of joins and leaves: a subscription may ask to be told who else comes to its channel, and who leaves.
//!
//! The connection watches the topic at its home (the part of a shard that keeps it), as a watcher of `GET /presence` does, but without a snapshot: it is told
//! what changes from its subscription on. The home sends the next page (a bounded part of the changes) only when the socket has accepted the one before.

use alloc::vec::Vec;

use crore_wire::centrifugo::{ClientInfo, Payload, Push};

use crate::base::access::Right;
use crate::client::list::{part_name, part_named};
use crate::io::Io;
use crate::mail::presence::{PresenceAsk, PresenceChange, PresencePage};
use crate::mail::{Ask, ReplyTo, Span};
use crate::protocol::centrifugo::reply::write_push;
use crate::protocol::centrifugo::state::{
    Watching, client_id_text, is_subscribing, state, state_mut,
};
use crate::protocol::front::{Clients, Lanes};
use crate::store::slab::NONE;

/// A subscription asks to be told of joins and leaves. Without the right, without presence or without room for a watcher it is not told.
pub(super) fn begin_pushes(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    (part, name): (u32, &[u8]),
) {
    let client = clients.conns.get(slot).consumer.client;
    if !may_watch(clients, slot, name) || !clients.ctx.world.admission.enter_watcher(client) {
        return;
    }
    let watching = Watching {
        part,
        topic: name.into(),
        client,
        waits: false,
        skips: false,
    };
    ask(clients, lanes, slot, &watching, PresenceAsk::WatchChanges);
    state_mut(&mut clients.conns, slot).watching.push(watching);
}

fn may_watch(clients: &Clients, slot: u32, name: &[u8]) -> bool {
    let rules = &clients.ctx.world.rules;
    rules.get(rules.number_for(name)).presence
        && clients.check_right(slot, Right::Presence, name).is_ok()
}

fn ask(
    clients: &Clients,
    lanes: &mut Lanes,
    slot: u32,
    watching: &Watching,
    ask: impl Fn(ReplyTo) -> PresenceAsk,
) {
    let to = clients.conns.reply_to(slot, watching.part);
    let (_, home) = clients.ctx.hash_and_home_of(&watching.topic);
    lanes.ask(home, |bytes| {
        Ask::Presence(ask(to), Span::append(bytes, &watching.topic))
    });
}

/// A page of changes has come.
pub(super) fn changes_came<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    let slot = to.slot;
    let mut all = take_watching(clients, slot);
    let mut watching = all.iter_mut().find(|it| it.part == to.part);
    let part = part_named(&clients.conns, slot, to.part);
    if let (Some(watching), Some(part)) = (&mut watching, part) {
        // After a loss the home sends all members again. Only what changes after that is news.
        let skips = watching.skips | page.resets;
        watching.skips = skips && !page.completes;
        if !skips && !is_subscribing(clients, slot, part) {
            // Topics are UTF-8.
            let channel = core::str::from_utf8(&watching.topic).unwrap_or_default();
            for change in page.changes.iter() {
                write_change(clients, slot, channel, &change);
            }
            clients.send_reply(slot, io);
        }
        watching.waits = clients.conns.get(slot).link.outbox != NONE;
        if !watching.waits {
            ask(clients, lanes, slot, watching, PresenceAsk::Ready);
        }
    }
    put_watching(clients, slot, all);
}

/// The socket has accepted everything, so pages may come that waited for that.
pub(super) fn ask_for_changes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    if clients.conns.get(slot).link.outbox != NONE {
        return;
    }
    let mut all = take_watching(clients, slot);
    for watching in all.iter_mut().filter(|it| it.waits) {
        watching.waits = false;
        ask(clients, lanes, slot, watching, PresenceAsk::Ready);
    }
    put_watching(clients, slot, all);
}

/// The subscription with this index ends.
pub(super) fn end_pushes(clients: &mut Clients, lanes: &mut Lanes, slot: u32, part: u32) {
    let name = part_name(&clients.conns, slot, part);
    end_pushes_where(clients, lanes, slot, |_, it| it.part == name);
}

/// The connection ends.
pub(crate) fn end_all_pushes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    end_pushes_where(clients, lanes, slot, |_, _| true);
}

/// The settings have changed, so some may have ended.
pub(super) fn review_pushes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    end_pushes_where(clients, lanes, slot, |clients, it| {
        !may_watch(clients, slot, &it.topic)
    });
}

fn end_pushes_where(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    ends: impl Fn(&Clients, &Watching) -> bool,
) {
    let mut all = take_watching(clients, slot);
    all.retain(|watching| {
        let ends = ends(clients, watching);
        if ends {
            clients.ctx.world.admission.leave_watcher(watching.client);
            ask(clients, lanes, slot, watching, PresenceAsk::Unwatch);
        }
        !ends
    });
    put_watching(clients, slot, all);
}

fn take_watching(clients: &mut Clients, slot: u32) -> Vec<Watching> {
    match state(&clients.conns, slot).is_some_and(|it| !it.watching.is_empty()) {
        true => core::mem::take(&mut state_mut(&mut clients.conns, slot).watching),
        false => Vec::new(),
    }
}

fn put_watching(clients: &mut Clients, slot: u32, watching: Vec<Watching>) {
    if !watching.is_empty() {
        state_mut(&mut clients.conns, slot).watching = watching;
    }
}

fn write_change(clients: &mut Clients, slot: u32, channel: &str, change: &PresenceChange<'_>) {
    let (PresenceChange::Join(member) | PresenceChange::Leave(member)) = change;
    let client = client_id_text(&clients.ctx.world, member.at);
    let info = ClientInfo {
        user: core::str::from_utf8(member.user).unwrap_or_default(),
        client: &client,
        conn_info: Payload::Value(member.info),
        chan_info: Payload::Value(b""),
    };
    let push = match change {
        PresenceChange::Join(_) => Push::Join(channel, info),
        PresenceChange::Leave(_) => Push::Leave(channel, info),
    };
    write_push(clients, slot, &push);
}
