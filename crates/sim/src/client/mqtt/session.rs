//! State that outlives a connection, and checks of the server's statements about it.

use super::Client;
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

impl Client {
    /// The server has opened the session: one that was there, or a new one.
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
        // A CONNECT that was never answered may have found the session expired, and begun another.
        let others = self.session.unanswered > 1 || self.session.may_come_late;
        let is_other = self.session.may_be_other
            || (self.session.may_be_gone || truth.allowed.memory_is_tight || !lasts) && others;
        self.conn.doubtful |= is_other;
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
            // Nothing more is demanded of its earlier subscriptions.
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
                sub.none_asked();
            }
        }
        // The server may handle an abandoned attempt to begin anew after this one.
        let late = self
            .session
            .resets
            .iter()
            .any(|link| self.old.contains(link));
        (self.session.may_be_gone, self.session.may_be_other) = (late, late);
        self.session.silent.retain(|link| self.old.contains(link));
        self.session.may_come_late = !self.session.silent.is_empty();
        self.session.unanswered = 0;
        self.session.known_s = Some(self.conn.asked_s);
        Ok(())
    }

    /// One of its own attempts may have begun a session without the client learning of it.
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

    /// The server has crashed: it knows no session and no former connection of this client any more.
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

    /// At rest no client waits for an answer.
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
