//! Publishes the wills of recorded MQTT sessions, each of them once. The log of sessions keeps the will until the will's message is in the log of its
//! topic. After a crash between the two, the will is published again under the same key, so the topic's home recognises the second message.
//!
//! Deliberately not here: when a will is due (`home/sessions/absent.rs`), and wills of sessions that are not recorded (`shard/sessions.rs`).

use alloc::boxed::Box;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::ShardId;
use crate::client::relief::has_memory_for_absent;
use crate::home::refused_wills::RefusedWill;
use crate::home::session_terms::LeftSession;
use crate::mail::session::Will;
use crate::mail::{Ask, ReplyTo, WillOutcome};
use crate::protocol::front::Front;
use crate::shard::Shard;
use crate::shard::published_wills::{PublishedWill, WaitingClaim};
use crate::shard::sessions::publish_will;

impl Shard {
    /// Publishes the will of the session with this name. If sessions are recorded, the session is [recorded](Shard::record_state_or_end) again without
    /// the will when the log has the message. `session` is `None` if another connection holds the session now.
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
        let number = self.published_wills.last_number;
        let to = ReplyTo::for_will(number);
        let published = PublishedWill {
            name,
            session,
            will: token,
            again: None,
            retired: None,
        };
        let front = &mut self.front;
        publish_will(&mut front.clients, &mut front.subs, &will, Some(to));
        let is_replicated = front.clients.ctx.world.replicates_sessions();
        if !is_replicated && session.is_some() {
            let wills = &mut self.published_wills;
            wills.insert_unpublished(&published.name, token);
        }
        let published = PublishedWill {
            again: (!is_replicated).then_some(will),
            ..published
        };
        let counts = &self.front.clients.ctx.world.admission;
        self.published_wills.insert(number, published, counts);
    }

    /// Publishes the will of a retired token. `retired` is the index of the token's partition at this home, and the token's number.
    pub(super) fn publish_retired_will(&mut self, will: Box<Will>, retired: (usize, u64)) {
        self.publish_will_once(Box::default(), None, Some(will));
        if let Some(published) = self.published_wills.newest_mut() {
            published.retired = Some(retired);
        }
    }

    /// Stores that claims must wait for the will of a connection that ends, if the will is due at once.
    pub(super) fn store_will_of_end(&mut self, ask: &Ask) {
        let Ask::SessionClose(session) = ask else {
            return;
        };
        let is_claimed = self.sessions.claim_to(session.id).is_some();
        if is_claimed || self.front.clients.ctx.world.replicates_sessions() {
            return;
        }
        let is_due = |will: &&Will| will.delay_s == 0 || session.kept.is_none();
        let will = session.will.as_deref().filter(is_due);
        if let Some(will) = will.filter(|will| will.token != 0)
            && let Some(name) = self.sessions.name_of(session.id)
        {
            self.published_wills.insert_unpublished(name, will.token);
        }
    }

    /// Publishes the will that a claim makes due, and makes the claim wait. The record of a claim removes the will of the session from the log, so the
    /// claim waits until the will is in the log of its topic; so it does for a will of the session that is in flight already. Later claims to the session
    /// wait after this claim; if too many wait, the oldest claim is refused. Returns a request that need not wait.
    pub(super) fn wait_for_will(&mut self, from: ShardId, ask: Ask) -> Option<Ask> {
        let Ask::SessionOpen {
            hash,
            client,
            clean,
            owner,
            begins: None,
            ..
        } = &ask
        else {
            return Some(ask);
        };
        let name = client.clone();
        let ctx = &self.front.clients.ctx;
        let (counts, now) = (&ctx.world.admission, ctx.now);
        let wills = &self.published_wills;
        let awaited = wills.awaited(&name).or_else(|| wills.unpublished(&name));
        let due = match awaited {
            Some(_) => None,
            None => (self.sessions).take_will((*hash, &name), *clean, counts, now),
        };
        let Some(token) = awaited.or(due.as_ref().map(|will| will.token)) else {
            return Some(ask);
        };
        if token == 0 {
            // The will is from before sessions were recorded. So the log has no record of the will that the claim could remove.
            self.publish_will_once(name, None, due);
            return Some(ask);
        }
        let party = counts.party_of_session(&name, *owner);
        let claim = WaitingClaim::new(from, ask, counts, party);
        if let Some(oldest) = self.published_wills.wait(&name, token, claim) {
            self.refuse_session_ask(oldest.from, oldest.ask, ReasonCode::SERVER_BUSY);
        }
        self.publish_will_once(name, None, due);
        None
    }

    /// Records the sessions whose wills are now in the log.
    pub(super) fn finish_wills(&mut self) {
        let mut begins_again = false;
        for (number, outcome) in
            core::mem::take(&mut self.front.clients.protocol_state.published_wills)
        {
            let ctx = &self.front.clients.ctx;
            let counts = &ctx.world.admission;
            let Some(published) = self.published_wills.remove(number, counts) else {
                continue;
            };
            if ctx.world.replicates_sessions() {
                let (now, name) = (ctx.now, &published.name[..]);
                let session = (ctx.hash_and_home_of(name).0, name);
                let is_kept = match (outcome, published.retired) {
                    (WillOutcome::Published, _) => false,
                    // An unknown outcome means that the log has stored the message too late, so the message is void at all nodes.
                    (_, Some((at, number))) => {
                        self.sessions.publish_retired_will_later(at, number, now);
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
            self.finish_will(published, outcome);
        }
        if begins_again {
            self.sessions.restart_steward_work();
        }
    }

    /// Records the session of a will that was published, or given up. On a single node a will that was refused is published again later, but the claims
    /// that wait for the will continue now.
    fn finish_will(&mut self, published: PublishedWill, outcome: WillOutcome) {
        let will = published.will;
        let claims = self.published_wills.take_claims(&published.name, will);
        let rest = match outcome {
            WillOutcome::Published => Some(published),
            WillOutcome::Refused | WillOutcome::Unknown => {
                self.keep_refused_will(published, !claims.is_empty())
            }
        };
        if let Some(PublishedWill { name, session, .. }) = rest {
            self.sessions.forget_refused_will(will);
            self.record_state_or_end(&name, session, will);
        }
        for WaitingClaim { from, ask, .. } in claims {
            self.handle_session_request(from, ask);
        }
    }

    /// Keeps a will that was refused, to publish it again. If the log has stored the message after all, the will's token prevents a second message.
    /// `is_claimed`: another connection gets the session now. Returns the will if it is given up: because it was refused for too long, or because its
    /// session is not away, memory is short, and the client holds much.
    fn keep_refused_will(
        &mut self,
        mut published: PublishedWill,
        is_claimed: bool,
    ) -> Option<PublishedWill> {
        let Some(will) = published.again.take() else {
            return Some(published);
        };
        let Front {
            clients, census, ..
        } = &self.front;
        let ctx = &clients.ctx;
        let (counts, now) = (&ctx.world.admission, ctx.now);
        let PublishedWill { name, session, .. } = &published;
        let is_away = !is_claimed && session.is_some_and(|session| !session.has_ended);
        let hash = ctx.hash_and_home_of(name).0;
        let refused = RefusedWill {
            name: name.clone(),
            session: *session,
            will,
        };
        let (party, bytes) = (refused.party(counts), refused.bytes());
        let has_memory = has_memory_for_absent(clients, census, party, bytes);
        let is_kept =
            (self.sessions).keep_refused(hash, refused, (is_away, has_memory), counts, now);
        (!is_kept).then_some(published)
    }

    /// Publishes refused wills again. Called once a second.
    pub(super) fn publish_refused_wills(&mut self) {
        let world = self.front.clients.ctx.world.clone();
        let now = self.front.clients.ctx.now;
        while !self.front.clients.meter.work.is_half_spent()
            && let Some(refused) = self.sessions.next_refused_will(&world.admission, now)
        {
            self.front.clients.meter.work.steps.add(1);
            let RefusedWill {
                name,
                session,
                will,
            } = refused;
            self.publish_will_once(name, session, Some(will));
        }
    }
}
