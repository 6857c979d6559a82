//! The journal of clients: who comes, what is subscribed to, what is refused and why connections end, one event each, for the operator's log at
//! `debug`.
//!
//! It exists only where the log wants it. Elsewhere nothing is noted, and a place that would note something costs one branch.
//!
//! Invariants: what clients choose is cut at [`DETAIL_BYTES_MAX`]; past [`EVENTS_MAX`] that wait to be told events are counted only. What is
//! remembered of connections is in the account ([`Journal::held_bytes`]).

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::base::ids::ConnId;

/// Longest detail of an event, and longest name of a client, in bytes.
const DETAIL_BYTES_MAX: usize = 200;
/// Events that wait to be told, at most: they are handed over after each input, and one input rarely makes more.
const EVENTS_MAX: usize = 1024;
/// Bytes of what is known of a connection beside its client id: an entry of the tree, whose nodes are two thirds full.
const KNOWN_BYTES: usize = size_of::<(u32, Known)>() * 3 / 2;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A connection was let in.
    Connected,
    /// It has begun an MQTT session; the detail is the client id.
    SessionOpened,
    /// It subscribes to a topic or filter, which is the detail.
    Subscribed,
    /// Something was refused; the detail is the reason.
    Refused,
    /// The connection ends; the detail is the reason.
    Disconnected,
    /// This many events were dropped, because too many came at once.
    Dropped(u64),
}

/// Something that happened to a client.
#[derive(Clone, Debug)]
pub struct ClientEvent {
    /// The kind.
    pub what: EventKind,
    /// The connection; none where it was not let in.
    pub conn: Option<ConnId>,
    /// Where it comes from, or what a trusted proxy says of that.
    pub address: Option<IpAddr>,
    /// Its user, or empty.
    pub user: Box<str>,
    /// Its MQTT client id, or empty.
    pub client_id: Box<str>,
    /// More about it, without control characters.
    pub detail: Box<str>,
}

impl ClientEvent {
    /// One that is about no connection.
    pub(crate) fn without(what: EventKind, address: Option<IpAddr>, detail: &str) -> ClientEvent {
        ClientEvent {
            what,
            conn: None,
            address,
            user: Box::default(),
            client_id: Box::default(),
            detail: detail.into(),
        }
    }
}

/// The events that wait to be told.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    events: Vec<ClientEvent>,
    dropped: u64,
    /// By slot.
    known: BTreeMap<u32, Known>,
    /// Bytes of the client ids in there.
    id_bytes: usize,
    /// The words for the end of the connection at hand.
    why: String,
}

/// What a connection itself does not keep: where it came from, which a socket does not tell any more when its peer has left, and its client id.
#[derive(Clone, Debug, Default)]
struct Known {
    peer: Option<IpAddr>,
    client_id: Box<str>,
}

impl Journal {
    /// Notes that a connection was let in.
    pub fn connected(&mut self, conn: ConnId, peer: IpAddr) {
        let known = Known {
            peer: Some(peer),
            ..Known::default()
        };
        let before = self.known.insert(conn.slot, known);
        self.id_bytes -= before.map_or(0, |it| it.client_id.len());
        self.note(conn, EventKind::Connected, "", b"");
    }

    /// Notes an event.
    pub fn note(&mut self, conn: ConnId, what: EventKind, user: &str, detail: &[u8]) {
        let mut detail = shown(detail);
        match what {
            EventKind::SessionOpened => {
                let known = self.known.entry(conn.slot).or_default();
                self.id_bytes += detail.len();
                self.id_bytes -= known.client_id.len();
                known.client_id = detail.as_str().into();
            }
            EventKind::Disconnected if !self.why.is_empty() => {
                detail = alloc::format!("{detail}: {}", core::mem::take(&mut self.why));
            }
            _ => {}
        }
        let known = match what {
            EventKind::Disconnected => {
                let known = self.known.remove(&conn.slot);
                self.id_bytes -= known.as_ref().map_or(0, |it| it.client_id.len());
                known
            }
            _ => self.known.get(&conn.slot).cloned(),
        };
        let Known { peer, client_id } = known.unwrap_or_default();
        if self.events.len() >= EVENTS_MAX {
            self.dropped += 1;
            return;
        }
        self.events.push(ClientEvent {
            what,
            conn: Some(conn),
            address: peer,
            user: shown(user.as_bytes()).into(),
            client_id,
            detail: detail.into(),
        });
    }

    /// Sets the words for the end of the connection at hand; the first ones count.
    pub fn set_reason(&mut self, words: &str) {
        if self.why.is_empty() {
            self.why = shown(words.as_bytes());
        }
    }

    /// Bytes that it remembers of connections.
    pub fn held_bytes(&self) -> usize {
        self.known.len() * KNOWN_BYTES + self.id_bytes
    }

    /// Takes the events that wait.
    pub fn take(&mut self) -> Vec<ClientEvent> {
        let mut events = core::mem::take(&mut self.events);
        if self.dropped > 0 {
            let what = EventKind::Dropped(core::mem::take(&mut self.dropped));
            events.push(ClientEvent::without(what, None, ""));
        }
        // Words that no end has taken are of an input that is over.
        self.why.clear();
        events
    }
}

/// Text of a client as a line of the log can hold it. Text stays as it is; other bytes are escaped.
fn shown(bytes: &[u8]) -> String {
    let plain = core::str::from_utf8(bytes).ok();
    let plain = plain.filter(|text| !text.contains(char::is_control));
    let mut text = match plain {
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
        assert_eq!(shown("grün/a".as_bytes()), "grün/a");
        assert_eq!(shown(b"a\nb\xff"), r"a\nb\xff");
        for long in ["a".repeat(1000), "ü".repeat(1000), "\n".repeat(1000)] {
            let text = shown(long.as_bytes());
            assert!(text.len() <= DETAIL_BYTES_MAX + '…'.len_utf8(), "{text}");
        }
    }

    #[test]
    fn events_past_the_bound_are_counted() {
        let mut journal = Journal::default();
        for _ in 0..EVENTS_MAX + 5 {
            journal.note(conn(1), EventKind::Subscribed, "", b"a");
        }
        let told = journal.take();
        assert_eq!(told.len(), EVENTS_MAX + 1);
        assert_eq!(told[EVENTS_MAX].what, EventKind::Dropped(5));
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
            assert_eq!(journal.held_bytes(), 2 * KNOWN_BYTES + "sensor".len());
        }
        journal.note(conn(1), EventKind::Disconnected, "", b"");
        assert_eq!(journal.held_bytes(), KNOWN_BYTES);
        journal.note(conn(2), EventKind::Disconnected, "", b"");
        assert_eq!(journal.held_bytes(), 0);
    }

    #[test]
    fn client_id_stands_beside_all_events_of_its_connection_and_of_no_other() {
        let mut journal = Journal::default();
        let peer = IpAddr::from([127, 0, 0, 1]);
        journal.connected(conn(1), peer);
        journal.note(conn(1), EventKind::SessionOpened, "ann", b"sensor-7");
        journal.note(conn(1), EventKind::Subscribed, "ann", b"a");
        journal.note(conn(2), EventKind::Subscribed, "", b"a");
        journal.set_reason("the operator ended the connection");
        journal.set_reason("late");
        journal.note(conn(1), EventKind::Disconnected, "ann", b"operator");
        journal.note(conn(1), EventKind::Connected, "", b"");
        let told = journal.take();
        assert_eq!((told[3].address, told[4].address), (None, Some(peer)));
        let ids: Vec<_> = told
            .into_iter()
            .map(|it| (it.client_id, it.detail))
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
