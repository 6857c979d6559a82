//! Presence channels: a subscriber is told which users are there when it begins, and then which come and leave.
//!
//! A subscription is a member of its topic (`client/presence.rs`), with the user that the backend has signed. After the home (the part of a shard that keeps the topic) has
//! counted it, the connection watches the topic there, so that the first snapshot has the client itself. The home tells of connections. A user comes with its
//! first connection and leaves with its last, so the connections of each user are counted here. The next page is requested when the socket has accepted
//! the one before.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use crore_wire::json::write_string;
use crore_wire::pusher::{ErrorCode, EventData, User};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::pusher::channel_of;
use crate::base::reason::{Closed, Reason};
use crate::client::list::index_with_serial;
use crate::client::presence::ask_presence;
use crate::client::subscriptions::topic_of;
use crate::io::Io;
use crate::mail::ReplyTo;
use crate::mail::presence::{Member, PresenceAsk, PresenceChange, PresencePage};
use crate::protocol::front::{Clients, Lanes};
use crate::protocol::pusher::close::end_with_code;
use crate::protocol::pusher::reply::write_event;
use crate::protocol::pusher::state::{
    CollectedUser, CollectedUsers, Membership, MembershipProgress, drop_idle_state, state,
    state_mut,
};
use crate::store::slab::NONE;

/// How many channels of a client can be compared in one step.
const ENTRIES_PER_STEP: usize = 16;

/// Begins the membership of a subscription that no home has answered. The caller has counted the watcher.
pub(super) fn begin_membership(
    clients: &mut Clients,
    slot: u32,
    sub_index: u32,
    (name, user): (&[u8], &User<'_>),
) {
    let membership = Membership {
        sub_key: index_with_serial(&clients.conns, slot, sub_index),
        topic: topic_of(&clients.conns, slot, sub_index),
        name: name.into(),
        client: clients.conns.get(slot).consumer.client,
        user: Box::from(&*user.id),
        info: user.info.into(),
        progress: MembershipProgress::Subscribing,
        is_page_due: false,
        users: alloc::collections::BTreeMap::new(),
    };
    let memberships = &mut state_mut(&mut clients.conns, slot).memberships;
    memberships.push(membership);
}

/// Counts a connection that will watch a presence channel.
pub(super) fn enter_watcher(clients: &Clients, slot: u32) -> Result<(), Reason> {
    let client = clients.conns.get(slot).consumer.client;
    match clients.ctx.world.admission.enter_watcher(client) {
        true => Ok(()),
        false => Err(Reason::WatchersFull),
    }
}

/// The connection does not watch after all.
pub(super) fn leave_watcher(clients: &Clients, slot: u32) {
    let client = clients.conns.get(slot).consumer.client;
    clients.ctx.world.admission.leave_watcher(client);
}

/// Asks for the members of a channel if its home has answered the subscription. `sub_key` is the subscription: its index and its serial number.
pub(super) fn watch_begun(clients: &mut Clients, lanes: &mut Lanes, slot: u32, sub_key: u32) {
    let Some(state) = state(&clients.conns, slot) else {
        return;
    };
    // A client may have thousands of channels, and each answer looks through all of them.
    let looked_at = state.memberships.len() + state.pending_subscribes.len();
    clients.meter.work.steps.add(looked_at / ENTRIES_PER_STEP);
    let is_pending = (state.pending_subscribes.iter()).any(|it| it.sub_key == sub_key);
    let has_begun = |it: &Membership| {
        it.sub_key == sub_key && matches!(it.progress, MembershipProgress::Subscribing)
    };
    let index = state.memberships.iter().position(has_begun);
    let Some(index) = index.filter(|_| !is_pending) else {
        return;
    };
    let mut memberships = take_memberships(clients, slot);
    let membership = &mut memberships[index];
    membership.progress = MembershipProgress::Collecting(CollectedUsers::default());
    ask(clients, lanes, slot, membership, |to| {
        PresenceAsk::Watch(to, None)
    });
    put_memberships(clients, slot, memberships);
}

fn ask(
    clients: &Clients,
    lanes: &mut Lanes,
    slot: u32,
    membership: &Membership,
    ask: impl FnOnce(ReplyTo) -> PresenceAsk,
) {
    let to = clients.conns.reply_to(slot, membership.sub_key);
    ask_presence(clients, lanes, &membership.name, ask(to));
}

/// Handles a page of members or of changes.
pub(crate) fn handle_pusher_presence<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    let slot = to.slot;
    let mut memberships = take_memberships(clients, slot);
    let looked_at = memberships.len();
    clients.meter.work.steps.add(looked_at / ENTRIES_PER_STEP);
    let mut membership = memberships.iter_mut().find(|it| it.sub_key == to.part);
    if let Some(membership) = &mut membership {
        if page.resets && matches!(membership.progress, MembershipProgress::Told) {
            // Changes are lost. The client learns the members when it connects again.
            put_memberships(clients, slot, memberships);
            clients.refused(slot, Reason::EventsLost);
            let code = ErrorCode::RECONNECT;
            let text = Reason::EventsLost.text();
            return end_with_code(clients, slot, Closed::Slow, (code, text), io);
        }
        clients.meter.work.steps.add_bytes(page.changes.len());
        take_page(clients, membership, page);
        clients.send_reply(slot, io);
        membership.is_page_due = clients.conns.get(slot).link.outbox != NONE;
        if !membership.is_page_due {
            ask(clients, lanes, slot, membership, PresenceAsk::Ready);
        }
    }
    put_memberships(clients, slot, memberships);
}

/// Writes what a page changes for the client. Joins come before leaves, so that a user who changes the connection neither leaves nor comes.
fn take_page(clients: &mut Clients, membership: &mut Membership, page: &PresencePage) {
    let channel = channel_of(&membership.name);
    let seed = clients.ctx.world.seed;
    let hash_of = |user: &[u8]| xxh3_64_with_seed(user, seed);
    if page.resets {
        membership.users.clear();
        if let MembershipProgress::Collecting(collected) = &mut membership.progress {
            *collected = CollectedUsers::default();
        }
    }
    // Anonymous clients of other protocols are no users.
    let is_user = |member: &Member<'_>| !member.user.is_empty();
    for change in page.changes.iter() {
        let PresenceChange::Join(member) = change else {
            continue;
        };
        if !is_user(&member) {
            continue;
        }
        let count = membership.users.entry(hash_of(member.user)).or_default();
        *count += 1;
        if *count > 1 {
            continue;
        }
        match &mut membership.progress {
            MembershipProgress::Collecting(collected) => {
                let user = CollectedUser {
                    first: member.id,
                    id: member.user.into(),
                    info: member.info.into(),
                };
                collected.add(hash_of(member.user), user);
            }
            _ => write_change(clients, b"pusher_internal:member_added", &channel, |out| {
                write_user(out, member.user);
                if !member.info.is_empty() {
                    out.extend_from_slice(b",\"user_info\":");
                    out.extend_from_slice(member.info);
                }
            }),
        }
    }
    for change in page.changes.iter() {
        let PresenceChange::Leave(member) = change else {
            continue;
        };
        let hash = hash_of(member.user);
        let Some(count) = membership.users.get_mut(&hash) else {
            continue;
        };
        *count -= 1;
        if *count > 0 {
            continue;
        }
        membership.users.remove(&hash);
        match &mut membership.progress {
            MembershipProgress::Collecting(collected) => collected.remove(hash),
            _ => write_change(
                clients,
                b"pusher_internal:member_removed",
                &channel,
                |out| write_user(out, member.user),
            ),
        }
    }
    if page.completes
        && let MembershipProgress::Collecting(collected) = &membership.progress
    {
        let data = members_json(&collected.in_order());
        let event = b"pusher_internal:subscription_succeeded";
        write_event(clients, event, Some(&channel), EventData::Text(&data));
        membership.progress = MembershipProgress::Told;
    }
}

/// The data of the event that tells the users of a channel.
fn members_json(users: &[&CollectedUser]) -> Vec<u8> {
    let count = users.len();
    let (mut ids, mut infos) = (Vec::new(), Vec::new());
    for user in users {
        for list in [&mut ids, &mut infos] {
            if !list.is_empty() {
                list.push(b',');
            }
            write_string(list, &user.id);
        }
        infos.push(b':');
        infos.extend_from_slice(match &*user.info {
            b"" => b"null",
            info => info,
        });
    }
    let mut data = Vec::from(format!("{{\"presence\":{{\"count\":{count},\"ids\":["));
    data.extend_from_slice(&ids);
    data.extend_from_slice(b"],\"hash\":{");
    data.extend_from_slice(&infos);
    data.extend_from_slice(b"}}}");
    data
}

fn write_user(out: &mut Vec<u8>, user: &[u8]) {
    out.extend_from_slice(b"\"user_id\":");
    write_string(out, user);
}

fn write_change(
    clients: &mut Clients,
    event: &[u8],
    channel: &str,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let mut data = Vec::from(b"{");
    write(&mut data);
    data.push(b'}');
    write_event(clients, event, Some(channel), EventData::Text(&data));
}

/// Asks for the pages that are due, if the socket has accepted everything.
pub(super) fn ask_for_changes(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    if clients.conns.get(slot).link.outbox != NONE {
        return;
    }
    let mut memberships = take_memberships(clients, slot);
    for membership in memberships.iter_mut().filter(|it| it.is_page_due) {
        membership.is_page_due = false;
        ask(clients, lanes, slot, membership, PresenceAsk::Ready);
    }
    put_memberships(clients, slot, memberships);
}

/// Ends the membership of the subscription with this index, which still is in the list.
pub(super) fn end_membership(clients: &mut Clients, lanes: &mut Lanes, slot: u32, sub_index: u32) {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    end_memberships_where(clients, lanes, slot, |it| it.sub_key == key);
}

/// Ends all memberships of a connection.
pub(crate) fn end_all_memberships(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    end_memberships_where(clients, lanes, slot, |_| true);
}

fn end_memberships_where(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    ends: impl Fn(&Membership) -> bool,
) {
    let mut memberships = take_memberships(clients, slot);
    memberships.retain(|membership| {
        let ends = ends(membership);
        if ends {
            clients.ctx.world.admission.leave_watcher(membership.client);
            if !matches!(membership.progress, MembershipProgress::Subscribing) {
                ask(clients, lanes, slot, membership, PresenceAsk::Unwatch);
            }
        }
        !ends
    });
    put_memberships(clients, slot, memberships);
}

fn take_memberships(clients: &mut Clients, slot: u32) -> Vec<Membership> {
    match state(&clients.conns, slot).is_some_and(|it| !it.memberships.is_empty()) {
        true => core::mem::take(&mut state_mut(&mut clients.conns, slot).memberships),
        false => Vec::new(),
    }
}

fn put_memberships(clients: &mut Clients, slot: u32, memberships: Vec<Membership>) {
    match memberships.is_empty() {
        true => drop_idle_state(&mut clients.conns, slot),
        false => state_mut(&mut clients.conns, slot).memberships = memberships,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{ConnId, ShardId};
    use crate::io::RecordingIo;
    use crate::mail::presence::{MemberConn, PresenceChanges};
    use crate::protocol::pusher::tests::connected;
    use alloc::collections::BTreeMap;
    use alloc::string::String;

    /// A member with this number.
    fn member(id: u64, user: &str) -> Member<'_> {
        let conn = ConnId {
            slot: id as u32,
            generation: 0,
        };
        Member {
            id,
            at: MemberConn::here(ShardId::default(), conn),
            process: 0,
            since_s: 0,
            user: user.as_bytes(),
            info: b"",
        }
    }

    fn joins(id: u64, user: &str) -> PresenceChange<'_> {
        PresenceChange::Join(member(id, user))
    }

    fn leaves(id: u64, user: &str) -> PresenceChange<'_> {
        PresenceChange::Leave(member(id, user))
    }

    enum Part {
        First,
        Middle,
        Last,
    }

    /// A page of a snapshot.
    fn page(part: Part, changes: &[PresenceChange<'_>]) -> PresencePage {
        let mut encoded = PresenceChanges::default();
        changes.iter().for_each(|change| encoded.push(change));
        PresencePage {
            changes: encoded,
            resets: matches!(part, Part::First),
            completes: matches!(part, Part::Last),
            ..PresencePage::default()
        }
    }

    fn membership(clients: &Clients, sub_key: u32, progress: MembershipProgress) -> Membership {
        Membership {
            sub_key,
            topic: 0,
            name: b"pusher/a/presence/presence-room"[..].into(),
            client: clients.conns.get(0).consumer.client,
            user: "me".into(),
            info: Box::default(),
            progress,
            is_page_due: false,
            users: BTreeMap::new(),
        }
    }

    #[test]
    fn only_the_members_of_the_channel_whose_home_has_answered_are_requested() {
        let mut io = RecordingIo::default();
        let mut shard = connected(&["a"], "a", &mut io);
        let front = shard.front();
        let (clients, lanes) = (&mut front.clients, &mut front.subs.lanes);
        let begin = |n| membership(clients, n, MembershipProgress::Subscribing);
        let memberships: Vec<Membership> = (0..100).map(begin).collect();
        put_memberships(clients, 0, memberships);
        let before = clients.meter.work.count();
        watch_begun(clients, lanes, 0, 7);
        let is_asked = |it: &Membership| matches!(it.progress, MembershipProgress::Collecting(_));
        let memberships = &state(&clients.conns, 0).expect("memberships").memberships;
        let asked = memberships.iter().filter(|it| is_asked(it));
        assert_eq!(asked.map(|it| it.sub_key).collect::<Vec<u32>>(), [7]);
        let steps = clients.meter.work.count() - before;
        assert!(steps > 0, "the work is not counted");
    }

    /// The JSON of the events that a client which collects the members is sent for these pages.
    fn told(pages: &[PresencePage]) -> Vec<String> {
        let mut io = RecordingIo::default();
        let mut shard = connected(&["a"], "a", &mut io);
        let clients = &mut shard.front().clients;
        let progress = MembershipProgress::Collecting(CollectedUsers::default());
        let mut membership = membership(clients, 0, progress);
        clients.scratch.reply.clear();
        let mut events = Vec::new();
        for page in pages {
            take_page(clients, &mut membership, page);
            let bytes = core::mem::take(&mut clients.scratch.reply);
            // A frame begins with at most four bytes that are not of the event.
            let text = String::from_utf8_lossy(&bytes);
            events.extend(text.split("{\"event\":").skip(1).map(String::from));
        }
        events
    }

    fn assert_told(pages: &[PresencePage], expected: &[(&str, &str)]) {
        let events = told(pages);
        assert_eq!(events.len(), expected.len(), "{events:?}");
        for (event, (name, data)) in events.iter().zip(expected) {
            assert!(event.contains(name) && event.contains(data), "{event}");
        }
    }

    const SUCCEEDED: &str = "subscription_succeeded";

    #[test]
    fn user_who_leaves_during_the_snapshot_is_not_in_it() {
        let pages = [
            page(Part::First, &[joins(1, "ann"), joins(2, "bob")]),
            page(Part::Middle, &[leaves(1, "ann"), joins(3, "cid")]),
            page(Part::Last, &[leaves(3, "cid"), joins(4, "me")]),
        ];
        let ids = r#"\"count\":2,\"ids\":[\"bob\",\"me\"]"#;
        assert_told(&pages, &[(SUCCEEDED, ids)]);
    }

    #[test]
    fn user_who_leaves_during_the_snapshot_with_one_of_two_connections_stays() {
        let pages = [
            page(Part::First, &[joins(1, "ann"), joins(2, "ann")]),
            page(Part::Last, &[leaves(1, "ann")]),
            page(Part::Middle, &[leaves(2, "ann")]),
        ];
        let removed = ("member_removed", r#"\"user_id\":\"ann\""#);
        assert_told(&pages, &[(SUCCEEDED, r#"\"ids\":[\"ann\"]"#), removed]);
    }

    #[test]
    fn second_snapshot_replaces_the_first_that_is_not_whole() {
        let pages = [
            page(Part::First, &[joins(1, "ann"), joins(2, "bob")]),
            page(Part::First, &[joins(2, "bob")]),
            page(Part::Last, &[joins(3, "me")]),
            page(Part::Middle, &[leaves(2, "bob")]),
        ];
        let ids = r#"\"count\":2,\"ids\":[\"bob\",\"me\"]"#;
        let removed = ("member_removed", r#"\"user_id\":\"bob\""#);
        assert_told(&pages, &[(SUCCEEDED, ids), removed]);
    }

    #[test]
    fn anonymous_members_are_no_users() {
        let pages = [page(Part::First, &[joins(1, "")]), page(Part::Last, &[])];
        assert_told(&pages, &[(SUCCEEDED, r#"\"count\":0,\"ids\":[]"#)]);
        let changes = [joins(1, ""), leaves(1, "")];
        assert_told(
            &[
                page(Part::First, &[]),
                page(Part::Last, &[]),
                page(Part::Middle, &changes),
            ],
            &[(SUCCEEDED, "")],
        );
    }
}
