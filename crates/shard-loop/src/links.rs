//! Implements the broker's [`Io`] with a transport, and TLS between them if it is on.

use std::net::IpAddr;

use crore_broker::access::Question;
use crore_broker::mail::ReplyTo;
use crore_broker::{
    Batch, ClientEvent, Close, ConnId, Io, Link, Mail, Moved, Part, Report, ShardId, Ticket,
};
use crore_net::Sender;
use crore_net::stream::Streams;
use crore_net::transport::{self, Sent, Transport};

use crate::appender::Appender;
use crate::client_log::ClientLog;
use crate::counters::Meter;
use crate::letters::{Letter, Reported};

/// Asks about the credential of a connection. False: too many questions are open.
pub type Questions = Box<dyn Fn(ConnId, Question) -> bool + Send>;

/// All that a shard sends to: sockets, other shards, the control thread, the verifier and the engine.
pub struct Links<T> {
    pub transport: T,
    pub tls: Option<Box<Streams>>,
    pub peers: Vec<Sender<Letter>>,
    pub reports: Sender<Reported>,
    pub questions: Questions,
    /// Passes batches to the engine, which appends them to the log. `None` if there is no engine.
    pub appender: Option<Appender>,
    pub meter: Meter,
    /// The log of clients, if it is on.
    pub client_log: Option<ClientLog>,
    /// Connections that failed in this turn and for which no event will come.
    pub failed: Vec<ConnId>,
}

/// The transport's type for a link.
pub fn below(link: Link) -> transport::Link {
    transport::Link(link.0)
}

impl<T: Transport> Io for Links<T> {
    fn open(&mut self, link: Link, conn: ConnId) {
        if let Err(error) = self.transport.open(below(link), conn.token()) {
            // A connection that the poller does not watch would never get an event.
            tracing::warn!(%error, "a connection could not be watched");
            self.failed.push(conn);
        }
        if let Some(tls) = &mut self.tls {
            tls.opened(below(link));
        }
    }

    #[inline]
    fn send(&mut self, link: Link, parts: &[Part<'_>]) -> usize {
        let link = below(link);
        if let Some(tls) = &mut self.tls
            && let Some(taken) = tls.send(&mut self.transport, link, parts)
        {
            self.meter.turns.sent_bytes += taken as u64;
            return taken;
        }
        match self.transport.send(link, parts) {
            Sent::Bytes(len) => {
                self.meter.turns.sent_bytes += len as u64;
                len
            }
            // When the transport next waits for events, it reports a failure too, and that ends the connection.
            Sent::Again | Sent::Failed(_) => 0,
        }
    }

    fn interest(&mut self, link: Link, conn: ConnId, read: bool, write: bool) {
        let link = below(link);
        let (read, write) = match &mut self.tls {
            Some(tls) => tls.interest(link, read, write),
            None => (read, write),
        };
        let changed = self.transport.interest(link, conn.token(), read, write);
        if changed.is_err() {
            self.failed.push(conn);
        }
    }

    fn close(&mut self, link: Link, how: Close) {
        let (link, transport) = (below(link), &mut self.transport);
        match (&mut self.tls, how) {
            (Some(tls), Close::Drain) => return tls.shutdown(transport, link),
            (Some(tls), _) => tls.closing(transport, link, how == Close::Now),
            (None, _) => {}
        }
        match how {
            Close::Drain => transport.shut_down(link),
            Close::Now => transport.close(link),
            Close::Reset => transport.reset(link),
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

    fn peer(&self, link: Link) -> Option<IpAddr> {
        self.transport.peer(below(link))
    }

    fn is_secure(&self, link: Link) -> bool {
        (self.tls.as_ref()).is_some_and(|tls| tls.is_sealed(below(link)))
    }

    fn client_event(&mut self, event: &ClientEvent) {
        if let Some(log) = &self.client_log {
            log.write(event);
        }
    }

    fn written(&mut self, stamp: u64, deliveries: u64) {
        self.meter.count_deliveries(stamp, deliveries);
    }

    fn held_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.held_bytes())
    }

    fn moved(&self) -> Moved {
        Moved {
            received_bytes: self.meter.turns.received_bytes,
            sent_bytes: self.meter.turns.sent_bytes,
        }
    }

    fn report(&mut self, ticket: Ticket, report: Report) {
        self.reports.post(Reported::Report(ticket, report));
    }

    fn question(&mut self, conn: ConnId, question: Question) -> bool {
        (self.questions)(conn, question)
    }

    fn count(&mut self, to: ReplyTo, topic: &[u8]) -> bool {
        let shard = self.meter.shard();
        self.reports.post(Reported::Count(shard, to, topic.into()));
        true
    }
}
