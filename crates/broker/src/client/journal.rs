//! Records events of connections for the operator's log, if it is enabled ([`Journal`](crate::base::journal)).

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::base::journal::{ClientEvent, EventKind};
use crate::client::connections::Connections;
use crate::client::parts::Clients;
use crate::client::rights::user_of;
use crate::client::types::ProtocolTypes;
use crate::io::Io;

impl<P: ProtocolTypes> Clients<P> {
    /// Records an event of a connection.
    #[inline]
    pub(crate) fn record_event(&mut self, slot: u32, what: EventKind, detail: &[u8]) {
        if self.meter.journal.is_some() {
            self.record_event_cold(slot, what, detail);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_event_cold(&mut self, slot: u32, what: EventKind, detail: &[u8]) {
        let conn = self.conns.id_of(slot);
        let user = user_of(&self.conns, conn);
        if let Some(journal) = &mut self.meter.journal {
            journal.note(conn, what, user, detail);
        }
    }

    /// Records that a connection was accepted.
    #[inline]
    pub(crate) fn record_accepted(&mut self, slot: u32, peer: IpAddr) {
        let conn = self.conns.id_of(slot);
        if let Some(journal) = &mut self.meter.journal {
            journal.connected(conn, peer);
        }
    }

    /// Records why the current connection is about to end.
    #[inline]
    pub(crate) fn record_end_reason(&mut self, reason: &str) {
        if let Some(journal) = &mut self.meter.journal {
            journal.set_end_reason(reason);
        }
    }

    /// The bytes held for the log.
    #[inline]
    pub(crate) fn journal_bytes(&self) -> usize {
        (self.meter.journal.as_ref()).map_or(0, |journal| journal.held_bytes())
    }

    /// Reports a connection that was not accepted.
    #[inline]
    pub(crate) fn report_turned_away<I: Io>(&self, peer: IpAddr, reason: &str, io: &mut I) {
        if self.meter.journal.is_some() {
            io.report_client_event(&ClientEvent::without_connection(
                EventKind::Refused,
                Some(peer),
                reason,
            ));
        }
    }

    /// Reports the recorded events. The rows of connections that end still exist at this time.
    #[inline]
    pub(crate) fn report_recorded_events<I: Io>(&mut self, io: &mut I) {
        if self.meter.journal.is_some() {
            self.report_recorded_events_cold(io);
        }
    }

    #[cold]
    #[inline(never)]
    fn report_recorded_events_cold<I: Io>(&mut self, io: &mut I) {
        let events = self.meter.journal.as_mut().map(|journal| journal.take());
        for mut event in events.into_iter().flatten() {
            let conn = event.conn.filter(|conn| self.conns.is_current(*conn));
            let relayed_address = conn.and_then(|conn| self.conns.address_of(conn.slot, io));
            event.address = relayed_address.or(event.address);
            // A request of HTTP/2 has a row of its own, but is no client.
            let is_request = conn.is_some_and(|conn| self.conns.is_http2_request(conn.slot));
            if let Some(journal) = self.meter.journal.as_mut().filter(|_| !is_request) {
                journal.report_to_streams(&event);
            }
            io.report_client_event(&event);
        }
    }

    /// Begins a stream of the clients that connect and disconnect, for the operator's webhooks.
    pub(crate) fn begin_event_stream(&mut self, stream_id: u64) {
        let journal = self.meter.journal.get_or_insert_default();
        journal.begin_stream(stream_id);
    }

    /// The next events of such a stream; `None` if it does not exist or has lost events.
    pub(crate) fn next_events(&mut self, stream_id: u64) -> Option<Vec<ClientEvent>> {
        self.meter.journal.as_mut()?.take_stream_events(stream_id)
    }

    /// Ends such a stream. Removes the journal if neither the log nor another stream needs it.
    pub(crate) fn end_event_stream(&mut self, stream_id: u64) {
        if (self.meter.journal.as_mut()).is_some_and(|journal| !journal.end_stream(stream_id)) {
            self.meter.journal = None;
        }
    }
}

impl<P: ProtocolTypes> Connections<P> {
    /// The client's address to be shown: the one that a trusted proxy named, or else the peer's.
    pub(crate) fn address_of<I: Io>(&self, slot: u32, io: &I) -> Option<IpAddr> {
        let address = self.relayed_address(slot);
        address.or_else(|| io.peer_address(self.socket_of(slot)))
    }
}
