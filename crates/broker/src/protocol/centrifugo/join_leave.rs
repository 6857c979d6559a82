//! Pushes of joins and leaves: with a subscription, a client may ask to be told who else joins and leaves the channel.
//!
//! The connection watches the topic at its home (the part of a shard that keeps the topic) like a watcher of `GET /presence`, but without a snapshot: the client is
//! told the changes from its subscription on. The home sends the next page (a bounded part of the changes) only when the socket has accepted the one before.

use alloc::vec::Vec;

use crore_wire::centrifugo::{ClientInfo, Payload, Push};

use crate::base::access::Right;
use crate::client::list::{index_if_current, index_with_serial};
use crate::client::presence::ask_presence;
use crate::io::Io;
use crate::mail::ReplyTo;
use crate::mail::presence::{PresenceAsk, PresenceChange, PresencePage};
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::publication::Data;
use crate::protocol::centrifugo::reply::write_push;
use crate::protocol::centrifugo::state::{
    WatchedChannel, client_id_text, is_subscribing, state, state_mut,
};
use crate::protocol::front::{Clients, Lanes};
use crate::store::slab::NONE;

/// Begins the pushes of joins and leaves for a subscription. Does nothing without the right, if the topic has no presence, or without room for a watcher.
pub(super) fn begin_pushes(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    subscription: (u32, &[u8]),
) {
    let (_, name) = subscription;
    if clients.check_right(slot, Right::Presence, name).is_ok() {
        watch(clients, lanes, slot, subscription, false);
    }
}

/// Begins the pushes of joins and leaves for a subscription whose token grants them. Does nothing if the topic has no presence, or without room for a watcher.
pub(super) fn begin_granted_pushes(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    subscription: (u32, &[u8]),
) {
    watch(clients, lanes, slot, subscription, true);
}

fn watch(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    (sub_key, name): (u32, &[u8]),
    is_granted: bool,
) {
    let client = clients.conns.get(slot).consumer.client;
    if !has_presence(clients, name) || !clients.ctx.world.admission.enter_watcher(client) {
        return;
    }
    let watching = WatchedChannel {
        sub_key,
        topic: name.into(),
        client,
        is_granted,
        is_page_due: false,
        skips_snapshot: false,
    };
    ask(clients, lanes, slot, &watching, PresenceAsk::WatchChanges);
    state_mut(&mut clients.conns, slot)
        .watched_channels
        .push(watching);
}

fn has_presence(clients: &Clients, name: &[u8]) -> bool {
    let rules = &clients.ctx.world.rules;
    rules.get(rules.number_for(name)).presence
}

fn ask(
    clients: &Clients,
    lanes: &mut Lanes,
    slot: u32,
    watching: &WatchedChannel,
    ask: impl FnOnce(ReplyTo) -> PresenceAsk,
) {
    let to = clients.conns.reply_to(slot, watching.sub_key);
    ask_presence(clients, lanes, &watching.topic, ask(to));
}

/// Pushes a page of changes to the client.
pub(super) fn push_changes<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    let slot = to.slot;
    let mut watched = take_watching(clients, slot);
    let mut watching = watched.iter_mut().find(|it| it.sub_key == to.part);
    let sub_index = index_if_current(&clients.conns, slot, to.part);
    if let (Some(watching), Some(sub_index)) = (&mut watching, sub_index) {
        // After a loss of changes the home sends all members again, which the client is not told.
        let skips = watching.skips_snapshot | page.resets;
        watching.skips_snapshot = skips && !page.completes;
        if !skips && !is_subscribing(clients, slot, sub_index) {
            // Topics are UTF-8.
            let topic = core::str::from_utf8(&watching.topic).unwrap_or_default();
            let channel = channel_names(&clients.ctx.world).exchange(topic);
            for change in page.changes.iter() {
                write_change(clients, slot, &channel, &change);
            }
            clients.send_reply(slot, io);
        }
        watching.is_page_due = clients.conns.get(slot).link.outbox != NONE;
        if !watching.is_page_due {
            ask(clients, lanes, slot, watching, PresenceAsk::Ready);
        }
    }
    put_watching(clients, slot, watched);
}

/// Asks for the pages that are due, if the socket has accepted everything.
pub(super) fn ask_for_changes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    if clients.conns.get(slot).link.outbox != NONE {
        return;
    }
    let mut watched = take_watching(clients, slot);
    for watching in watched.iter_mut().filter(|it| it.is_page_due) {
        watching.is_page_due = false;
        ask(clients, lanes, slot, watching, PresenceAsk::Ready);
    }
    put_watching(clients, slot, watched);
}

/// Ends the pushes of the subscription with this index.
pub(super) fn end_pushes(clients: &mut Clients, lanes: &mut Lanes, slot: u32, sub_index: u32) {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    end_pushes_where(clients, lanes, slot, |_, it| it.sub_key == key);
}

/// Ends all pushes of a connection.
pub(crate) fn end_all_pushes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    end_pushes_where(clients, lanes, slot, |_, _| true);
}

/// Ends the pushes that new settings do not allow.
pub(super) fn review_pushes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    end_pushes_where(clients, lanes, slot, |clients, it| {
        let right = clients.check_right(slot, Right::Presence, &it.topic);
        !has_presence(clients, &it.topic) || !it.is_granted && right.is_err()
    });
}

fn end_pushes_where(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    ends: impl Fn(&Clients, &WatchedChannel) -> bool,
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

fn take_watching(clients: &mut Clients, slot: u32) -> Vec<WatchedChannel> {
    match state(&clients.conns, slot).is_some_and(|it| !it.watched_channels.is_empty()) {
        true => core::mem::take(&mut state_mut(&mut clients.conns, slot).watched_channels),
        false => Vec::new(),
    }
}

fn put_watching(clients: &mut Clients, slot: u32, watching: Vec<WatchedChannel>) {
    if !watching.is_empty() {
        state_mut(&mut clients.conns, slot).watched_channels = watching;
    }
}

fn write_change(clients: &mut Clients, slot: u32, channel: &str, change: &PresenceChange<'_>) {
    let (PresenceChange::Join(member) | PresenceChange::Leave(member)) = change;
    let client = client_id_text(&clients.ctx.world, member.at, member.process);
    let member_info = Data::optional(format_of(clients.conns.get(slot)), member.info);
    let info = ClientInfo {
        user: core::str::from_utf8(member.user).unwrap_or_default(),
        client: &client,
        conn_info: member_info.payload(),
        chan_info: Payload::Value(b""),
    };
    let push = match change {
        PresenceChange::Join(_) => Push::Join(channel, info),
        PresenceChange::Leave(_) => Push::Leave(channel, info),
    };
    write_push(clients, slot, &push);
}
