//! Publishes the wills of recorded MQTT sessions, each of them once. The will stays in the log with its session until its message is in the log of
//! its topic. After a crash between the two it is published again under the same key, so that the home of the topic recognises it.
//!
//! Deliberately not here: when a will is due (`home/sessions/absent.rs`), and wills of sessions that are not recorded (`shard/sessions.rs`).

use alloc::boxed::Box;

use crate::mail::ReplyTo;
use crate::mail::session::Will;
use crate::shard::Shard;
use crate::shard::published_wills::PublishedWill;
use crate::shard::sessions::publish_will;

impl Shard {
    /// Publishes the will of the session with this name. A recorded session is [recorded](Shard::record_state_or_end) again without the will, once the log
    /// has the message. `session` is its token, unless another connection holds it now.
    pub(super) fn publish_will_once(
        &mut self,
        name: Box<[u8]>,
        session: Option<u64>,
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
        self.wills.last = self.wills.last.wrapping_add(1);
        let part = self.wills.last;
        let to = ReplyTo::for_will(part);
        let published = PublishedWill {
            name,
            session,
            will: token,
        };
        self.wills.waiting.insert(part, published);
        let front = &mut self.front;
        publish_will(&mut front.clients, &mut front.subs, &will, Some(to));
    }

    /// Records the sessions whose wills are in the log now.
    pub(super) fn finish_wills(&mut self) {
        for (part, is_unknown) in core::mem::take(&mut self.front.clients.own.published_wills) {
            let Some(published) = self.wills.waiting.remove(&part) else {
                continue;
            };
            let PublishedWill {
                name,
                session,
                will,
            } = published;
            if is_unknown && self.front.clients.ctx.world.replicates_sessions() {
                // The log has stored the message too late, so that it is void at all nodes.
                self.sessions.begin_again();
                continue;
            }
            self.record_state_or_end(&name, session, will);
        }
    }
}
