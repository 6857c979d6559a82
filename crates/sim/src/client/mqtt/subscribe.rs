//! The requests of a client for subscriptions, and the server's answers (MQTT 5.0 sections 3.8 to 3.11).

use crore_rng::Rng;
use crore_wire::mqtt::{
    PacketId, PropertyWriter, Qos, ReasonCode, RetainHandling, SubscribeOptions, Version, encode,
};

use super::in_flight::PendingSubscribe;
use super::subscription::{SubscriptionState, TopicSubscription};
use super::{Client, NO_PROPERTIES};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

impl Client {
    /// Subscribes to some topics, or unsubscribes.
    pub fn change_subscriptions(&mut self, truth: &mut Truth, rng: &mut Rng) {
        if self.role.subscriptions_stay {
            self.subscribe_missing(truth, rng);
            return;
        }
        let mut indexes = self.without_pending_request();
        if !self.is_connected() || indexes.is_empty() {
            return;
        }
        rng.shuffle(&mut indexes);
        indexes.truncate(rng.range(1, 3));
        if rng.chance(15) {
            self.unsubscribe(&indexes, truth);
        } else {
            self.subscribe(&indexes, truth, rng);
        }
    }

    /// Subscribes to the client's topics that have no subscription. Returns whether there are any.
    pub fn subscribe_missing(&mut self, truth: &mut Truth, rng: &mut Rng) -> bool {
        let mut indexes = self.without_pending_request();
        indexes.retain(|at| self.subs[*at].state != SubscriptionState::Granted);
        if !self.is_connected() || indexes.is_empty() {
            return false;
        }
        self.subscribe(&indexes, truth, rng);
        true
    }

    /// Whether all subscriptions of the client are granted.
    pub fn is_subscribed(&self) -> bool {
        self.conn.pending_subscribes.is_empty()
            && self
                .subs
                .iter()
                .all(|sub| sub.state == SubscriptionState::Granted)
    }

    /// The number of subscriptions for which the server must keep messages. The subscription to `#` counts once for each home (a shard that
    /// owns topics).
    pub fn subscriptions_with_retention(&self, homes: u32) -> u32 {
        let needs = |sub: &&TopicSubscription| {
            sub.state == SubscriptionState::Granted && sub.options.max_qos != Qos::AtMostOnce
        };
        let of_wildcard = if self.session.wildcard_granted {
            homes
        } else {
            0
        };
        self.subs.iter().filter(needs).count() as u32 + of_wildcard
    }

    /// Whether the client is connected and subscribed to this topic.
    pub fn subscribes_to(&self, topic: usize) -> bool {
        let matches = |sub: &TopicSubscription| {
            sub.track.topic == topic && sub.state == SubscriptionState::Granted
        };
        self.is_connected() && self.subs.iter().any(matches)
    }

    /// Indexes of subscriptions without a request in flight.
    fn without_pending_request(&self) -> Vec<usize> {
        let pending = |at: &usize| {
            let mut all = self
                .conn
                .pending_subscribes
                .iter()
                .flat_map(|pending| &pending.subscriptions);
            all.any(|(index, _)| index == at)
        };
        (0..self.subs.len()).filter(|at| !pending(at)).collect()
    }

    fn subscribe(&mut self, indexes: &[usize], truth: &mut Truth, rng: &mut Rng) {
        let version = self.role.version;
        let mut set = PropertyWriter::new();
        let identifies = version == Version::V5 && rng.chance(50);
        if identifies {
            self.last.identifiers += 1;
            set.subscription_identifier(self.last.identifiers);
        }
        let identifier = identifies.then_some(self.last.identifiers);
        let mut subscriptions = Vec::new();
        for at in indexes {
            let options = self.options(rng);
            let is_unchanged = self.subs[*at].request(options, identifier, truth.step);
            subscriptions.push((*at, is_unchanged));
        }
        let wildcard = (self.role.has_wildcard && rng.chance(50))
            .then(|| self.wildcard_options(identifier, rng));
        let id = self.next_id_of_request();
        truth.note(|| {
            let asks = indexes
                .iter()
                .map(|at| (self.subs[*at].track.topic, self.subs[*at].options));
            format!(
                "{:?} subscribes, id {id}: {:?}, to all: {wildcard:?}",
                self.link,
                asks.collect::<Vec<_>>()
            )
        });
        let filters: Vec<_> = indexes
            .iter()
            .map(|at| {
                (
                    truth.topics[self.subs[*at].track.topic].name.clone(),
                    self.subs[*at].options,
                )
            })
            .collect();
        let id_of = PacketId::new(id).expect("ids are not 0");
        self.send_packet(|out| {
            let filters = filters
                .iter()
                .map(|(name, options)| (name.as_str(), *options))
                .chain(wildcard.map(|options| ("#", options)));
            encode::subscribe(out, version, id_of, &set.properties(), filters);
        });
        self.conn.pending_subscribes.push(PendingSubscribe {
            id,
            unsubscribes: false,
            subscriptions,
            has_wildcard: wildcard.is_some(),
            acknowledged: self.acknowledged_here(),
        });
    }

    /// Random options for a subscription.
    fn options(&self, rng: &mut Rng) -> SubscribeOptions {
        let qos = rng.pick(&[0, 1, 1, 2, 2]).clamp(
            u8::from(self.role.has_wildcard),
            self.role.subscription_qos_max,
        );
        let mut options = SubscribeOptions::of(Qos::from_repr(qos).expect("below three"));
        if self.role.version == Version::V5 {
            options.no_local = rng.chance(20);
            options.retain_handling = rng.pick(&[
                RetainHandling::Send,
                RetainHandling::Send,
                RetainHandling::SendIfNew,
                RetainHandling::DoNotSend,
            ]);
        }
        options
    }

    /// Random options for the subscription to `#`. Its messages also match the subscriptions to single topics, so the checks of those
    /// subscriptions must allow these options.
    fn wildcard_options(&mut self, identifier: Option<u32>, rng: &mut Rng) -> SubscribeOptions {
        let qos = rng.pick(&[1, 2]).min(self.role.subscription_qos_max);
        let qos = Qos::from_repr(qos).expect("below three");
        let mut options = SubscribeOptions::of(qos);
        options.retain_handling = RetainHandling::DoNotSend;
        for sub in &mut self.subs {
            sub.requested_qoses[usize::from(qos.bits())] = true;
            (sub.gets_own_messages, sub.wildcard_requested) = (true, true);
            sub.identifiers.extend(identifier);
        }
        options
    }

    fn unsubscribe(&mut self, indexes: &[usize], truth: &mut Truth) {
        let (id, version) = (self.next_id_of_request(), self.role.version);
        let names: Vec<_> = indexes
            .iter()
            .map(|at| truth.topics[self.subs[*at].track.topic].name.clone())
            .collect();
        truth.note(|| format!("{:?} unsubscribes {names:?}", self.link));
        for at in indexes {
            let sub = &mut self.subs[*at];
            sub.track.end_stretch();
            (sub.state, sub.retained_due) = (SubscriptionState::NotGranted, None);
            sub.was_split |= sub.wildcard_requested;
        }
        let id_of = PacketId::new(id).expect("ids are not 0");
        self.send_packet(|out| {
            let names = names.iter().map(String::as_str);
            encode::unsubscribe(out, version, id_of, &NO_PROPERTIES, names);
        });
        self.conn.pending_subscribes.push(PendingSubscribe {
            id,
            unsubscribes: true,
            subscriptions: indexes.iter().map(|at| (*at, false)).collect(),
            has_wildcard: false,
            acknowledged: Vec::new(),
        });
    }

    fn take_pending_subscribe(
        &mut self,
        id: u16,
        unsubscribes: bool,
    ) -> Result<PendingSubscribe, Violation> {
        let matches =
            |pending: &PendingSubscribe| pending.id == id && pending.unsubscribes == unsubscribes;
        let at = self.conn.pending_subscribes.iter().position(matches);
        let at = at.ok_or_else(|| format!("an answer to id {id}, by which nothing was asked"))?;
        Ok(self.conn.pending_subscribes.remove(at))
    }

    pub(super) fn handle_suback(
        &mut self,
        id: u16,
        reasons: Vec<ReasonCode>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} is granted {reasons:?} to id {id}", self.link));
        let pending = self.take_pending_subscribe(id, false)?;
        if pending.subscriptions.len() + usize::from(pending.has_wildcard) != reasons.len() {
            return Err(format!(
                "{} answers to {}",
                reasons.len(),
                pending.subscriptions.len()
            ));
        }
        if reasons.iter().any(|it| !it.is_error()) {
            self.session_recorded(&pending.acknowledged);
        }
        self.session.wildcard_granted |=
            pending.has_wildcard && reasons.last().is_some_and(|it| !it.is_error());
        for ((at, is_unchanged), reason) in pending.subscriptions.into_iter().zip(reasons) {
            let sub = &mut self.subs[at];
            let qos = sub.options.max_qos;
            if reason.is_error() {
                if truth.allowed.budgets_are_wide {
                    return Err(format!("a subscription was refused: {reason:?}"));
                }
                coverage.refused += 1;
                sub.track.end_stretch();
                (sub.state, sub.retained_due) = (SubscriptionState::NotGranted, None);
                self.was_refused = true;
            } else if reason != ReasonCode::granted(qos) {
                return Err(format!("{reason:?} was granted instead of {qos:?}"));
            } else {
                sub.state = SubscriptionState::Granted;
                if !is_unchanged {
                    sub.track
                        .begin_stretch(qos.bits(), sub.options.no_local, truth.step);
                }
            }
        }
        Ok(())
    }

    pub(super) fn handle_unsuback(&mut self, id: u16, truth: &mut Truth) -> Result<(), Violation> {
        truth.note(|| format!("{:?} has unsubscribed by id {id}", self.link));
        let pending = self.take_pending_subscribe(id, true)?;
        for (at, _) in pending.subscriptions {
            self.subs[at].state = SubscriptionState::Unsubscribed { step: truth.step };
        }
        Ok(())
    }

    /// Checks that all due retained messages were received, and requires the newest message of each topic. The caller makes sure that
    /// nothing is in flight.
    pub fn check_all_received(&mut self, truth: &Truth) -> Result<(), Violation> {
        if !self.is_connected() {
            return Ok(());
        }
        for sub in &mut self.subs {
            sub.check_all_received(truth)
                .map_err(|wrong| format!("{}: {wrong}", self.role.id))?;
        }
        Ok(())
    }
}
