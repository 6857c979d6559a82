//! Implements the broker's [`Io`] over a transport. If TLS is on, the bytes are encrypted on the way.

use std::net::IpAddr;

use crore_broker::access::Question;
use crore_broker::backend::{BackendCall, BackendRefusal};
use crore_broker::mail::ReplyTo;
use crore_broker::{
    Batch, ClientEvent, CloseMode, ConnId, Io, Mail, OutputPart, Report, ShardId, SocketBytes,
    SocketId, Ticket,
};
use crore_net::Sender;
use crore_net::stream::TlsStreams;
use crore_net::transport::{self, Sent, Transport};

use crate::appender::Appender;
use crate::client_log::ClientLog;
use crate::counters::Meter;
use crate::letters::{ControlLetter, Letter};

/// Sends the credential of a connection to the verifier. Returns false if the verifier's queue is full.
pub type AskVerifier = Box<dyn Fn(ConnId, Question) -> bool + Send>;

/// Sends a call of a connection's client to the backend, or says why it is not sent.
pub type AskBackend = Box<dyn Fn(ConnId, BackendCall) -> Result<(), BackendRefusal> + Send>;

/// All outputs of a shard: to sockets, other shards, the control thread, the verifier and the engine.
pub struct ShardIo<T> {
    pub transport: T,
    pub tls: Option<Box<TlsStreams>>,
    pub peers: Vec<Sender<Letter>>,
    pub reports: Sender<ControlLetter>,
    pub ask_verifier: AskVerifier,
    pub ask_backend: AskBackend,
    /// Passes batches to the engine, which appends them to the log. `None` if there is no engine.
    pub appender: Option<Appender>,
    pub meter: Meter,
    /// The log of clients, if it is on.
    pub client_log: Option<ClientLog>,
    /// Connections that failed in this round of the loop without an event from the poller. The loop ends them.
    pub failed_connections: Vec<ConnId>,
}

/// Converts the broker's type of link to that of the transport.
pub fn transport_link(link: SocketId) -> transport::Link {
    transport::Link(link.0)
}

impl<T: Transport> Io for ShardIo<T> {
    fn start_reading(&mut self, link: SocketId, conn: ConnId) {
        if let Err(error) = self.transport.open(transport_link(link), conn.token()) {
            // The poller will report no event of this connection, so the loop ends the connection.
            tracing::warn!(%error, "a connection could not be watched");
            self.failed_connections.push(conn);
        }
        if let Some(tls) = &mut self.tls {
            tls.add_connection(transport_link(link));
        }
    }

    #[inline]
    fn send(&mut self, link: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let link = transport_link(link);
        if let Some(tls) = &mut self.tls
            && let Some(taken) = tls.send(&mut self.transport, link, parts)
        {
            self.meter.loop_stats.sent_bytes += taken as u64;
            return taken;
        }
        match self.transport.send(link, parts) {
            Sent::Bytes(len) => {
                self.meter.loop_stats.sent_bytes += len as u64;
                len
            }
            // The next wait reports a failure again, as an event that ends the connection.
            Sent::Again | Sent::Failed(_) => 0,
        }
    }

    fn set_interest(&mut self, link: SocketId, conn: ConnId, read: bool, write: bool) {
        let link = transport_link(link);
        let (read, write) = match &mut self.tls {
            Some(tls) => tls.socket_interest(link, read, write),
            None => (read, write),
        };
        let changed = self.transport.set_interest(link, conn.token(), read, write);
        if changed.is_err() {
            self.failed_connections.push(conn);
        }
    }

    fn close(&mut self, link: SocketId, how: CloseMode) {
        let (link, transport) = (transport_link(link), &mut self.transport);
        match (&mut self.tls, how) {
            (Some(tls), CloseMode::Drain) => return tls.shutdown(transport, link),
            (Some(tls), _) => tls.forget(transport, link, how == CloseMode::Now),
            (None, _) => {}
        }
        match how {
            CloseMode::Drain => transport.shut_down(link),
            CloseMode::Now => transport.close(link),
            CloseMode::Reset => transport.reset(link),
        }
    }

    fn post(&mut self, to: ShardId, mail: Mail) {
        self.peers[to as usize].post(Letter::Mail(mail));
    }

    fn append(&mut self, batch: Batch) {
        if let Some(appender) = &mut self.appender {
            appender.append(batch);
        }
    }

    fn peer_address(&self, link: SocketId) -> Option<IpAddr> {
        self.transport.peer(transport_link(link))
    }

    fn is_secure(&self, link: SocketId) -> bool {
        (self.tls.as_ref()).is_some_and(|tls| tls.is_sealed(transport_link(link)))
    }

    fn report_client_event(&mut self, event: &ClientEvent) {
        if let Some(log) = &self.client_log {
            log.write(event);
        }
    }

    fn report_deliveries(&mut self, stamp: u64, deliveries: u64) {
        self.meter.count_deliveries(stamp, deliveries);
    }

    fn transport_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.held_bytes())
    }

    fn socket_bytes(&self) -> SocketBytes {
        SocketBytes {
            received_bytes: self.meter.loop_stats.received_bytes,
            sent_bytes: self.meter.loop_stats.sent_bytes,
        }
    }

    fn answer_order(&mut self, ticket: Ticket, report: Report) {
        self.reports.post(ControlLetter::Report(ticket, report));
    }

    fn ask_verifier(&mut self, conn: ConnId, question: Question) -> bool {
        (self.ask_verifier)(conn, question)
    }
    fn ask_backend(&mut self, conn: ConnId, call: BackendCall) -> Result<(), BackendRefusal> {
        (self.ask_backend)(conn, call)
    }

    fn request_subscriber_count(&mut self, to: ReplyTo, topic: &[u8]) -> bool {
        let shard = self.meter.shard();
        self.reports
            .post(ControlLetter::Count(shard, to, topic.into()));
        true
    }
}
