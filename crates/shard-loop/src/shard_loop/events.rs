//! Handles the ready connections and the TLS handshakes of a turn (one round of the loop).

use crore_broker::{ConnId, Input, Now};
use crore_net::stream::{PlainReceived, StreamState};
use crore_net::transport::{self, Readiness, Received, Transport};

use super::ShardLoop;
use crate::shard_io::{ShardIo, transport_link};

impl<T: Transport> ShardLoop<T> {
    /// Handles a ready connection. A writable socket gets at most `write_bytes` of its outbox.
    pub(super) fn handle_connection_event(
        &mut self,
        event: Readiness,
        write_bytes: usize,
        now: Now,
    ) {
        let conn = ConnId::from_token(event.token);
        let Some(link) = self.shard.socket_of(conn) else {
            return;
        };
        let link = transport_link(link);
        if event.writable && self.is_writable(link, event.token) {
            let input = Input::Writable(conn, write_bytes);
            self.shard.handle(input, now, &mut self.io);
        }
        // The write may have ended the connection.
        if !(event.readable || event.hangup) || self.shard.socket_of(conn).is_none() {
            return;
        }
        if !event.readable && event.hangup {
            self.shard.handle(Input::Failed(conn), now, &mut self.io);
            return;
        }
        let transport = &mut self.io.transport;
        if let Some(tls) = &mut self.io.tls {
            let received = tls.receive(transport, link, event.token, &mut self.buffer);
            return self.handle_plaintext(conn, received, now);
        }
        let input = match transport.receive(link, &mut self.buffer) {
            Received::Bytes(len) => {
                self.io.meter.loop_stats.received_bytes += len as u64;
                Input::Received(conn, &mut self.buffer[..len])
            }
            Received::End => Input::HalfClosed(conn),
            Received::Again => return,
            Received::Failed(_) => Input::Failed(conn),
        };
        self.shard.handle(input, now, &mut self.io);
    }

    /// Whether the broker may write to this connection. The broker must wait while TLS keeps sealed bytes that are not sent yet.
    fn is_writable(&mut self, link: transport::Link, token: u64) -> bool {
        let ShardIo { tls, transport, .. } = &mut self.io;
        tls.as_mut()
            .is_none_or(|tls| tls.handle_writable(transport, link, token))
    }

    /// Hands the plaintext of a TLS connection, which is at the beginning of the buffer, to the broker.
    fn handle_plaintext(&mut self, conn: ConnId, received: PlainReceived, now: Now) {
        if received.plain_bytes > 0 {
            self.io.meter.loop_stats.received_bytes += received.plain_bytes as u64;
            let bytes = &mut self.buffer[..received.plain_bytes];
            self.shard
                .handle(Input::Received(conn, bytes), now, &mut self.io);
        }
        let input = match received.state {
            StreamState::Open => return,
            StreamState::End => Input::HalfClosed(conn),
            StreamState::Closed => Input::Failed(conn),
        };
        self.shard.handle(input, now, &mut self.io);
    }

    /// Continues TLS handshakes, within their share of the turn's time. Returns whether some are left.
    pub(super) fn continue_handshakes(&mut self, now: Now) -> bool {
        while let Some(tls) = &mut self.io.tls
            && let Some((token, received)) =
                tls.next_handshake(&mut self.io.transport, &mut self.buffer)
        {
            self.handle_plaintext(ConnId::from_token(token), received, now);
        }
        while let Some(tls) = &mut self.io.tls
            && let Some(token) = tls.take_ended()
        {
            let closed = Input::Failed(ConnId::from_token(token));
            self.shard.handle(closed, now, &mut self.io);
        }
        let ShardIo { tls, transport, .. } = &mut self.io;
        tls.as_mut().is_some_and(|tls| tls.end_turn(transport))
    }

    /// Logs why TLS connections failed, limited in rate.
    pub(super) fn log_tls_failures(&mut self, now: Now) {
        if let (Some(tls), Some(failures)) = (&mut self.io.tls, &mut self.refusal_log.tls_failures)
        {
            failures.log(tls, now.s);
        }
    }
}
