//! The requests of a client for subscriptions, and the server's answers (MQTT 5.0 sections 3.8 to 3.11).

use crore_rng::Rng;
use crore_wire::mqtt::{
    PacketId, PropertyBuf, Qos, ReasonCode, RetainHandling, SubscribeOptions, Version, encode,
};

use super::in_flight::PendingSubscribe;
use super::subscription::{State, Sub};
use super::{Client, NOTHING};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

impl Client {
    /// Subscribes to some topics, or unsubscribes.
    pub fn change(&mut self, truth: &mut Truth, rng: &mut Rng) {
        let mut free = self.unasked();
        if !self.is_connected() || free.is_empty() {
            return;
        }
        rng.shuffle(&mut free);
        free.truncate(rng.range(1, 3));
        if rng.chance(15) {
            self.unsubscribe(&free, truth);
        } else {
            self.subscribe(&free, truth, rng);
        }
    }

    /// Subscribes to all its topics that have no subscription. True if there are any.
    pub fn complete(&mut self, truth: &mut Truth, rng: &mut Rng) -> bool {
        let mut free = self.unasked();
        free.retain(|at| self.subs[*at].state != State::Yes);
        if !self.is_connected() || free.is_empty() {
            return false;
        }
        self.subscribe(&free, truth, rng);
        true
    }

    /// Whether all its subscriptions are granted.
    pub fn is_subscribed(&self) -> bool {
        self.conn.pending_subscribes.is_empty()
            && self.subs.iter().all(|sub| sub.state == State::Yes)
    }

    /// Number of subscriptions for which messages must be kept, as far as it knows. The one to `#` counts for each home.
    pub fn needs_kept(&self, homes: u32) -> u32 {
        let needs = |sub: &&Sub| sub.state == State::Yes && sub.options.max_qos != Qos::AtMostOnce;
        let by_filter = if self.session.is_covered { homes } else { 0 };
        self.subs.iter().filter(needs).count() as u32 + by_filter
    }

    /// Whether it is connected and subscribed to this topic.
    pub fn subscribes_to(&self, topic: usize) -> bool {
        let is = |sub: &Sub| sub.track.topic == topic && sub.state == State::Yes;
        self.is_connected() && self.subs.iter().any(is)
    }

    /// Indexes of subscriptions without a request in flight.
    fn unasked(&self) -> Vec<usize> {
        let asked = |at: &usize| {
            let mut all = self
                .conn
                .pending_subscribes
                .iter()
                .flat_map(|asked| &asked.what);
            all.any(|(place, _)| place == at)
        };
        (0..self.subs.len()).filter(|at| !asked(at)).collect()
    }

    fn subscribe(&mut self, places: &[usize], truth: &mut Truth, rng: &mut Rng) {
        let version = self.role.version;
        let mut set = PropertyBuf::new();
        let identifies = version == Version::V5 && rng.chance(50);
        if identifies {
            self.last.identifiers += 1;
            set.subscription_identifier(self.last.identifiers);
        }
        let identifier = identifies.then_some(self.last.identifiers);
        let mut what = Vec::new();
        for at in places {
            let options = self.options(rng);
            let again = self.subs[*at].ask(options, identifier, truth.step);
            what.push((*at, again));
        }
        let cover = (self.role.covers && rng.chance(50)).then(|| self.cover(identifier, rng));
        let id = self.next_id();
        truth.note(|| {
            let asks = places
                .iter()
                .map(|at| (self.subs[*at].track.topic, self.subs[*at].options));
            format!(
                "{:?} subscribes, id {id}: {:?}, to all: {cover:?}",
                self.link,
                asks.collect::<Vec<_>>()
            )
        });
        let filters: Vec<_> = places
            .iter()
            .map(|at| {
                (
                    truth.topics[self.subs[*at].track.topic].name.clone(),
                    self.subs[*at].options,
                )
            })
            .collect();
        let id_of = PacketId::new(id).expect("ids are not 0");
        self.write(|out| {
            let filters = filters
                .iter()
                .map(|(name, options)| (name.as_str(), *options))
                .chain(cover.map(|options| ("#", options)));
            encode::subscribe(out, version, id_of, &set.properties(), filters);
        });
        self.conn.pending_subscribes.push(PendingSubscribe {
            id,
            unsubscribes: false,
            what,
            covers: cover.is_some(),
        });
    }

    /// Random options for a subscription.
    fn options(&self, rng: &mut Rng) -> SubscribeOptions {
        let qos = rng.pick(&[0, 1, 1, 2, 2]).max(u8::from(self.role.covers));
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

    /// Options for the subscription to `#`. Its messages may come for every other subscription, so those allow its options too.
    fn cover(&mut self, identifier: Option<u32>, rng: &mut Rng) -> SubscribeOptions {
        let qos = Qos::from_repr(rng.pick(&[1, 2])).expect("below three");
        let mut options = SubscribeOptions::of(qos);
        options.retain_handling = RetainHandling::DoNotSend;
        for sub in &mut self.subs {
            sub.qoses[usize::from(qos.bits())] = true;
            // Messages already received by the former subscription to `#` may come again by the other one.
            sub.was_split |= sub.covered;
            (sub.gets_own_messages, sub.covered) = (true, true);
            sub.identifiers.extend(identifier);
        }
        options
    }

    fn unsubscribe(&mut self, places: &[usize], truth: &mut Truth) {
        let (id, version) = (self.next_id(), self.role.version);
        let names: Vec<_> = places
            .iter()
            .map(|at| truth.topics[self.subs[*at].track.topic].name.clone())
            .collect();
        truth.note(|| format!("{:?} unsubscribes {names:?}", self.link));
        for at in places {
            let sub = &mut self.subs[*at];
            sub.track.end();
            (sub.state, sub.due) = (State::No, None);
            sub.was_split |= sub.covered;
        }
        let id_of = PacketId::new(id).expect("ids are not 0");
        self.write(|out| {
            let names = names.iter().map(String::as_str);
            encode::unsubscribe(out, version, id_of, &NOTHING, names);
        });
        self.conn.pending_subscribes.push(PendingSubscribe {
            id,
            unsubscribes: true,
            what: places.iter().map(|at| (*at, false)).collect(),
            covers: false,
        });
    }

    fn answered_asked(
        &mut self,
        id: u16,
        unsubscribes: bool,
    ) -> Result<PendingSubscribe, Violation> {
        let is = |asked: &PendingSubscribe| asked.id == id && asked.unsubscribes == unsubscribes;
        let at = self.conn.pending_subscribes.iter().position(is);
        let at = at.ok_or_else(|| format!("an answer to id {id}, by which nothing was asked"))?;
        Ok(self.conn.pending_subscribes.remove(at))
    }

    pub(super) fn granted(
        &mut self,
        id: u16,
        reasons: Vec<ReasonCode>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} is granted {reasons:?} to id {id}", self.link));
        let asked = self.answered_asked(id, false)?;
        if asked.what.len() + usize::from(asked.covers) != reasons.len() {
            return Err(format!("{} answers to {}", reasons.len(), asked.what.len()));
        }
        self.session.is_covered |= asked.covers && reasons.last().is_some_and(|it| !it.is_error());
        for ((at, again), reason) in asked.what.into_iter().zip(reasons) {
            let sub = &mut self.subs[at];
            let qos = sub.options.max_qos;
            if reason.is_error() {
                if truth.allowed.budgets_are_wide {
                    return Err(format!("a subscription was refused: {reason:?}"));
                }
                coverage.refused += 1;
                sub.track.end();
                (sub.state, sub.due) = (State::No, None);
                self.turned_away = true;
            } else if reason != ReasonCode::granted(qos) {
                return Err(format!("{reason:?} was granted instead of {qos:?}"));
            } else {
                sub.state = State::Yes;
                if !again {
                    sub.track
                        .begin(qos.bits(), sub.options.no_local, truth.step);
                }
            }
        }
        Ok(())
    }

    pub(super) fn ungranted(&mut self, id: u16, truth: &mut Truth) -> Result<(), Violation> {
        truth.note(|| format!("{:?} has unsubscribed by id {id}", self.link));
        let asked = self.answered_asked(id, true)?;
        for (at, _) in asked.what {
            self.subs[at].state = State::Gone;
        }
        Ok(())
    }

    /// Nothing is in flight: everything due must have been received.
    pub fn at_head(&mut self, truth: &Truth) -> Result<(), Violation> {
        if !self.is_connected() {
            return Ok(());
        }
        for sub in &mut self.subs {
            sub.at_head(truth)
                .map_err(|wrong| format!("{}: {wrong}", self.role.id))?;
        }
        Ok(())
    }
}
