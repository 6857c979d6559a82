//! Streams of the clients that connect and disconnect, for the operator's webhooks.

use alloc::vec::Vec;

use super::{ClientEvent, EventKind, Journal};

/// Limit of the bytes of a stream's events that nobody has requested: some thousand events.
const EVENTS_BYTES_MAX: usize = 256 << 10;

/// A stream.
#[derive(Debug)]
pub(super) struct EventStream {
    number: u64,
    events: Vec<ClientEvent>,
    bytes: usize,
    /// Whether events were dropped for lack of room.
    is_lost: bool,
}

impl EventStream {
    /// The bytes of the events that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Journal {
    /// Begins a stream.
    pub fn begin_stream(&mut self, number: u64) {
        self.streams.push(EventStream {
            number,
            events: Vec::new(),
            bytes: 0,
            is_lost: false,
        });
    }

    /// Ends a stream. Returns whether the journal still has a reader.
    pub fn end_stream(&mut self, number: u64) -> bool {
        self.streams.retain(|stream| stream.number != number);
        self.is_for_log || !self.streams.is_empty()
    }

    /// Takes the events of a stream. `None` if it does not exist or has lost events.
    pub fn take_stream_events(&mut self, number: u64) -> Option<Vec<ClientEvent>> {
        let stream = (self.streams.iter_mut()).find(|stream| stream.number == number)?;
        stream.bytes = 0;
        let events = core::mem::take(&mut stream.events);
        (!stream.is_lost).then_some(events)
    }

    /// Adds an event to all streams.
    pub fn report_to_streams(&mut self, event: &ClientEvent) {
        let is_lost = matches!(event.kind, EventKind::Dropped(_))
            && core::mem::take(&mut self.has_dropped_connections);
        for stream in &mut self.streams {
            match event.kind {
                EventKind::Connected | EventKind::Disconnected => {
                    let texts = event.user.len() + event.client_id.len() + event.detail.len();
                    stream.bytes += size_of::<ClientEvent>() + texts;
                    stream.is_lost |= stream.bytes > EVENTS_BYTES_MAX;
                }
                EventKind::Dropped(_) => stream.is_lost |= is_lost,
                EventKind::SessionOpened | EventKind::Subscribed | EventKind::Refused => continue,
            }
            if stream.is_lost {
                (stream.events, stream.bytes) = (Vec::new(), 0);
            } else if !matches!(event.kind, EventKind::Dropped(_)) {
                stream.events.push(event.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ConnId;

    fn note(journal: &mut Journal, kind: EventKind) {
        let conn = ConnId {
            slot: 1,
            generation: 1,
        };
        journal.note(conn, kind, "", b"a");
        for event in journal.take() {
            journal.report_to_streams(&event);
        }
    }

    #[test]
    fn stream_has_connects_and_disconnects_until_it_lacks_room() {
        let mut journal = Journal::default();
        journal.begin_stream(1);
        journal.begin_stream(2);
        for kind in [
            EventKind::Connected,
            EventKind::Subscribed,
            EventKind::Disconnected,
        ] {
            note(&mut journal, kind);
        }
        let kinds = |journal: &mut Journal, number| -> Option<Vec<EventKind>> {
            let events = journal.take_stream_events(number)?;
            Some(events.iter().map(|event| event.kind).collect())
        };
        let both = Some([EventKind::Connected, EventKind::Disconnected].into());
        assert_eq!(kinds(&mut journal, 1), both);
        for _ in 0..3_000 {
            note(&mut journal, EventKind::Connected);
            assert!(kinds(&mut journal, 1).is_some(), "it is read");
        }
        assert!(journal.held_bytes() < EVENTS_BYTES_MAX);
        assert_eq!(kinds(&mut journal, 2), None);
        assert!(journal.end_stream(2), "the other one reads it");
        let drop_many = |journal: &mut Journal, what| {
            let conn = ConnId {
                slot: 1,
                generation: 1,
            };
            for _ in 0..2_000 {
                journal.note(conn, what, "", b"a");
            }
            for event in journal.take() {
                journal.report_to_streams(&event);
            }
        };
        drop_many(&mut journal, EventKind::Refused);
        assert_eq!(
            kinds(&mut journal, 1),
            Some(Vec::new()),
            "it has no refusals"
        );
        drop_many(&mut journal, EventKind::Connected);
        assert_eq!(kinds(&mut journal, 1), None);
        assert!(!journal.end_stream(1));
    }
}
