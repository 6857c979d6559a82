//! Lists, reads and changes topics, for the operator. Only the home of a topic (the shard that stores the topic) does this.

use crate::base::time::Now;
use crate::budget::account::MemoryLevel;
use crate::budget::admission::{Client, Party};
use crate::client::asking;
use crate::home::Home;
use crate::mail::message::{DedupKey, Publish};
use crate::mail::orders::{
    AdminPublish, Control, Interest, InterestReply, LogPageRequest, Messages, Page, Ticket, Topic,
    TopicsPageRequest,
};
use crate::mail::peer_presence::{PeerPresence, PeerPresenceReply};
use crate::mail::presence::{Member, PresenceChange, PresenceChanges, PresencePage};
use crate::mail::{Ask, Change, Span, TopicRequest, WantedAnswer};
use crate::protocol::front::{Clients, Context, Lanes, Subscriptions};

/// The maximum number of messages that one order removes from a log.
pub const PURGED_PER_TURN: u32 = 4_096;

pub(super) fn topics_page(home: Option<&Home>, now: Now, page: &TopicsPageRequest) -> Page<Topic> {
    home.map_or_else(Page::default, |home| home.list_topics(page, now))
}

pub(super) fn find_topic(home: Option<&Home>, now: Now, name: &[u8]) -> Option<Topic> {
    let home = home?;
    home.look_up_topic(name, now)
}

/// Members of a topic that joined after change `after`. Their times are by the wall clock.
pub(super) fn members_page(
    home: Option<&Home>,
    ctx: &Context,
    (name, after, members_max): (&[u8], u64, u32),
) -> PresencePage {
    let page = home.map_or_else(PresencePage::default, |home| {
        home.read_members(name, after, members_max as usize)
    });
    let mut changes = PresenceChanges::default();
    for change in page.changes.iter() {
        if let PresenceChange::Join(member) = change {
            let since_s = ctx.date_of(member.since_s) as u32;
            changes.push(&PresenceChange::Join(Member { since_s, ..member }));
        }
    }
    PresencePage { changes, ..page }
}

pub(super) fn log_page(
    home: Option<&mut Home>,
    ctx: &Context,
    page: &LogPageRequest,
) -> Option<Messages> {
    let home = home?;
    let mut read = home.read_log(page)?;
    for message in &mut read.messages {
        message.time_s = ctx.date_of(message.time_s) as u32;
    }
    Some(read)
}

/// Carries out an order about interest (which topics have subscribers). The order comes from another node of the cluster.
pub(super) fn carry_out_interest_order(home: Option<&mut Home>, order: Interest) -> InterestReply {
    let Some(home) = home else {
        return InterestReply::Done;
    };
    home.handle_interest_order(order)
}

/// Carries out an order about the members of topics at other nodes of the cluster.
pub(super) fn carry_out_peer_presence(
    home: Option<&mut Home>,
    clients: &Clients,
    order: PeerPresence,
) -> PeerPresenceReply {
    let Some(home) = home else {
        return PeerPresenceReply::Next(None);
    };
    let (world, now) = (&clients.ctx.world, clients.ctx.now);
    let has_room = clients.conns.level() < MemoryLevel::Full;
    let settings = (&world.rules, world.settings.presence.leave_s);
    home.handle_peer_presence(order, settings, has_room, now)
}

/// Sends an order that changes a topic to the topic's home, which answers the order.
pub(super) fn order_change(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    order: Control,
    ticket: Ticket,
) {
    let (change, name) = match order {
        Control::Purge(name, until) => (Change::PurgeSome(until, PURGED_PER_TURN), name),
        Control::Delete(name) => (Change::Delete, name),
        Control::Publish(message) => return publish_ordered(clients, subs, &message, ticket),
        _ => return,
    };
    let answer = WantedAnswer::Report(ticket);
    change_topic(&mut subs.lanes, &clients.ctx, change, &name, answer);
}

/// Changes a topic, on behalf of no client.
pub(in crate::shard) fn change_topic(
    lanes: &mut Lanes,
    ctx: &Context,
    change: Change,
    name: &[u8],
    answer: WantedAnswer,
) {
    let (hash, home) = ctx.hash_and_home_of(name);
    lanes.ask(home, |bytes| Ask::Topic {
        request: TopicRequest::Change(change),
        hash,
        name: Span::append(bytes, name),
        answer,
        client: Client::NOBODY,
    });
}

fn publish_ordered(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    message: &AdminPublish,
    ticket: Ticket,
) {
    let (hash, home) = clients.ctx.hash_and_home_of(&message.name);
    let publish = Publish {
        hash,
        name: &message.name,
        data: &message.data,
        headers: message.headers.map(|field| &field[..]),
        dedup: message.idempotency_key.as_deref().map(|key| DedupKey {
            key,
            publisher: Party::of_address(Client::NOBODY),
        }),
        client: Client::NOBODY,
    };
    let answer = WantedAnswer::Report(ticket);
    asking::publish(clients, subs, &mut None, home, &publish, answer);
}
