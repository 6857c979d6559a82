//! State that outlives a connection, and checks of what the server says about it.

use super::Client;
use crate::met::Met;
use crate::truth::{Truth, Violation};

impl Client {
    /// The server has opened the session: one that was there, or a new one.
    pub(super) fn opened(
        &mut self,
        present: bool,
        truth: &Truth,
        met: &mut Met,
    ) -> Result<(), Violation> {
        if present && (self.conn.clean || self.known_s.is_none() && !self.may_have_begun()) {
            return Err(format!(
                "{} is told of a session that it never had",
                self.id
            ));
        }
        let lasts = self
            .known_s
            .is_some_and(|known_s| truth.now_s < known_s + self.expiry_s);
        // A CONNECT that was never answered may have found the session expired, and begun another.
        let others = self.unanswered > 1 || self.may_come_late;
        let is_other =
            self.may_be_other || (self.may_be_gone || truth.memory_is_tight || !lasts) && others;
        self.conn.doubtful |= is_other;
        if !present && lasts && !self.conn.clean && !self.may_be_gone && !truth.memory_is_tight {
            return Err(format!("the session of {} is lost", self.id));
        }
        if present {
            met.sessions_resumed += 1;
        }
        if !present || is_other {
            self.is_covered = false;
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
        let late = self.resets.iter().any(|link| self.old.contains(link));
        (self.may_be_gone, self.may_be_other) = (late, late);
        self.silent.retain(|link| self.old.contains(link));
        self.may_come_late = !self.silent.is_empty();
        self.unanswered = 0;
        self.known_s = Some(self.conn.asked_s);
        Ok(())
    }

    /// One of its own attempts may have begun a session without the client learning of it.
    fn may_have_begun(&self) -> bool {
        self.expiry_s > 0 && self.attempts > 1
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self) {
        let over = self.expiry_s == 0;
        for sub in &mut self.subs {
            sub.lost(over);
        }
    }

    /// The server has crashed: it knows no session and no former connection of this client any more.
    pub fn crashed(&mut self) {
        self.ended();
        (self.known_s, self.attempts, self.unanswered) = (None, 0, 0);
        self.resets.clear();
        self.silent.clear();
        self.old.clear();
        (self.may_come_late, self.may_be_gone, self.may_be_other) = (false, false, false);
        self.subs.iter_mut().for_each(|sub| sub.lost(true));
    }

    /// At rest no client waits for an answer.
    pub fn check_rest(&self) -> Result<(), Violation> {
        let id = &self.id;
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
