//! Publishes the wills of recorded MQTT sessions, each of them once. The will stays in the log with its session until the will's message is in
//! the log of its topic. After a crash between the two, the will is published again under the same key, so the topic's home recognises it.
//!
//! Deliberately not here: when a will is due (`home/sessions/absent.rs`), and wills of sessions that are not recorded (`shard/sessions.rs`).

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;

use crate::base::ids::ShardId;
use crate::mail::session::Will;
use crate::mail::{Ask, ReplyTo, WillOutcome};
use crate::shard::Shard;
use crate::shard::published_wills::{LeftSession, PublishedWill, WaitingClaims};
use crate::shard::sessions::publish_will;

impl Shard {
    /// Publishes the will of the session with this name. When the log has the message, a recorded session is
    /// [recorded](Shard::record_state_or_end) again without the will. `session` is `None` if another connection holds the session now.
    pub(super) fn publish_will_once(
        &mut self,
        name: Box<[u8]>,
        session: Option<LeftSession>,
        will: Option<Box<Will>>,
    ) {
        let Some(will) = will else { return };
        let token = will.token;
        if token == 0 {
            let front = &mut self.front;
            publish_will(&mut front.clients, &mut front.subs, &will, None);
            if self.front.clients.ctx.world.records_sessions() && session.is_some() {
                self.record_state_or_end(&name, session, 0);
            }
            return;
        }
        self.published_wills.last_number = self.published_wills.last_number.wrapping_add(1);
        let part = self.published_wills.last_number;
        let to = ReplyTo::for_will(part);
        let published = PublishedWill {
            name,
            session,
            will: token,
            retired: None,
        };
        self.published_wills.in_flight.insert(part, published);
        let front = &mut self.front;
        publish_will(&mut front.clients, &mut front.subs, &will, Some(to));
    }

    /// Publishes the will of a retired token: its partition at this home, and its number.
    pub(super) fn publish_retired_will(&mut self, will: Box<Will>, retired: (usize, u64)) {
        self.publish_will_once(Box::default(), None, Some(will));
        if let Some(published) = self
            .published_wills
            .in_flight
            .get_mut(&self.published_wills.last_number)
        {
            published.retired = Some(retired);
        }
    }

    /// Publishes the will that a claim makes due. The claim waits for that, since its record removes the will from the log. Later claims to
    /// the session wait after this claim. Returns a request that need not wait.
    pub(super) fn wait_for_will(&mut self, from: ShardId, ask: Ask) -> Option<Ask> {
        let Ask::SessionOpen {
            hash,
            client,
            clean,
            begins: None,
            ..
        } = &ask
        else {
            return Some(ask);
        };
        if let Some(waiting) = self.published_wills.claims.get_mut(client) {
            waiting.claims.push((from, ask));
            return None;
        }
        let ctx = &self.front.clients.ctx;
        let (counts, now) = (&ctx.world.admission, ctx.now);
        let session = (*hash, &client[..]);
        let Some(will) = self.sessions.take_will(session, *clean, counts, now) else {
            return Some(ask);
        };
        let name = client.clone();
        let waiting = WaitingClaims {
            will: will.token,
            claims: alloc::vec![(from, ask)],
        };
        self.published_wills.claims.insert(name.clone(), waiting);
        self.publish_will_once(name, None, Some(will));
        None
    }

    /// Records the sessions whose wills are now in the log.
    pub(super) fn finish_wills(&mut self) {
        let mut begins_again = false;
        for (part, outcome) in
            core::mem::take(&mut self.front.clients.protocol_state.published_wills)
        {
            let Some(published) = self.published_wills.in_flight.remove(&part) else {
                continue;
            };
            let ctx = &self.front.clients.ctx;
            if ctx.world.replicates_sessions() {
                let (now, name) = (ctx.now, &published.name[..]);
                let session = (ctx.hash_and_home_of(name).0, name);
                let is_kept = match (outcome, published.retired) {
                    (WillOutcome::Published, _) => false,
                    // If it is unknown, the log has stored the message too late, so the message is void at all nodes.
                    (_, Some(retired)) => {
                        self.sessions.note_retired_will_refused(retired, now);
                        true
                    }
                    (_, None) => (self.sessions).keep_refused_will(session, published.will, now),
                };
                let is_unknown = outcome == WillOutcome::Unknown;
                begins_again |= is_unknown && !is_kept;
                if is_kept || is_unknown {
                    continue;
                }
            }
            let PublishedWill {
                name,
                session,
                will,
                ..
            } = published;
            self.record_state_or_end(&name, session, will);
            if let Entry::Occupied(waiting) = self.published_wills.claims.entry(name)
                && waiting.get().will == will
            {
                for (from, ask) in waiting.remove().claims {
                    self.handle_session_request(from, ask);
                }
            }
        }
        if begins_again {
            self.sessions.restart_steward_work();
        }
    }
}
