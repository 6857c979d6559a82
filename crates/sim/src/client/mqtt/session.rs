//! The session, which outlives a connection, and the checks of the CONNACK flag "session present" (MQTT 5.0 section 3.2.2.1.1).

use super::Client;
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

impl Client {
    /// Updates the state when the server has accepted the connection. If `present`, the server has resumed a session; otherwise it has
    /// begun a new one.
    pub(super) fn session_opened(
        &mut self,
        present: bool,
        truth: &Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        if present
            && (self.conn.clean_start
                || self.session.last_connect_s.is_none() && !self.may_have_unknown_session())
        {
            return Err(format!(
                "{} is told of a session that it never had",
                self.role.id
            ));
        }
        let is_unexpired = self
            .session
            .last_connect_s
            .is_some_and(|last_connect_s| truth.now_s < last_connect_s + self.role.expiry_s);
        // A CONNECT whose answer the client never received may have begun a new session, if the session before it had ended.
        let has_unanswered_connect =
            self.session.unanswered_connects > 1 || self.session.connect_may_arrive_late;
        let may_be_replaced = self.session.may_be_replaced
            || (self.session.may_have_ended || truth.allowed.memory_is_tight || !is_unexpired)
                && has_unanswered_connect;
        self.conn.session_uncertain |= may_be_replaced;
        if !present
            && is_unexpired
            && !self.conn.clean_start
            && !self.session.may_have_ended
            && !truth.allowed.memory_is_tight
        {
            return Err(format!("the session of {} is lost", self.role.id));
        }
        if present {
            coverage.sessions_resumed += 1;
            coverage.sessions_recovered += u64::from(self.session.survived_crash);
        }
        if !present || may_be_replaced {
            self.session.wildcard_granted = false;
            // The earlier session may have ended, so the server need not send more messages for its subscriptions.
            self.subs
                .iter_mut()
                .for_each(|sub| sub.connection_lost(true));
        }
        if may_be_replaced {
            self.receipts
                .iter_mut()
                .for_each(|receipt| receipt.of_ended_session = true);
        }
        if !present {
            self.session.survived_crash = false;
            self.unrecorded.clear();
            self.receipts.clear();
            for sub in &mut self.subs {
                sub.session_began();
            }
        }
        // The server may still handle a CONNECT that asked for a new session on an abandoned link. In a cluster, the record of an unanswered CONNECT
        // may come later than the end of its connection.
        let in_cluster = self.role.in_cluster;
        if in_cluster {
            let answered = self.link;
            let links = &mut self.session.clean_start_links;
            links.retain(|link| Some(*link) != answered);
        }
        let clean_start_may_arrive_late = self
            .session
            .clean_start_links
            .iter()
            .any(|link| in_cluster || self.abandoned_links.contains(link));
        (self.session.may_have_ended, self.session.may_be_replaced) =
            (clean_start_may_arrive_late, clean_start_may_arrive_late);
        self.session
            .unanswered_links
            .retain(|link| self.abandoned_links.contains(link));
        self.session.connect_may_arrive_late = !self.session.unanswered_links.is_empty();
        self.session.unanswered_connects = 0;
        self.session.last_connect_s = Some(self.conn.connect_s);
        Ok(())
    }

    /// Whether an earlier CONNECT may have begun a session without the client's knowledge.
    fn may_have_unknown_session(&self) -> bool {
        self.role.expiry_s > 0 && self.session.attempts > 1
    }

    /// Updates the state after the connection was lost. A session without expiry interval is lost, too.
    pub(super) fn connection_lost(&mut self) {
        let session_ended = self.role.expiry_s == 0;
        for sub in &mut self.subs {
            sub.connection_lost(session_ended);
        }
    }

    /// The server has told that the log knows that the client has these messages.
    pub(super) fn session_recorded(&mut self, acknowledged: &[u32]) {
        for number in acknowledged {
            if self.unrecorded.get(number) == Some(&self.link) {
                self.unrecorded.remove(number);
            }
        }
    }

    /// The messages that the client has acknowledged on this connection, of which the log may not know it yet.
    pub(super) fn acknowledged_here(&self) -> Vec<u32> {
        let unrecorded = self.unrecorded.iter();
        let here = unrecorded.filter(|(_, link)| **link == self.link);
        here.map(|(number, _)| *number).collect()
    }

    /// The server crashed. It has lost all connections of this client. `was_open` tells whether neither side had begun to close the client's connection.
    pub fn server_crashed(&mut self, was_open: bool, truth: &Truth) {
        let was_only_link = was_open && self.is_connected() && self.abandoned_links.is_empty();
        let will = self.conn.will;
        self.connection_ended();
        let is_durable = truth.allowed.sessions_are_durable && self.role.expiry_s > 0;
        if !is_durable {
            return self.session_lost();
        }
        self.session.clean_start_links.clear();
        self.session.unanswered_links.clear();
        self.abandoned_links.clear();
        self.session_moved(truth.step);
        // A will that was being published at an earlier crash may be lost in this one.
        self.wills_due.clear();
        if let (true, Some((number, 0))) = (was_only_link, will) {
            self.wills_due.push(number);
        }
    }

    /// In this step the session may move to another process, which knows only what the one before has recorded in the log.
    pub(super) fn session_moved(&mut self, step: u32) {
        self.session.survived_crash = true;
        // A packet id of QoS 1 may stand for another message from now on.
        self.receipts.retain(|receipt| receipt.exactly_once);
        let of_each = self.unrecorded.iter();
        let unrecorded = of_each.map(|(number, link)| (*number, link.is_some()));
        let unrecorded = unrecorded.collect();
        for sub in &mut self.subs {
            sub.server_crashed(step, &unrecorded);
        }
    }

    /// The session has certainly ended with the server.
    fn session_lost(&mut self) {
        (
            self.session.last_connect_s,
            self.session.attempts,
            self.session.unanswered_connects,
        ) = (None, 0, 0);
        self.session.clean_start_links.clear();
        self.session.unanswered_links.clear();
        self.abandoned_links.clear();
        (
            self.session.connect_may_arrive_late,
            self.session.may_have_ended,
            self.session.may_be_replaced,
        ) = (false, false, false);
        self.subs
            .iter_mut()
            .for_each(|sub| sub.connection_lost(true));
    }

    /// Checks that the client waits for no answer. The caller makes sure that nothing is in flight.
    pub fn check_nothing_pending(&self) -> Result<(), Violation> {
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
