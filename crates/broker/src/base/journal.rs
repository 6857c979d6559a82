//! The journal collects client events (connect, subscribe, refusal, disconnect) for the operator's log at level `debug`, and for webhooks.
//!
//! A journal exists only while the log has this level, or a webhook asks for events of clients. Without a journal, each place that could record an event costs one branch.
//!
//! Invariants: text that clients choose is cut at [`DETAIL_BYTES_MAX`]. While [`EVENTS_MAX`] events wait, new events are only counted. The memory
//! that the journal holds for connections is charged ([`Journal::held_bytes`]).

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::base::ids::ConnId;

mod streams;

use streams::EventStream;

/// Longest text that a client chooses (user, client id, detail), in bytes.
const DETAIL_BYTES_MAX: usize = 200;
/// The maximum number of events that wait. The shard takes them after each input, and one input rarely causes more.
const EVENTS_MAX: usize = 1024;
/// Bytes for each connection besides its client id: an entry of `Journal::connections`, whose tree nodes are two thirds full.
const CONNECTION_BYTES: usize = size_of::<(u32, ConnectionNames)>() * 3 / 2;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A connection was admitted.
    Connected,
    /// The connection opened an MQTT session. The detail is the client id.
    SessionOpened,
    /// The connection subscribed. The detail is the topic or filter.
    Subscribed,
    /// A request was refused. The detail is the reason.
    Refused,
    /// The connection ended. The detail is the reason.
    Disconnected,
    /// This many events were dropped, because too many occurred at once.
    Dropped(u64),
}

/// Something that happened to a client.
#[derive(Clone, Debug)]
pub struct ClientEvent {
    /// The kind.
    pub kind: EventKind,
    /// The connection; none if it was not admitted.
    pub conn: Option<ConnId>,
    /// The client's address, which a trusted proxy may have named.
    pub address: Option<IpAddr>,
    /// The user, or empty.
    pub user: Box<str>,
    /// The MQTT client id, or empty.
    pub client_id: Box<str>,
    /// The detail, as the kind defines it. Without control characters.
    pub detail: Box<str>,
}

impl ClientEvent {
    /// An event without a connection.
    pub(crate) fn without_connection(
        kind: EventKind,
        address: Option<IpAddr>,
        detail: &str,
    ) -> ClientEvent {
        ClientEvent {
            kind,
            conn: None,
            address,
            user: Box::default(),
            client_id: Box::default(),
            detail: detail.into(),
        }
    }
}

/// The events that wait to be logged.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    events: Vec<ClientEvent>,
    dropped: u64,
    /// Whether a connect or disconnect was dropped. The streams have no other events.
    has_dropped_connections: bool,
    /// The names of each connection, by slot.
    connections: BTreeMap<u32, ConnectionNames>,
    /// Bytes of the client ids in `connections`.
    id_bytes: usize,
    /// Whether the operator's log gets the events.
    pub is_for_log: bool,
    streams: Vec<EventStream>,
    /// Why the current input ends its connection; empty if the input has not ended a connection.
    end_reason: String,
}

/// The names of a connection in events that its row does not have: the client id and the peer's address. The socket forgets the address when the peer
/// leaves.
#[derive(Clone, Debug, Default)]
struct ConnectionNames {
    peer: Option<IpAddr>,
    client_id: Box<str>,
}

impl Journal {
    /// Records an admitted connection.
    pub fn connected(&mut self, conn: ConnId, peer: IpAddr) {
        let names = ConnectionNames {
            peer: Some(peer),
            ..ConnectionNames::default()
        };
        let former = self.connections.insert(conn.slot, names);
        self.id_bytes -= former.map_or(0, |names| names.client_id.len());
        self.note(conn, EventKind::Connected, "", b"");
    }

    /// Records an event of a connection.
    pub fn note(&mut self, conn: ConnId, kind: EventKind, user: &str, detail: &[u8]) {
        let mut detail = printable(detail);
        match kind {
            EventKind::SessionOpened => {
                let names = self.connections.entry(conn.slot).or_default();
                self.id_bytes += detail.len();
                self.id_bytes -= names.client_id.len();
                names.client_id = detail.as_str().into();
            }
            EventKind::Disconnected if !self.end_reason.is_empty() => {
                detail = alloc::format!("{detail}: {}", core::mem::take(&mut self.end_reason));
            }
            _ => {}
        }
        let names = match kind {
            EventKind::Disconnected => {
                let names = self.connections.remove(&conn.slot);
                self.id_bytes -= names.as_ref().map_or(0, |names| names.client_id.len());
                names
            }
            _ => self.connections.get(&conn.slot).cloned(),
        };
        let ConnectionNames { peer, client_id } = names.unwrap_or_default();
        if self.events.len() >= EVENTS_MAX {
            self.dropped += 1;
            self.has_dropped_connections |=
                matches!(kind, EventKind::Connected | EventKind::Disconnected);
            return;
        }
        self.events.push(ClientEvent {
            kind,
            conn: Some(conn),
            address: peer,
            user: printable(user.as_bytes()).into(),
            client_id,
            detail: detail.into(),
        });
    }

    /// Sets why the current input ends its connection. The first call wins.
    pub fn set_end_reason(&mut self, reason: &str) {
        if self.end_reason.is_empty() {
            self.end_reason = printable(reason.as_bytes());
        }
    }

    /// Bytes that the journal holds for connections.
    pub fn held_bytes(&self) -> usize {
        let streams = self.streams.iter().map(EventStream::bytes).sum::<usize>();
        self.connections.len() * CONNECTION_BYTES + self.id_bytes + streams
    }

    /// Takes the events that wait.
    pub fn take(&mut self) -> Vec<ClientEvent> {
        let mut events = core::mem::take(&mut self.events);
        if self.dropped > 0 {
            let kind = EventKind::Dropped(core::mem::take(&mut self.dropped));
            events.push(ClientEvent::without_connection(kind, None, ""));
        }
        // The input has been handled: a reason that no event has used is stale.
        self.end_reason.clear();
        events
    }
}

/// Turns a client's bytes into text for one line of the log. UTF-8 without control characters stays as it is. Any other text is escaped.
fn printable(bytes: &[u8]) -> String {
    let text = core::str::from_utf8(bytes).ok();
    let text = text.filter(|text| !text.contains(char::is_control));
    let mut text = match text {
        Some(text) => text.to_owned(),
        None => bytes.escape_ascii().map(char::from).collect(),
    };
    if text.len() > DETAIL_BYTES_MAX {
        let end = (0..=DETAIL_BYTES_MAX)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: 1,
        }
    }

    #[test]
    fn texts_of_clients_are_bounded_and_stay_in_their_line() {
        assert_eq!(printable("grün/a".as_bytes()), "grün/a");
        assert_eq!(printable(b"a\nb\xff"), r"a\nb\xff");
        for long in ["a".repeat(1000), "ü".repeat(1000), "\n".repeat(1000)] {
            let text = printable(long.as_bytes());
            assert!(text.len() <= DETAIL_BYTES_MAX + '…'.len_utf8(), "{text}");
        }
    }

    #[test]
    fn events_beyond_the_limit_are_counted() {
        let mut journal = Journal::default();
        for _ in 0..EVENTS_MAX + 5 {
            journal.note(conn(1), EventKind::Subscribed, "", b"a");
        }
        let events = journal.take();
        assert_eq!(events.len(), EVENTS_MAX + 1);
        assert_eq!(events[EVENTS_MAX].kind, EventKind::Dropped(5));
        assert!(journal.take().is_empty());
    }

    #[test]
    fn connection_is_counted_until_it_ends() {
        let mut journal = Journal::default();
        let peer = IpAddr::from([127, 0, 0, 1]);
        for _ in 0..2 {
            journal.connected(conn(1), peer);
            journal.connected(conn(2), peer);
            journal.note(conn(1), EventKind::SessionOpened, "", b"sensor-7");
            journal.note(conn(1), EventKind::SessionOpened, "", b"sensor");
            assert_eq!(journal.held_bytes(), 2 * CONNECTION_BYTES + "sensor".len());
        }
        journal.note(conn(1), EventKind::Disconnected, "", b"");
        assert_eq!(journal.held_bytes(), CONNECTION_BYTES);
        journal.note(conn(2), EventKind::Disconnected, "", b"");
        assert_eq!(journal.held_bytes(), 0);
    }

    #[test]
    fn client_id_is_in_all_events_of_its_connection_and_of_no_other() {
        let mut journal = Journal::default();
        let peer = IpAddr::from([127, 0, 0, 1]);
        journal.connected(conn(1), peer);
        journal.note(conn(1), EventKind::SessionOpened, "ann", b"sensor-7");
        journal.note(conn(1), EventKind::Subscribed, "ann", b"a");
        journal.note(conn(2), EventKind::Subscribed, "", b"a");
        journal.set_end_reason("the operator ended the connection");
        journal.set_end_reason("late");
        journal.note(conn(1), EventKind::Disconnected, "ann", b"operator");
        journal.note(conn(1), EventKind::Connected, "", b"");
        let events = journal.take();
        assert_eq!((events[3].address, events[4].address), (None, Some(peer)));
        let ids: Vec<_> = events
            .into_iter()
            .map(|event| (event.client_id, event.detail))
            .collect();
        let ids: Vec<_> = ids.iter().map(|(id, detail)| (&**id, &**detail)).collect();
        assert_eq!(
            ids,
            [
                ("", ""),
                ("sensor-7", "sensor-7"),
                ("sensor-7", "a"),
                ("", "a"),
                ("sensor-7", "operator: the operator ended the connection"),
                ("", ""),
            ]
        );
    }
}
