//! The part of a turn that handles ready connections and TLS handshakes.

use crore_broker::{ConnId, Input, Now};
use crore_net::stream::{Taken, Then};
use crore_net::transport::{self, Readiness, Received, Transport};

use super::ShardLoop;
use crate::links::{Links, below};

impl<T: Transport> ShardLoop<T> {
    /// Handles a ready connection. A writable socket gets at most `write_bytes` of its outbox.
    pub(super) fn connection_event(&mut self, event: Readiness, write_bytes: usize, now: Now) {
        let conn = ConnId::from_token(event.token);
        let Some(link) = self.shard.link_of(conn) else {
            return;
        };
        let link = below(link);
        if event.writable && self.is_writable(link, event.token) {
            let input = Input::Writable(conn, write_bytes);
            self.shard.handle(input, now, &mut self.io);
        }
        // The write may have ended the connection.
        if !(event.readable || event.hangup) || self.shard.link_of(conn).is_none() {
            return;
        }
        if !event.readable && event.hangup {
            self.shard.handle(Input::Closed(conn), now, &mut self.io);
            return;
        }
        let transport = &mut self.io.transport;
        if let Some(tls) = &mut self.io.tls {
            let taken = tls.receive(transport, link, event.token, &mut self.buffer);
            return self.taken(conn, taken, now);
        }
        let input = match transport.receive(link, &mut self.buffer) {
            Received::Bytes(len) => {
                self.io.meter.turns.received_bytes += len as u64;
                Input::Received(conn, &mut self.buffer[..len])
            }
            Received::End => Input::End(conn),
            Received::Again => return,
            Received::Failed(_) => Input::Closed(conn),
        };
        self.shard.handle(input, now, &mut self.io);
    }

    /// Whether the broker may write to this connection: not while TLS has bytes of its own to send.
    fn is_writable(&mut self, link: transport::Link, token: u64) -> bool {
        let Links { tls, transport, .. } = &mut self.io;
        tls.as_mut()
            .is_none_or(|tls| tls.writable(transport, link, token))
    }

    /// Hands the broker the plain text of a TLS connection, which lies at the beginning of the buffer.
    fn taken(&mut self, conn: ConnId, taken: Taken, now: Now) {
        if taken.plain > 0 {
            self.io.meter.turns.received_bytes += taken.plain as u64;
            let bytes = &mut self.buffer[..taken.plain];
            self.shard
                .handle(Input::Received(conn, bytes), now, &mut self.io);
        }
        let input = match taken.then {
            Then::Open => return,
            Then::End => Input::End(conn),
            Then::Closed => Input::Closed(conn),
        };
        self.shard.handle(input, now, &mut self.io);
    }

    /// Continues handshakes, within this turn's share of time. Returns whether some are left.
    pub(super) fn handshakes(&mut self, now: Now) -> bool {
        while let Some(tls) = &mut self.io.tls
            && let Some((token, taken)) =
                tls.next_handshake(&mut self.io.transport, &mut self.buffer)
        {
            self.taken(ConnId::from_token(token), taken, now);
        }
        while let Some(tls) = &mut self.io.tls
            && let Some(token) = tls.take_ended()
        {
            let over = Input::Closed(ConnId::from_token(token));
            self.shard.handle(over, now, &mut self.io);
        }
        let Links { tls, transport, .. } = &mut self.io;
        tls.as_mut().is_some_and(|tls| tls.end_turn(transport))
    }

    /// Logs why TLS connections failed, limited in rate.
    pub(super) fn tell_tls(&mut self, now: Now) {
        if let (Some(tls), Some(failures)) = (&mut self.io.tls, &mut self.told.tls) {
            failures.log(tls, now.s);
        }
    }
}
