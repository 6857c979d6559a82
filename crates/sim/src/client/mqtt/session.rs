//! The session, which outlives a connection, and the checks of the CONNACK flag "session present" (MQTT 5.0 section 3.2.2.1.1).

use super::Client;
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

impl Client {
    /// CONNACK: the server has resumed a session, if `present`, or begun a new one.
    pub(super) fn opened(
        &mut self,
        present: bool,
        truth: &Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        if present && (self.conn.clean || self.session.known_s.is_none() && !self.may_have_begun())
        {
            return Err(format!(
                "{} is told of a session that it never had",
                self.role.id
            ));
        }
        let lasts = self
            .session
            .known_s
            .is_some_and(|known_s| truth.now_s < known_s + self.role.expiry_s);
        // The server may have handled a CONNECT whose answer the client never got. If the session had expired by then, this CONNECT
        // began another one.
        let others = self.session.unanswered > 1 || self.session.may_come_late;
        let is_other = self.session.may_be_other
            || (self.session.may_be_gone || truth.allowed.memory_is_tight || !lasts) && others;
        self.conn.uncertain |= is_other;
        if !present
            && lasts
            && !self.conn.clean
            && !self.session.may_be_gone
            && !truth.allowed.memory_is_tight
        {
            return Err(format!("the session of {} is lost", self.role.id));
        }
        if present {
            coverage.sessions_resumed += 1;
        }
        if !present || is_other {
            self.session.is_covered = false;
            // The earlier session is gone, or may be gone. So the server owes nothing more to its subscriptions.
            self.subs.iter_mut().for_each(|sub| sub.lost(true));
        }
        if is_other {
            self.receipts
                .iter_mut()
                .for_each(|receipt| receipt.stale = true);
        }
        if !present {
            self.receipts.clear();
            for sub in &mut self.subs {
                sub.session_is_new();
            }
        }
        // The server may still handle an abandoned CONNECT that asked for a new session.
        let late = self
            .session
            .resets
            .iter()
            .any(|link| self.old.contains(link));
        (self.session.may_be_gone, self.session.may_be_other) = (late, late);
        self.session.silent.retain(|link| self.old.contains(link));
        self.session.may_come_late = !self.session.silent.is_empty();
        self.session.unanswered = 0;
        self.session.known_s = Some(self.conn.connect_s);
        Ok(())
    }

    /// Whether an earlier CONNECT may have begun a session without the client's knowledge.
    fn may_have_begun(&self) -> bool {
        self.role.expiry_s > 0 && self.session.attempts > 1
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self) {
        let over = self.role.expiry_s == 0;
        for sub in &mut self.subs {
            sub.lost(over);
        }
    }

    /// The server has crashed: it has lost the session and all connections of this client.
    pub fn crashed(&mut self) {
        self.ended();
        (
            self.session.known_s,
            self.session.attempts,
            self.session.unanswered,
        ) = (None, 0, 0);
        self.session.resets.clear();
        self.session.silent.clear();
        self.old.clear();
        (
            self.session.may_come_late,
            self.session.may_be_gone,
            self.session.may_be_other,
        ) = (false, false, false);
        self.subs.iter_mut().for_each(|sub| sub.lost(true));
    }

    /// Checks that the client waits for no answer. Called when the simulated world is idle: by then the server should have answered
    /// everything.
    pub fn check_rest(&self) -> Result<(), Violation> {
        let id = &self.role.id;
        if !self.is_connected() {
            return Err(format!("{id} got no CONNACK"));
        }
        if !self.is_subscribed() {
            return Err(format!("{id} got no SUBACK"));
        }
        match self.is_answered() && self.conn.pings.is_empty() {
            true => Ok(()),
            false => Err(format!("{id} was never answered")),
        }
    }
}
