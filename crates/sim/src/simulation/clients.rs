//! The connections of HTTP and WebSocket clients: connecting, sending, reading, and faults of the network.

use crore_broker::ShardId;
use crore_rng::Rng;

use super::Simulation;
use crate::net::Net;
use crate::truth::Violation;

impl Simulation {
    /// Opens a connection to a random shard, of a node that serves clients. Returns its link.
    pub(super) fn connect(&mut self, rng: &mut Rng) -> u32 {
        let count = self.shards.len();
        let shard = rng.below(count);
        let mut same_shard_of_nodes =
            (0..self.plan.nodes).map(|n| (shard + n * self.plan.shards) % count);
        let shard = same_shard_of_nodes
            .find(|it| self.is_ready_for_clients(*it))
            .unwrap_or(shard);
        let window = rng.pick(&self.plan.windows);
        let now_s = self.truth.now_s;
        let link = self.net.connect(shard as ShardId, window, now_s);
        self.loops[shard].links.push(link);
        link
    }

    /// Lets a subscriber connect, or send its next request.
    pub fn request(&mut self, n: usize, rng: &mut Rng) {
        if !self.clients.subscribers[n].may_request() {
            return;
        }
        match self.clients.subscribers[n].link {
            Some(link) if self.net.sockets[link as usize].client_fin => return,
            Some(_) => self.clients.subscribers[n].send_request(&mut self.truth, rng),
            None => {
                let link = self.connect(rng);
                self.clients.subscribers[n].connect(link, &mut self.truth, rng);
            }
        }
        self.flush_subscriber(n);
    }

    fn flush_subscriber(&mut self, n: usize) {
        let subscriber = &mut self.clients.subscribers[n];
        if let Some(link) = subscriber.link {
            send(&mut self.net, link, &mut subscriber.out);
        }
    }

    /// Sends the bytes that a publisher has written.
    pub fn flush_publisher(&mut self, n: usize) {
        let publisher = &mut self.clients.publishers[n];
        if let Some(link) = publisher.link {
            send(&mut self.net, link, &mut publisher.out);
        }
    }

    /// Connects publisher `n` if it has no connection. In most cases the publisher then sends its unanswered requests again. Returns `n`.
    pub fn ready_publisher(&mut self, n: usize, rng: &mut Rng) -> usize {
        if self.clients.publishers[n].link.is_none() {
            let link = self.connect(rng);
            self.clients.publishers[n].connect(link, &self.truth);
            if rng.chance(80) {
                self.clients.publishers[n].retry(&mut self.truth, rng, &mut self.coverage);
            }
        }
        n
    }

    /// Lets a subscriber read at most `bytes_max` bytes.
    pub fn read_subscriber(&mut self, n: usize, bytes_max: usize) -> Result<(), Violation> {
        let Some(link) = self.clients.subscribers[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let subscriber = &mut self.clients.subscribers[n];
        subscriber.read(&bytes, end, &mut self.truth, &mut self.coverage)?;
        let must_close = subscriber.must_close;
        self.check_logged()?;
        if must_close || end {
            self.clients.subscribers[n].connection_ended();
            self.hang_up(link);
            return Ok(());
        }
        self.flush_subscriber(n);
        Ok(())
    }

    /// Checks that the log has every message that was acknowledged or delivered since the last check.
    pub fn check_logged(&mut self) -> Result<(), Violation> {
        let numbers = std::mem::take(&mut self.truth.to_check_in_log);
        let Some(engine) = &self.net.engine else {
            return Ok(());
        };
        let is_missing = |number: &u32| !self.truth.is_non_durable(*number) && !engine.has(*number);
        match numbers.iter().find(|number| is_missing(number)) {
            Some(number) => Err(format!("message {number} is known and not kept")),
            None => Ok(()),
        }
    }

    /// Lets a publisher read at most `bytes_max` bytes.
    pub fn read_publisher(&mut self, n: usize, bytes_max: usize) -> Result<(), Violation> {
        let Some(link) = self.clients.publishers[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let publisher = &mut self.clients.publishers[n];
        publisher.read(&bytes, &mut self.truth, &mut self.coverage)?;
        let must_close = publisher.must_close;
        self.check_logged()?;
        if must_close || end {
            self.clients.publishers[n].connection_ended();
            self.hang_up(link);
            return Ok(());
        }
        self.flush_publisher(n);
        Ok(())
    }

    /// Lets a follower connect, if it is not connected.
    pub fn follow(&mut self, n: usize, rng: &mut Rng) {
        if self.clients.followers[n].link.is_none() {
            let link = self.connect(rng);
            self.clients.followers[n].connect(link, &mut self.truth);
            send(&mut self.net, link, &mut self.clients.followers[n].out);
        }
    }

    /// Lets a follower read at most `bytes_max` bytes.
    pub fn read_follower(&mut self, n: usize, bytes_max: usize) -> Result<(), Violation> {
        let Some(link) = self.clients.followers[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let follower = &mut self.clients.followers[n];
        follower.read(&bytes, &mut self.truth, &mut self.coverage)?;
        if follower.must_close || end {
            follower.connection_ended();
            self.hang_up(link);
            return Ok(());
        }
        send(&mut self.net, link, &mut follower.out);
        Ok(())
    }

    /// Closes the client's end of a connection.
    pub fn hang_up(&mut self, link: u32) {
        self.net.sockets[link as usize].hang_up();
    }

    /// Resets, closes or half closes a connection. Returns whether the client can no longer read from it.
    pub(super) fn cut(&mut self, link: u32, rng: &mut Rng) -> bool {
        self.coverage.cuts += 1;
        let socket = &mut self.net.sockets[link as usize];
        let sent_bytes = rng.below(socket.sent_by_client() + 1);
        let how = rng.below(3);
        self.truth.note(|| {
            format!(
                "link {link} is cut, {}",
                ["reset", "closed", "half closed"][how]
            )
        });
        match how {
            0 => {
                socket.reset_both();
                true
            }
            1 => {
                socket.lose_sent(sent_bytes);
                socket.hang_up();
                true
            }
            _ => {
                socket.shut_down_client();
                false
            }
        }
    }

    /// Whether this link has unread bytes for the client, or has ended.
    pub fn has_unread(&self, link: Option<u32>) -> bool {
        link.is_some_and(|link| self.net.sockets[link as usize].has_unread())
    }
}

/// Moves a client's bytes to its socket. If the connection has ended, the bytes are lost.
pub(super) fn send(net: &mut Net, link: u32, out: &mut Vec<u8>) {
    net.sockets[link as usize].send_from_client(out);
    out.clear();
}

/// Takes at most `bytes_max` received bytes for a client. Also returns whether these are the last bytes of the connection.
pub(super) fn take(net: &mut Net, link: u32, bytes_max: usize) -> (Vec<u8>, bool) {
    net.sockets[link as usize].read_at_client(bytes_max)
}
