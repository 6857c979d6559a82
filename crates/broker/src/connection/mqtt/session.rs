//! The home of client ids: who gets a session, and what follows when one ends.

use alloc::boxed::Box;

use super::super::publish::is_binary;
use super::kept::topics_kept;
use super::shared::{is_shared, split};
use crate::admission::Client;
use crate::home::Publish;
use crate::mail::{Answer, Ask, Farewell, Given, Outcome, ReplyTo, ShardId, Tell};
use crate::planted::{self, Fault};
use crate::sessions::{Claim, Closing, Kept, Opening, Will};
use crate::shard::Shard;
use crate::stats::Reason;

use crore_wire::mqtt::ReasonCode;

/// Sessions of which something is due that one tick deals with; more wait for the next.
const DUE_PER_TICK: usize = 1024;

impl Shard {
    /// Does what was asked of homes about sessions. No delivery is under way.
    pub(crate) fn run_errands(&mut self) {
        for (home, ask) in core::mem::take(&mut self.errands) {
            self.work.steps.add(1);
            if home == self.lanes.me {
                self.asked(home, ask, &[]);
            } else {
                self.lanes.to[home as usize].asks.push(ask);
            }
        }
    }

    /// A client connects.
    pub(crate) fn session_open(&mut self, claim: Claim, hash: u32, client: &[u8]) {
        let (shard, to, owner) = (claim.shard, claim.to, claim.owner);
        let before = self.sessions.len();
        let admission = &self.world.admission;
        let opening = self.sessions.open(hash, client, claim, admission, self.now);
        self.count_sessions(before);
        self.opened(shard, to, owner, opening);
    }

    fn count_sessions(&self, before: u32) {
        let after = self.sessions.len();
        self.world.admission.count_sessions(before, after);
    }

    fn opened(&mut self, shard: ShardId, to: ReplyTo, owner: Client, opening: Opening) {
        let home = self.lanes.me;
        match opening {
            Opening::Opened {
                id,
                kept,
                ended,
                will,
            } => {
                self.session_ended(ended);
                self.publish_will(will);
                let given = Box::new(Given::Yes {
                    home,
                    id,
                    owner,
                    kept,
                });
                self.lanes.tell(shard, Tell::Session(to, given));
            }
            Opening::Claimed { holder, superseded } => {
                if let Some((shard, holder)) = holder {
                    self.lanes.tell(shard, Tell::SessionTaken(holder));
                }
                if let Some(Claim { shard, to, .. }) = superseded {
                    self.refuse_session(shard, to, ReasonCode::SERVER_BUSY);
                }
            }
            Opening::Full => self.refuse_session(shard, to, ReasonCode::QUOTA_EXCEEDED),
        }
    }

    fn refuse_session(&mut self, shard: ShardId, to: ReplyTo, reason: ReasonCode) {
        let given = Box::new(Given::Refused(reason));
        self.lanes.tell(shard, Tell::Session(to, given));
    }

    /// A connection gives its session back.
    pub(crate) fn session_close(&mut self, farewell: Farewell) {
        let before = self.sessions.len();
        let admission = &self.world.admission;
        let closing = self.sessions.close(farewell, admission, self.now);
        self.count_sessions(before);
        match closing {
            Closing::Done(will) => self.publish_will(will),
            Closing::Stale => self.stats.closed[Reason::Broken as usize] += 1,
            Closing::Next(claim, opening) => {
                self.opened(claim.shard, claim.to, claim.owner, opening)
            }
        }
    }

    /// Wills and ends that are due.
    pub(crate) fn end_sessions(&mut self) {
        for _ in 0..DUE_PER_TICK {
            if self.is_spent() {
                return;
            }
            self.work.steps.add(1);
            let before = self.sessions.len();
            let Some((will, ended)) = self.sessions.next_due(&self.world.admission, self.now)
            else {
                return;
            };
            self.count_sessions(before);
            self.stats.sessions_expired += u64::from(ended.is_some());
            self.publish_will(will);
            self.session_ended(ended);
        }
    }

    /// What a session needed is needed no more.
    pub(super) fn session_ended(&mut self, ended: Option<Kept>) {
        let Some(kept) = ended else { return };
        self.work.steps.add_bytes(kept.state.bytes.len());
        for name in topics_kept(&kept.state.bytes) {
            self.work.steps.add(1);
            self.release_kept(name);
        }
    }

    /// What a session had kept for this subscription is needed no more.
    pub(super) fn release_kept(&mut self, name: &[u8]) {
        if is_shared(name) {
            let (group, filter) = split(name);
            for home in self.homes_of(filter) {
                let (name, filter) = (group.into(), filter.into());
                self.errands
                    .push((home, Ask::ReleaseGroup { name, filter }));
            }
            return;
        }
        let (hash, _) = self.place_of(name);
        self.keep_log_of(hash, name, false);
        if planted::is(Fault::DoubleRelease) {
            self.keep_log_of(hash, name, false);
        }
    }

    fn publish_will(&mut self, will: Option<Box<Will>>) {
        let Some(will) = will else { return };
        let (hash, home) = self.place_of(&will.topic);
        let message = Publish {
            hash,
            name: &will.topic,
            data: &will.data,
            content_type: &will.content_type,
            event: &will.event,
            key: &will.key,
            attributes: &will.attributes,
            qos: will.qos,
            retain: will.retain,
            ttl_s: will.ttl_s,
            binary: is_binary(&will.content_type, &will.data),
            idempotency_key: b"",
            client: will.client,
        };
        if let Some(Outcome::Full(_)) = self.publish(home, &message, Answer::None) {
            self.stats.dropped += 1;
        }
    }
}
