//! The home of client ids: it gives sessions to connections, and does what follows when one ends.

use alloc::boxed::Box;

use crate::base::ids::ShardId;
use crate::base::reason::Closed;
use crate::budget::admission::{Client, Party};
use crate::client::asking::publish;
use crate::client::relief::{charge_sessions, may_leave};
use crate::home::sessions::{Claim, Closing, Opening};
use crate::mail::message::Publish;
use crate::mail::session::Will;
use crate::mail::{Answer, Farewell, Given, ReplyTo, Tell};
use crate::protocol::mqtt::kept::session_ended;
use crate::shard::Shard;

use crore_wire::mqtt::ReasonCode;

impl Shard {
    /// A client connects.
    pub(crate) fn session_open(&mut self, claim: Claim, client: (u32, &[u8])) {
        let (shard, to, owner) = (claim.shard, claim.to, claim.owner);
        if !self.may_open(client, owner) {
            return self.refuse_session(shard, to, ReasonCode::QUOTA_EXCEEDED);
        }
        let before = self.sessions.len();
        let admission = &self.front.clients.ctx.world.admission;
        let opening = self
            .sessions
            .open(client, claim, admission, self.front.clients.ctx.now);
        self.count_sessions(before);
        self.opened(shard, to, owner, opening);
    }

    /// Whether a client may have this session: where memory is short, one that holds much gets no new one.
    pub(super) fn may_open(&self, (hash, client): (u32, &[u8]), owner: Client) -> bool {
        let party = Party::of_session(client, owner, self.front.clients.ctx.world.seed);
        may_leave(&self.front.clients, &self.front.census, party, 0)
            || self.sessions.has(hash, client)
    }

    /// The same for what a session leaves behind when its connection ends: otherwise it ends, too.
    pub(super) fn trim(&mut self, farewell: &mut Farewell) {
        let Some(name) = self.sessions.name_of(farewell.id) else {
            return;
        };
        let party = Party::of_session(name, farewell.owner, self.front.clients.ctx.world.seed);
        let will = farewell.will.as_ref().map_or(0, |will| will.bytes());
        let state = farewell.kept.as_ref().map(|kept| kept.state.bytes.len());
        if let Some(state) = state
            && !may_leave(&self.front.clients, &self.front.census, party, state + will)
        {
            let ended = farewell.kept.take();
            session_ended(
                &mut self.front.subs.lanes,
                &self.front.meter.work,
                &self.front.clients.ctx,
                ended,
            );
            self.front.meter.stats.sessions_evicted += 1;
        }
    }

    /// Sessions have come or gone, of which there were so many before.
    fn count_sessions(&mut self, before: u32) {
        let after = self.sessions.len();
        self.front
            .clients
            .ctx
            .world
            .admission
            .count_sessions(before, after);
        charge_sessions(&mut self.front.clients.conns, self.sessions.held_bytes());
    }

    fn opened(&mut self, shard: ShardId, to: ReplyTo, owner: Client, opening: Opening) {
        match opening {
            Opening::Opened {
                id,
                kept,
                ended,
                will,
            } => {
                session_ended(
                    &mut self.front.subs.lanes,
                    &self.front.meter.work,
                    &self.front.clients.ctx,
                    ended,
                );
                self.publish_will(will);
                let given = Box::new(Given::Yes { id, owner, kept });
                self.front.subs.lanes.tell(shard, Tell::Session(to, given));
            }
            Opening::Claimed { holder, superseded } => {
                if let Some((shard, holder)) = holder {
                    self.front
                        .subs
                        .lanes
                        .tell(shard, Tell::SessionTaken(holder));
                }
                if let Some(Claim { shard, to, .. }) = superseded {
                    self.refuse_session(shard, to, ReasonCode::SERVER_BUSY);
                }
            }
            Opening::Full => self.refuse_session(shard, to, ReasonCode::QUOTA_EXCEEDED),
        }
    }

    pub(super) fn refuse_session(&mut self, shard: ShardId, to: ReplyTo, reason: ReasonCode) {
        let given = Box::new(Given::Refused(reason));
        self.front.subs.lanes.tell(shard, Tell::Session(to, given));
    }

    /// A connection gives its session back.
    pub(crate) fn session_close(&mut self, farewell: Farewell) {
        let before = self.sessions.len();
        let admission = &self.front.clients.ctx.world.admission;
        let closing = self
            .sessions
            .close(farewell, admission, self.front.clients.ctx.now);
        self.count_sessions(before);
        match closing {
            Closing::Done(will) => self.publish_will(will),
            Closing::Stale => self.front.meter.stats.closed[Closed::Broken as usize] += 1,
            Closing::Next(claim, opening) => {
                self.opened(claim.shard, claim.to, claim.owner, opening)
            }
        }
    }

    /// Wills and ends that are due: one, and more while less than half of the turn's budget is spent.
    pub(crate) fn end_sessions(&mut self) {
        while let Some(at) = self.sessions.due_at(self.front.clients.ctx.now) {
            self.front.meter.work.steps.add(1);
            self.end_session(at);
            if self.front.meter.work.is_half_spent() {
                return;
            }
        }
    }

    /// The next session of a partition with something due.
    pub(super) fn end_session(&mut self, at: usize) {
        let before = self.sessions.len();
        let admission = &self.front.clients.ctx.world.admission;
        let due = self
            .sessions
            .end_due(at, admission, self.front.clients.ctx.now);
        let Some((will, ended)) = due else { return };
        self.count_sessions(before);
        self.front.meter.stats.sessions_expired += u64::from(ended.is_some());
        self.publish_will(will);
        session_ended(
            &mut self.front.subs.lanes,
            &self.front.meter.work,
            &self.front.clients.ctx,
            ended,
        );
    }

    fn publish_will(&mut self, will: Option<Box<Will>>) {
        let Some(will) = will else { return };
        let (hash, home) = self.front.clients.ctx.place_of(&will.topic);
        let message = Publish {
            hash,
            name: &will.topic,
            data: &will.data,
            headers: will.headers.map(|field| &field[..]),
            retry: None,
            client: will.client,
        };
        publish(
            &mut self.front.subs,
            &mut self.front.meter,
            &self.front.clients.ctx,
            &mut None,
            home,
            &message,
            Answer::None,
        );
    }
}
