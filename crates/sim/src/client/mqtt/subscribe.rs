//! The subscriptions of a client, and the messages that they may bring (MQTT 5.0 sections 3.8 to 3.11).

use std::collections::VecDeque;

use crore_wire::mqtt::{
    PacketId, PropertyBuf, Publish, Qos, ReasonCode, RetainHandling, SubscribeOptions, Version,
    encode,
};

use super::track::Track;
use super::{Client, NOTHING};
use crate::met::Met;
use crate::rng::Rng;
use crate::truth::{Truth, Wrong};

/// The state of a subscription, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is none, or its state is unknown.
    No,
    /// It was granted.
    Yes,
    /// UNSUBACK came.
    Gone,
}

/// A topic that it wants.
pub(super) struct Sub {
    /// The received messages.
    pub track: Track,
    state: State,
    options: SubscribeOptions,
    /// Values of QoS that it asked for in this session, by number.
    qoses: [bool; 3],
    /// Identifiers that the client gave the subscription in this session.
    identifiers: Vec<u32>,
    /// It was without No Local at some time in this session.
    hears_itself: bool,
    /// A subscription to all topics was asked for in this session.
    covered: bool,
    /// It was given up or changed while it was covered: messages that it brought may come once more by the other
    /// subscription.
    parted: bool,
    /// The steps of its requests for retained messages that have not come yet, if there are any.
    shows: VecDeque<u32>,
    /// It must get the message that was retained at this step.
    due: Option<u32>,
}

/// A SUBSCRIBE or UNSUBSCRIBE without an answer.
pub(super) struct Asked {
    /// Its packet id.
    pub id: u16,
    leaves: bool,
    /// Places in `subs`; whether the subscription stands already, with the options asked for.
    what: Vec<(usize, bool)>,
    /// It asks for all topics too.
    covers: bool,
}

impl Sub {
    pub fn new(topic: usize) -> Sub {
        Sub {
            track: Track::new(topic),
            state: State::No,
            options: SubscribeOptions::of(Qos::AtMostOnce),
            qoses: [false; 3],
            identifiers: Vec::new(),
            hears_itself: false,
            covered: false,
            parted: false,
            shows: VecDeque::new(),
            due: None,
        }
    }

    /// The session began anew: there are no earlier subscriptions.
    pub fn none_asked(&mut self) {
        if self.is_split() {
            self.track.order_anew();
        }
        (self.qoses, self.hears_itself, self.covered) = ([false; 3], false, false);
        self.parted = false;
        self.shows.clear();
        self.identifiers.clear();
    }

    /// Whether some messages come only by this subscription and some only by the covering one: it was given up or changed,
    /// or does not want the client's own messages.
    pub fn is_split(&self) -> bool {
        self.parted || self.covered && self.options.no_local
    }

    /// Whether a message came before and may come again.
    pub fn may_repeat(&self, number: u32) -> bool {
        self.parted && self.track.has(number)
    }

    /// The connection ended, perhaps with the session.
    pub fn lost(&mut self, over: bool) {
        // The server may not have received the request.
        self.due = None;
        if over {
            self.state = State::No;
            self.track.end();
        } else {
            // A subscription of QoS 0 lives on, but messages published meanwhile are lost.
            self.track.breaks(self.options.max_qos == Qos::AtMostOnce);
        }
    }

    /// Checks that the message fits the options that were asked for.
    pub fn check_options(
        &self,
        number: u32,
        publish: &Publish<'_>,
        me: usize,
        truth: &Truth,
    ) -> Result<(), Wrong> {
        let said = truth.said(number);
        let qos = publish.qos.bits();
        let granted =
            (0..3).any(|asked| self.qoses[usize::from(asked)] && asked.min(said.qos) == qos);
        if !granted {
            return Err(format!(
                "message {number} of QoS {} came with QoS {qos}",
                said.qos
            ));
        }
        let mut named = publish.properties.subscription_identifiers();
        if named.any(|identifier| !self.identifiers.contains(&identifier)) {
            return Err(format!("message {number} came with a strange identifier"));
        }
        let quiet = publish.dup || publish.retain;
        if self.state == State::Gone && !quiet && !self.covered {
            return Err(format!("message {number} came after UNSUBACK"));
        }
        if said.by == Some(me) && !self.hears_itself && !publish.retain {
            return Err(format!("message {number} came back in spite of No Local"));
        }
        Ok(())
    }

    /// A retained message came.
    pub fn shown(&mut self, number: u32, dup: bool, truth: &Truth) -> Result<(), Wrong> {
        let topic = &truth.topics[self.track.topic];
        self.due = None;
        if topic.keeps_latest() {
            return Ok(());
        }
        let asked = self.shows.pop_front();
        let asked =
            asked.ok_or_else(|| format!("message {number} came as retained without need"))?;
        let message = &truth.messages[number as usize];
        if !truth.said(number).retain {
            return Err(format!("message {number} was never retained"));
        }
        if dup {
            // It was sent over another connection, when it was the newest.
            return Ok(());
        }
        let newer = truth.retained(self.track.topic).find(|(_, other)| {
            other.acked.is_some_and(|acked| acked < asked) && message.is_before(other)
        });
        if let Some((newer, _)) = newer {
            return Err(format!("message {number} came as retained after {newer}"));
        }
        let deleted = |(sent, done): &(u32, Option<u32>)| {
            message.acked.is_some_and(|acked| acked < *sent)
                && done.is_some_and(|done| done < asked)
        };
        match topic.deletes.iter().any(deleted) {
            true => Err(format!("message {number} was deleted and came as retained")),
            false => Ok(()),
        }
    }

    /// Nothing is under way any more.
    pub fn at_head(&mut self, truth: &Truth) -> Result<(), Wrong> {
        self.track.at_head();
        let topic = &truth.topics[self.track.topic];
        let Some(asked) = self.due.take() else {
            return Ok(());
        };
        if !truth.budgets_are_wide || !topic.deletes.is_empty() || topic.keeps_latest() {
            return Ok(());
        }
        let mut there = truth.retained(self.track.topic);
        let due = there.find(|(_, message)| message.acked.is_some_and(|acked| acked < asked));
        // The newest message may have expired, and then none is retained.
        let mortal = truth
            .retained(self.track.topic)
            .any(|(_, message)| message.ttl_s.is_some());
        match due {
            Some((number, _)) if !mortal => Err(format!(
                "message {number} is retained and was not shown to who asked at {asked}"
            )),
            _ => Ok(()),
        }
    }
}

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

    /// Subscribes to all topics without a subscription; true when there are any.
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
        self.conn.asks.is_empty() && self.subs.iter().all(|sub| sub.state == State::Yes)
    }

    /// Whether it is there and subscribes to this topic.
    pub fn subscribes_to(&self, topic: usize) -> bool {
        let is = |sub: &Sub| sub.track.topic == topic && sub.state == State::Yes;
        self.is_connected() && self.subs.iter().any(is)
    }

    /// Places of subscriptions without a request under way.
    fn unasked(&self) -> Vec<usize> {
        let asked = |at: &usize| {
            let mut all = self.conn.asks.iter().flat_map(|asked| &asked.what);
            all.any(|(place, _)| place == at)
        };
        (0..self.subs.len()).filter(|at| !asked(at)).collect()
    }

    fn subscribe(&mut self, places: &[usize], truth: &mut Truth, rng: &mut Rng) {
        let v5 = self.version == Version::V5;
        let mut set = PropertyBuf::new();
        let identifies = v5 && rng.chance(50);
        if identifies {
            self.identifiers += 1;
            set.subscription_identifier(self.identifiers);
        }
        let mut what = Vec::new();
        for at in places {
            let sub = &mut self.subs[*at];
            let qos = rng.pick(&[0, 1, 1, 2, 2]).max(u8::from(self.covers));
            let mut options = SubscribeOptions::of(Qos::from_bits(qos).expect("below three"));
            if v5 {
                options.no_local = rng.chance(20);
                options.retain_handling = rng.pick(&[
                    RetainHandling::Send,
                    RetainHandling::Send,
                    RetainHandling::SendIfNew,
                    RetainHandling::DoNotSend,
                ]);
            }
            let again = sub.state == State::Yes
                && (sub.options.max_qos, sub.options.no_local)
                    == (options.max_qos, options.no_local);
            if !again {
                // Until the new subscription is granted, it is uncertain which messages the old one still brings.
                sub.track.end();
                sub.state = State::No;
            }
            let is_new = sub.qoses == [false; 3];
            sub.parted |= sub.covered && !is_new;
            sub.options = options;
            sub.qoses[usize::from(options.max_qos.bits())] = true;
            sub.hears_itself |= !options.no_local;
            if identifies {
                sub.identifiers.push(self.identifiers);
            }
            sub.due = None;
            match options.retain_handling {
                RetainHandling::DoNotSend => {}
                RetainHandling::Send => {
                    sub.shows.push_back(truth.step);
                    sub.due = Some(truth.step);
                }
                RetainHandling::SendIfNew => {
                    sub.shows.push_back(truth.step);
                    sub.due = is_new.then_some(truth.step);
                }
            }
            if options.no_local {
                // The retained message may be the client's own.
                sub.due = None;
            }
            what.push((*at, again));
        }
        let cover = (self.covers && rng.chance(50)).then(|| self.cover(identifies, rng));
        let (id, version) = (self.next_id(), self.version);
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
        self.conn.asks.push(Asked {
            id,
            leaves: false,
            what,
            covers: cover.is_some(),
        });
    }

    /// Subscribes to all topics: options that its other subscriptions have, this one may have, too.
    fn cover(&mut self, identifies: bool, rng: &mut Rng) -> SubscribeOptions {
        let qos = Qos::from_bits(rng.pick(&[1, 2])).expect("below three");
        let mut options = SubscribeOptions::of(qos);
        options.retain_handling = RetainHandling::DoNotSend;
        for sub in &mut self.subs {
            sub.qoses[usize::from(qos.bits())] = true;
            // Messages that the former covering subscription brought may come once more by the other one.
            sub.parted |= sub.covered;
            (sub.hears_itself, sub.covered) = (true, true);
            if identifies {
                sub.identifiers.push(self.identifiers);
            }
        }
        options
    }

    fn unsubscribe(&mut self, places: &[usize], truth: &mut Truth) {
        let (id, version) = (self.next_id(), self.version);
        let names: Vec<_> = places
            .iter()
            .map(|at| truth.topics[self.subs[*at].track.topic].name.clone())
            .collect();
        truth.note(|| format!("{:?} unsubscribes {names:?}", self.link));
        for at in places {
            let sub = &mut self.subs[*at];
            sub.track.end();
            (sub.state, sub.due) = (State::No, None);
            sub.parted |= sub.covered;
        }
        let id_of = PacketId::new(id).expect("ids are not 0");
        self.write(|out| {
            let names = names.iter().map(String::as_str);
            encode::unsubscribe(out, version, id_of, &NOTHING, names);
        });
        self.conn.asks.push(Asked {
            id,
            leaves: true,
            what: places.iter().map(|at| (*at, false)).collect(),
            covers: false,
        });
    }

    fn answered_asked(&mut self, id: u16, leaves: bool) -> Result<Asked, Wrong> {
        let is = |asked: &Asked| asked.id == id && asked.leaves == leaves;
        let at = self.conn.asks.iter().position(is);
        let at = at.ok_or_else(|| format!("an answer to id {id}, by which nothing was asked"))?;
        Ok(self.conn.asks.remove(at))
    }

    pub(super) fn granted(
        &mut self,
        id: u16,
        reasons: Vec<ReasonCode>,
        truth: &mut Truth,
        met: &mut Met,
    ) -> Result<(), Wrong> {
        truth.note(|| format!("{:?} is granted {reasons:?} to id {id}", self.link));
        let asked = self.answered_asked(id, false)?;
        if asked.what.len() + usize::from(asked.covers) != reasons.len() {
            return Err(format!("{} answers to {}", reasons.len(), asked.what.len()));
        }
        for ((at, again), reason) in asked.what.into_iter().zip(reasons) {
            let sub = &mut self.subs[at];
            let qos = sub.options.max_qos;
            if reason.is_error() {
                if truth.budgets_are_wide {
                    return Err(format!("a subscription was refused: {reason:?}"));
                }
                met.refused += 1;
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

    pub(super) fn ungranted(&mut self, id: u16, truth: &mut Truth) -> Result<(), Wrong> {
        truth.note(|| format!("{:?} has unsubscribed by id {id}", self.link));
        let asked = self.answered_asked(id, true)?;
        for (at, _) in asked.what {
            self.subs[at].state = State::Gone;
        }
        Ok(())
    }

    /// Nothing is under way any more.
    pub fn at_head(&mut self, truth: &Truth) -> Result<(), Wrong> {
        if !self.is_connected() {
            return Ok(());
        }
        for sub in &mut self.subs {
            sub.at_head(truth)
                .map_err(|wrong| format!("{}: {wrong}", self.id))?;
        }
        Ok(())
    }
}
