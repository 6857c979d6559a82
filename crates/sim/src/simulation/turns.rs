//! The turns of a shard: rounds in which its loop handles the inputs from the poller, the mail and the engine (the log), partly in random
//! order.

use std::net::IpAddr;

use crore_broker::{Input, Now, PartitionId, Shard, ShardId, SocketId};
use crore_rng::Rng;

use super::{RECEIVE_BYTES, Simulation, limits, now};
use crate::net::{Net, Readiness};
use crate::truth::Violation;

const NS_PER_S: u64 = 1_000_000_000;

impl Simulation {
    /// Whether the shard has an input that would wake it.
    pub fn has_work(&self, shard: usize) -> bool {
        self.loops[shard].is_busy
            || self.net.mail.has_mail_for(shard)
            || (self.net.engine.as_ref())
                .is_some_and(|engine| engine.has_work(self.node_of(shard), self.partitions(shard)))
            || self.shards[shard].ms_until_tick().is_some()
            || self.loops[shard].ticked_s != self.truth.now_s
            || self.net.has_packets_of(shard)
            || self.loops[shard].links.iter().any(|link| {
                let socket = &self.net.sockets[*link as usize];
                let ready = socket.readiness();
                socket.can_be_accepted()
                    || ready.is_readable
                    || ready.is_writable
                    || ready.is_hung_up
            })
    }

    /// Runs one turn of a shard. With `takes_all` the shard handles all waiting inputs, otherwise a random part of them.
    pub fn turn(&mut self, shard: usize, takes_all: bool, rng: &mut Rng) -> Result<(), Violation> {
        self.finish_recovery(self.node_of(shard));
        self.net.current_shard = shard as ShardId;
        self.net.rng = Rng::new(rng.draw());
        let now = now(self.truth.now_s);
        self.shards[shard].set_wall_clock_offset(self.wall_offset_s);
        self.shards[shard].set_turn_time(1 + u64::from(self.truth.now_s) * NS_PER_S);
        self.tick(shard, now);
        self.net.carry_packets(shard, self.truth.now_s, takes_all);
        let sockets = &self.net.sockets;
        self.loops[shard]
            .links
            .retain(|link| !sockets[*link as usize].server_closed);
        let mut links = self.loops[shard].links.clone();
        rng.shuffle(&mut links);
        for link in links {
            if self.shards[shard].is_spent() {
                // The poller reports the other sockets again in the next turn.
                self.coverage.spent += 1;
                break;
            }
            if takes_all || rng.chance(70) {
                self.socket_event(shard, link, takes_all, now, rng);
            }
        }
        let first = self.node_of(shard) * self.plan.shards;
        let mut senders: Vec<usize> = (first..first + self.plan.shards).collect();
        rng.shuffle(&mut senders);
        for from in senders {
            while !self.net.mail.queue(from, shard).is_empty()
                && (takes_all || rng.chance(self.plan.mail_percent))
            {
                let mail = self.net.mail.queue(from, shard).pop_front();
                let mail = mail.expect("it was just seen");
                let steps_max = limits::input_steps(&self.plan);
                let state = &mut self.shards[shard];
                handle(state, Input::Mail(mail), now, &mut self.net, steps_max);
            }
        }
        self.engine_turn(shard, takes_all, now, rng)?;
        let before = self.shards[shard].steps();
        self.loops[shard].is_busy = self.shards[shard].flush(now, &mut self.net);
        let steps = self.shards[shard].steps() - before;
        let steps_max = limits::flush_steps(&self.plan);
        if steps > steps_max {
            return Err(format!(
                "the end of a turn took {steps} steps, at most {steps_max}"
            ));
        }
        self.coverage.cursors += u64::from(self.loops[shard].is_busy);
        limits::check(self, shard)
    }

    /// The partitions of which this shard is the home (the owner of their topics).
    fn partitions(&self, shard: usize) -> impl Iterator<Item = PartitionId> + use<> {
        let shard = (shard % self.plan.shards) as ShardId;
        let placement = self.server.placement();
        let all = (shard < placement.homes()).then(|| placement.of_home(shard));
        all.into_iter().flatten()
    }

    /// Lets the engine store batches of this shard's partitions, and hands stored ones to the shard.
    fn engine_turn(
        &mut self,
        shard: usize,
        takes_all: bool,
        now: Now,
        rng: &mut Rng,
    ) -> Result<(), Violation> {
        let (partitions, node) = (self.partitions(shard), self.node_of(shard));
        let Some(engine) = &mut self.net.engine else {
            return Ok(());
        };
        let committed = engine.turn(node, now, partitions, takes_all, rng)?;
        let steps_max = limits::input_steps(&self.plan);
        for batch in committed {
            let state = &mut self.shards[shard];
            handle(
                state,
                Input::Committed(batch),
                now,
                &mut self.net,
                steps_max,
            );
        }
        Ok(())
    }

    /// Ticks the shard. In each second the shard sweeps all connections, a part of them in each turn. If the second has passed, the rest of
    /// the sweep is done at once.
    fn tick(&mut self, shard: usize, now: Now) {
        let is_new_second = self.loops[shard].ticked_s != self.truth.now_s;
        let state = &mut self.shards[shard];
        let steps_max = limits::input_steps(&self.plan);
        while is_new_second && state.ms_until_tick().is_some() {
            handle(state, Input::Tick, now, &mut self.net, steps_max);
        }
        if is_new_second || state.ms_until_tick().is_some() {
            self.loops[shard].ticked_s = self.truth.now_s;
            handle(state, Input::Tick, now, &mut self.net, steps_max);
        }
    }

    /// Handles the readiness of one socket as a shard's loop does.
    fn socket_event(&mut self, shard: usize, link: u32, takes_all: bool, now: Now, rng: &mut Rng) {
        let steps_max = limits::input_steps(&self.plan);
        let (net, shard) = (&mut self.net, &mut self.shards[shard]);
        let socket = &mut net.sockets[link as usize];
        if !socket.accepted {
            if !socket.can_be_accepted() {
                return;
            }
            socket.accepted = true;
            let from = IpAddr::from([127, 0, 0, 1 + (link % 3) as u8]);
            handle(
                shard,
                Input::Accepted(SocketId(link), from),
                now,
                net,
                steps_max,
            );
            return;
        }
        let Readiness {
            is_readable,
            is_writable,
            is_hung_up,
        } = socket.readiness();
        let Some(conn) = socket.conn else { return };
        if is_writable {
            let input = Input::Writable(conn, self.plan.part_bytes);
            handle(shard, input, now, net, steps_max);
        }
        if !(is_readable || is_hung_up) || shard.socket_of(conn).is_none() {
            return;
        }
        if !is_readable {
            handle(shard, Input::Failed(conn), now, net, steps_max);
            return;
        }
        let socket = &mut net.sockets[link as usize];
        if socket.reset {
            handle(shard, Input::Failed(conn), now, net, steps_max);
        } else if socket.sent_by_client() == 0 {
            handle(shard, Input::HalfClosed(conn), now, net, steps_max);
        } else {
            let most_bytes = if takes_all {
                RECEIVE_BYTES
            } else {
                rng.range(1, RECEIVE_BYTES)
            };
            let mut bytes = socket.read_at_server(most_bytes);
            handle(
                shard,
                Input::Received(conn, &mut bytes),
                now,
                net,
                steps_max,
            );
        }
    }
}

/// Lets the shard handle an input, and checks the number of steps.
fn handle(shard: &mut Shard, input: Input<'_>, now: Now, net: &mut Net, steps_max: u64) {
    let what = match &input {
        Input::Accepted(..) => "a connection",
        Input::Received(..) => "what came of a connection",
        Input::Writable(..) => "a socket that takes bytes again",
        Input::HalfClosed(_) | Input::Failed(_) => "the end of a connection",
        Input::Mail(_) => "a mail",
        Input::Tick => "a tick",
        Input::Committed(_) => "an answer of the engine",
        Input::Control(..) => "an order",
        Input::Verdict(..) | Input::SubscriberCount(..) | Input::BackendAnswer(..) => "an answer",
    };
    let before = shard.steps();
    shard.handle(input, now, net);
    let steps = shard.steps() - before;
    if steps > steps_max {
        net.violation
            .get_or_insert(format!("{what} took {steps} steps, at most {steps_max}"));
    }
}
