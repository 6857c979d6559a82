//! Lists and ends connections and sessions, for the operator. Each session has a home, the shard that keeps it; a hash of its name chooses the home.
//!
//! A *page* is a bounded part of a list.

use crate::base::reason::Reason;
use crate::base::time::Now;
use crate::home::sessions::{AbsentView, FOREVER_S, SessionsAtHome};
use crate::mail::orders::{
    Connection, ConnectionOrder, Ended, Page, Selection, Session, SessionName,
};
use crate::protocol::centrifugo::orders::carry_out_order;
use crate::protocol::front::{Clients, Subscriptions};
use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::topic;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::ConnId;
use crate::client::joining::filter_subscriptions;
use crate::client::review::{all_filters_of, all_topics_of};
use crate::client::rights::user_of;
use crate::client::row::{CLOSING, State};
use crate::io::Io;
use crate::mail::session::{SessionId, stored};
use crate::protocol::mqtt::access::{client_id_of_session, session_name_of, user_of_session};
use crate::protocol::mqtt::client::mqtt_session;
use crate::protocol::mqtt::details::mqtt_details;
use crate::store::slab::NONE;

/// The maximum number of rows that one order examines: some hundred microseconds of work if few rows match.
const ROWS_PER_TURN: u32 = 4_096;
/// The maximum number of connections that one order ends or changes. Each takes long: the end of a connection may need a write to the socket, and removes
/// the connection from its topics.
const ENDED_PER_TURN: usize = 256;
/// The maximum number of topics, filters and MQTT subscriptions named for each connection of a list.
const NAMES_IN_LIST: usize = 16;

/// Calls `each` for the open rows from `from` on, at most `ROWS_PER_TURN` rows, until `each` returns false. Returns the next row, if any.
fn visit_open_rows(clients: &Clients, from: u32, mut each: impl FnMut(u32) -> bool) -> Option<u32> {
    let end = clients.conns.end();
    let until = end.min(from.saturating_add(ROWS_PER_TURN));
    for slot in from..until {
        clients.meter.work.steps.add(1);
        if clients.conns.get(slot).is_open() && !each(slot) {
            return Some(slot + 1).filter(|next| *next < end);
        }
    }
    Some(until).filter(|next| *next < end)
}

pub(super) fn connections_page<I: Io>(
    clients: &Clients,
    subs: &Subscriptions,
    which: &Selection,
    from: u32,
    limit: usize,
    io: &I,
) -> Page<Connection> {
    let mut found = Vec::new();
    let next = visit_open_rows(clients, from, |slot| {
        if is_selected(clients, subs, slot, which, io) {
            found.push(describe(clients, subs, slot, NAMES_IN_LIST, io));
        }
        found.len() < limit
    });
    Page { found, next }
}

/// The users of the next connections, as hashes of their names. All shards of a process hash a name alike.
pub(super) fn users_page(clients: &Clients, from: u32) -> Page<u64> {
    let mut found = Vec::new();
    let next = visit_open_rows(clients, from, |slot| {
        let user = user_of(&clients.conns, clients.conns.id_of(slot));
        found.push(xxh3_64_with_seed(user.as_bytes(), clients.ctx.world.seed));
        true
    });
    found.sort_unstable();
    found.dedup();
    Page { found, next }
}

pub(super) fn find_connection<I: Io>(
    clients: &Clients,
    subs: &Subscriptions,
    id: ConnId,
    io: &I,
) -> Option<Connection> {
    clients
        .conns
        .is_current(id)
        .then(|| describe(clients, subs, id.slot, usize::MAX, io))
}

fn describe<I: Io>(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    names: usize,
    io: &I,
) -> Connection {
    let row = clients.conns.get(slot);
    let (topics, filters) = (
        all_topics_of(&clients.conns, &subs.topics, slot),
        all_filters_of(&clients.conns, &subs.matching, slot),
    );
    let topic_count = topics.len() as u32;
    let named = |names: usize, list: Vec<&[u8]>| -> Vec<Box<[u8]>> {
        list.into_iter().take(names).map(Box::from).collect()
    };
    let outbox = clients.conns.outbox(slot);
    let behind = clients
        .conns
        .find_side_row(slot)
        .is_some_and(|it| !it.behind.is_empty());
    let id = clients.conns.id_of(slot);
    let began_unix_s = clients.conns.start_second(slot).unix_s(clients.ctx.now);
    Connection {
        id,
        transport: row.transport(),
        link: clients.conns.link_of(slot),
        request_in_flight: row.consumer.state == State::Waiting,
        address: clients.conns.address_of(slot, io),
        user: user_of(&clients.conns, id).into(),
        session: mqtt_session(clients, slot),
        topics: named(names, topics),
        topic_count,
        filters: filters.into_iter().take(names).collect(),
        outbox_bytes: outbox.map_or(0, |outbox| outbox.waiting_bytes()),
        behind: behind
            || filter_subscriptions(&clients.conns, slot)
                .is_some_and(|all| all.has_waiting_group()),
        silent_s: clients.ctx.now.s.saturating_sub(row.link.sent_s),
        connected_unix_s: clients.ctx.date_of(began_unix_s) as u32,
        is_secure: io.is_secure(clients.conns.socket_of(slot)),
        mqtt: mqtt_details(clients, subs, slot, names),
    }
}

/// The client ids of these sessions; `None` for a session that the same connection no longer holds.
pub(super) fn client_ids(
    at_home: &SessionsAtHome,
    sessions: &[SessionId],
) -> Vec<Option<Box<[u8]>>> {
    let name = |id: &SessionId| at_home.name_of(*id);
    sessions
        .iter()
        .map(|id| name(id).map(|name| Box::from(client_id_of_session(name))))
        .collect()
}

/// A page of this home's sessions whose clients are disconnected, from row `from` on.
pub(super) fn sessions_page(
    at_home: &SessionsAtHome,
    from: u32,
    limit: usize,
    now: Now,
) -> Page<Session> {
    let end = at_home.row_count();
    let until = end.min(from.saturating_add(ROWS_PER_TURN));
    let (mut found, mut row) = (Vec::new(), from);
    while row < until && found.len() < limit {
        at_home.for_each_absent_view(row..row + 1, |view| found.push(absent_session(&view, now)));
        row += 1;
    }
    Page {
        found,
        next: Some(row).filter(|next| *next < end),
    }
}

fn absent_session(view: &AbsentView<'_>, now: Now) -> Session {
    let ends = view.expires_s != FOREVER_S;
    Session {
        client_id: client_id_of_session(view.name).into(),
        user: user_of_session(view.name).into(),
        expires_in_s: ends.then(|| view.expires_s.saturating_sub(now.unix_s)),
        bytes: view.bytes,
        subscriptions: Vec::new(),
    }
}

/// A session of this home whose client is disconnected, with its subscriptions.
pub(super) fn find_session(
    at_home: &SessionsAtHome,
    clients: &Clients,
    name: &SessionName,
) -> Option<Session> {
    let (hash, name) = hash_and_name(clients, name);
    let view = at_home.find_absent(hash, &name)?;
    let subscriptions = stored::subscriptions(view.state);
    let subscriptions = subscriptions.map(|it| (Box::from(&*it.filter), it.qos()));
    Some(Session {
        subscriptions: subscriptions.collect(),
        ..absent_session(&view, clients.ctx.now)
    })
}

/// Schedules the end of a session for a later turn (a pass of the shard's loop).
pub(super) fn schedule_session_end(
    at_home: &mut SessionsAtHome,
    clients: &Clients,
    name: &SessionName,
) -> Ended {
    let (hash, name) = hash_and_name(clients, name);
    let ended = at_home.evict_named(hash, &name, &clients.ctx.world.admission);
    Ended {
        count: u32::from(ended),
        next: None,
    }
}

/// The keyed hash of a session's name at its home, and that name.
fn hash_and_name(clients: &Clients, name: &SessionName) -> (u32, Vec<u8>) {
    let name = session_name_of(&name.client_id, &name.user);
    let hash = xxh3_64_with_seed(&name, clients.ctx.world.seed) as u32;
    (hash, name)
}

fn is_selected<I: Io>(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    which: &Selection,
    io: &I,
) -> bool {
    let row = clients.conns.get(slot);
    let conn = clients.conns.id_of(slot);
    which.only.is_none_or(|only| only == conn)
        && !which.except.contains(&conn)
        && which.transport.is_none_or(|kind| row.transport() == kind)
        && (!which.slow || row.link.outbox != NONE)
        && (which.user.as_deref()).is_none_or(|user| user_of(&clients.conns, conn) == user)
        && (which.address).is_none_or(|from| clients.conns.address_of(slot, io) == Some(from))
        && (which.filter.as_deref()).is_none_or(|filter| {
            let is_matched = |name: &&[u8]| filter == b"#" || topic::matches(filter, name);
            all_topics_of(&clients.conns, &subs.topics, slot)
                .iter()
                .any(is_matched)
                || all_filters_of(&clients.conns, &subs.matching, slot)
                    .iter()
                    .any(|own| topic::covers(filter, own))
        })
}

pub(super) fn order_connections<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    order: &ConnectionOrder,
    (which, from): (&Selection, u32),
    io: &mut I,
) -> Ended {
    let mut due = Vec::new();
    let next = visit_open_rows(clients, from, |slot| {
        if is_selected(clients, subs, slot, which, &*io) {
            due.push(clients.conns.id_of(slot));
        }
        due.len() < ENDED_PER_TURN
    });
    let mut count = 0;
    for conn in due {
        let is_done = match order {
            ConnectionOrder::Disconnect => end_by_order(clients, conn, io),
            order => carry_out_order(clients, subs, conn, order, io),
        };
        count += u32::from(is_done);
    }
    Ended { count, next }
}

/// Ends a connection by the means of its protocol. Returns false if the connection is gone or closing.
pub(super) fn end_by_order<I: Io>(clients: &mut Clients, id: ConnId, io: &mut I) -> bool {
    if !clients.conns.is_current(id) || clients.conns.get(id.slot).link.has(CLOSING) {
        return false;
    }
    clients.end_connection(id.slot, Reason::Operator, io);
    true
}
