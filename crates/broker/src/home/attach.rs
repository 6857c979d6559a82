//! Attaching: a subscriber gets what it missed, and a place among those that get what comes.
//!
//! Invariant: the page and the place are given in one step, and the page travels in the lane of the live messages; so
//! whatever is published later comes behind it, and no message falls between.

use crore_wire::topic;

use super::Home;
use super::carriers::Carrier;
use super::readings::{Place, Reading};
use super::row::{CREATED, DELETED, REQUESTED, RETAINS, WANTS_DEFLATE};
use crate::base::ids::ShardId;
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::settings::{Concurrency, First, Keep, Rule};
use crate::base::time::Now;
use crate::log::seek::{Back, SeekResult};
use crate::mail::lanes::Lanes;
use crate::mail::{Attach, Attached, Page, Tell, Values};

impl Home {
    /// Answers an attach with the past, in bounded pages, and gives the carrier its place among those that get what
    /// comes.
    pub fn attach(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        self.attach_from(from, ask, name, None, rules, now, lanes);
    }

    /// The same; `found` is what was found before the ask had to wait for its turn.
    #[allow(clippy::too_many_arguments)] // what a request says, and what a home is always given
    pub(super) fn attach_from(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        found: Option<Place>,
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        self.steps.add(1);
        let at = usize::from(self.places[usize::from(topic::slot(name))]);
        if let Some(offset) = self.ahead(ask.since, at) {
            let reading = Reading::Topic {
                from,
                ask: *ask,
                name: name.into(),
                place: Place::Unknown,
                counted: false,
            };
            return self.read_when_there(reading, at, offset);
        }
        let must_queue = found.is_none() && self.must_queue();
        // A poll is counted once it is known that it waits; an ask that goes on was counted before and needs only its
        // page.
        let counts = !ask.again && !ask.poll;
        if must_queue && !counts {
            return self.owe_topic(from, ask, name, Place::Unknown, false);
        }
        if ask.once && self.find(ask.hash, name).is_none() {
            let page = self.nothing_kept(ask, name, rules);
            return self.tell_page(from, ask, page, lanes);
        }
        let id = match self.place(ask, name, rules, now, lanes) {
            Ok(id) => id,
            Err(attached) => return self.tell_not_attached(from, ask, name, attached, lanes),
        };
        if must_queue && !self.is_at_head(id, ask, rules) {
            self.count_carrier(id, from, ask);
            // A subscription that begins live begins when its page is read, not now: messages before that may reach its client
            // by another subscription.
            return self.owe_topic(from, ask, name, Place::Unknown, true);
        }
        let found = found.unwrap_or(Place::Unknown);
        match self.page(id, ask, found, rules, now, lanes) {
            Ok(mut page) => {
                // A long-poll that finds its message here is no subscriber: it does not wait.
                let answered = ask.poll && page.count > 0;
                page.counted = !ask.again && !answered;
                if page.counted {
                    self.count_carrier(id, from, ask);
                }
                self.tell_page(from, ask, page, lanes);
            }
            Err(place) => {
                if counts {
                    self.count_carrier(id, from, ask);
                }
                self.owe_topic(from, ask, name, place, counts);
            }
        }
        self.queue_if_idle(id, now);
    }

    /// Answers a subscriber that is counted already, or goes on looking later.
    #[allow(clippy::too_many_arguments)] // what a request says, and what a home is always given
    pub(super) fn read_topic(
        &mut self,
        id: u32,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        place: Place,
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        match self.page(id, ask, place, rules, now, lanes) {
            Ok(mut page) => {
                page.counted = true;
                self.tell_page(from, ask, page, lanes);
            }
            Err(place) => self.owe_topic(from, ask, name, place, true),
        }
    }

    fn tell_page(&self, from: ShardId, ask: &Attach, page: Page, lanes: &mut Lanes) {
        let (topic, serial, to) = (ask.topic, ask.serial, ask.to);
        lanes.tell(
            from,
            Tell::Page {
                topic,
                serial,
                to,
                page,
            },
        );
    }

    /// The topic was deleted while the page was owed to a subscriber that is counted.
    pub(super) fn end_owed(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        now: Now,
        lanes: &mut Lanes,
    ) {
        self.leave(from, ask.hash, ask.topic, ask.serial, now);
        self.tell_not_attached(from, ask, name, Attached::Gone, lanes);
    }

    fn tell_not_attached(
        &self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        attached: Attached,
        lanes: &mut Lanes,
    ) {
        let found = self.find(ask.hash, name);
        let page = Page {
            attached,
            first: 0,
            count: 0,
            head: found.map_or(0, |id| self.rows.get(id).last()),
            epoch: self.epoch,
            newest_s: None,
            at_head: true,
            gap: false,
            again: ask.again,
            counted: false,
            retained: 0,
            only_retained: ask.again && ask.retained,
            values: Values::None,
        };
        self.tell_page(from, ask, page, lanes);
    }

    fn count_carrier(&mut self, id: u32, from: ShardId, ask: &Attach) {
        let carrier = Carrier {
            shard: from,
            serial: ask.serial,
            topic: ask.topic,
            subscribers: 1,
        };
        self.count_in(id, carrier);
    }

    /// Whether there is nothing to read, so that the page costs nothing.
    fn is_at_head(&self, id: u32, ask: &Attach, rules: &Rules) -> bool {
        let row = self.rows.get(id);
        let nothing = self.messages_of(row) == 0 && !row.has(RETAINS);
        nothing || !ask.retained && self.by_rule(ask, rules.get(row.rule)) == Since::Live
    }

    fn by_rule(&self, ask: &Attach, rule: &Rule) -> Since {
        let by_rule = match (rule.first, ask.poll) {
            (First::ByTransport, true) | (First::Oldest, _) => Since::Oldest,
            (First::ByTransport, false) if rule.keep == Keep::Latest => Since::Oldest,
            (First::ByTransport, false) | (First::Live, _) => Since::Live,
            (First::Newest(n), _) => Since::Newest(n),
        };
        match ask.since {
            Since::Default => by_rule,
            since => since,
        }
    }

    /// The topic's row, or why there is no subscription to it.
    fn place(
        &mut self,
        ask: &Attach,
        name: &[u8],
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) -> Result<u32, Attached> {
        let found = self.find(ask.hash, name);
        let rule = match found {
            Some(id) => rules.get(self.rows.get(id).rule),
            None => rules.get(rules.number_for(name)),
        };
        let created = found.is_some_and(|id| self.rows.get(id).has(CREATED));
        if rule.publisher_creates && !created {
            return Err(Attached::Forbidden);
        }
        let id = match found {
            Some(id) => id,
            None => {
                self.admit_topic(ask.hash, name, ask.client, now)
                    .map_err(Attached::Full)?;
                self.create(ask.hash, name, ask.client, rules, now)
            }
        };
        let row = self.rows.get_mut(id);
        if ask.once && row.has(DELETED) {
            return Err(Attached::Gone);
        }
        row.touched_s = now.unix_s;
        row.flags |= REQUESTED;
        if row.has(DELETED) {
            match ask.since {
                // The subscriber was told of the deletion and goes on behind it.
                Since::At(seen) if seen.epoch == self.epoch && seen.offset == row.last() => {
                    row.flags &= !DELETED;
                }
                Since::At(_) | Since::Unknown | Since::Unreadable | Since::After(_) => {
                    return Err(Attached::Gone);
                }
                // A poll whose wait ends does not bring the topic back to life.
                _ if ask.poll && ask.again => return Err(Attached::Gone),
                _ => row.flags &= !DELETED,
            }
        }
        if ask.again {
            return Ok(id);
        }
        if ask.poll && rule.concurrency != Concurrency::Broadcast && self.subscribers(id) > 0 {
            if rule.concurrency == Concurrency::First {
                return Err(Attached::Conflict);
            }
            self.each_carrier(id, |carrier| {
                let tell = Tell::Displaced {
                    topic: carrier.topic,
                    serial: carrier.serial,
                };
                lanes.tell(carrier.shard, tell);
            });
        }
        if ask.deflate {
            self.rows.get_mut(id).flags |= WANTS_DEFLATE;
        }
        Ok(id)
    }

    /// The page of a topic that this home does not know, or not any more.
    fn nothing_kept(&self, ask: &Attach, name: &[u8], rules: &Rules) -> Page {
        let floor = self.floor_of(name, rules.number_for(name), rules);
        let lost = match ask.since {
            Since::At(seen) => seen.epoch != self.epoch || seen.offset < floor,
            Since::Unknown | Since::Unreadable => true,
            _ => false,
        };
        Page {
            attached: Attached::Yes,
            first: 0,
            count: 0,
            head: floor,
            epoch: self.epoch,
            newest_s: None,
            at_head: true,
            gap: lost,
            again: true,
            counted: false,
            retained: 0,
            only_retained: false,
            values: Values::None,
        }
    }

    /// The page of a topic; if it is not found within the limit, how far the search has come.
    fn page(
        &mut self,
        id: u32,
        ask: &Attach,
        place: Place,
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) -> Result<Page, Place> {
        let limit = self.pace.page_visits;
        let at = self.at(id);
        let row = self.rows.get_mut(id);
        let rule = rules.get(row.rule);
        let log = &mut self.partitions[at].log;
        let (chain, fresh) = log.freshen_some(row.log, rule.log_age_s, now.unix_s, limit);
        row.log = chain;
        if !fresh {
            return Err(place);
        }
        let since = self.by_rule(ask, rule);
        let (start, mut gap, mut promised) = self.begin(id, since, place, limit)?;
        let latest = rule.keep == Keep::Latest;
        if latest && ask.reads_values() {
            // Values that went meanwhile are no loss: the subscription itself misses nothing.
            (gap, promised) = (false, false);
        }
        let last = self.rows.get(id).last();
        let log = &mut self.partitions[at].log;
        let oldest = log.reaches_back_to(chain).unwrap_or(last);
        let is_short = promised && start < oldest;
        gap |= is_short;
        let start = start.max(oldest);
        let first_entry = match log.seek(chain, start, limit) {
            SeekResult::Found(entry) => entry,
            SeekResult::Further(offset) => {
                return Err(Place::Behind {
                    offset,
                    gap,
                    promised,
                });
            }
        };
        if is_short {
            self.log_was_short(id, rules);
        }
        if gap {
            self.stats.gaps += 1;
        } else if matches!(since, Since::At(_)) && !ask.again {
            self.stats.resumes += 1;
        }
        let page = self.read_page(id, ask, first_entry, start, latest, now, lanes);
        Ok(Page { gap, ..page })
    }

    /// Copies the messages of a page from the entry `first_entry` on, the first one behind `start`; `latest` says that the
    /// topic's log is its retained state.
    #[allow(clippy::too_many_arguments)] // what a request says, and what a home is always given
    fn read_page(
        &mut self,
        id: u32,
        ask: &Attach,
        first_entry: u32,
        start: u64,
        latest: bool,
        now: Now,
        lanes: &mut Lanes,
    ) -> Page {
        let (chain, last) = (self.rows.get(id).log, self.rows.get(id).last());
        let at = self.at(id);
        let shown = if ask.retained && !latest {
            self.retained(id, start, now, lanes)
        } else {
            None
        };
        let frames = lanes.frames();
        let first = frames.pages.len() as u32;
        frames.pages.extend(shown);
        let messages_max = match ask.poll {
            true => 1,
            false => self.pace.page_messages.min(ask.most as usize),
        };
        let bytes_max = self.pace.page_bytes;
        let at_head = ask.poll && shown.is_some()
            || self.partitions[at].log.read_from(
                first_entry,
                start,
                messages_max,
                bytes_max,
                frames,
            );
        let count = frames.pages.len() as u32 - first;
        let values = match ask.retained && latest {
            true if ask.reads_values() => Values::These,
            // Without a place of its own to begin, a subscriber gets them as the messages of its first pages.
            true if ask.since != Since::Default && self.messages_of(self.rows.get(id)) > 0 => {
                Values::Wait
            }
            _ => Values::None,
        };
        let head = frames
            .pages
            .last()
            .filter(|_| count > 0)
            .map_or(start.max(last), |record| record.offset);
        Page {
            attached: Attached::Yes,
            first,
            count,
            head,
            epoch: self.epoch,
            newest_s: self.partitions[at].log.newest_time_s(chain),
            at_head,
            gap: false,
            again: ask.again,
            counted: false,
            retained: u32::from(shown.is_some()),
            values,
            only_retained: ask.again && ask.retained,
        }
    }

    /// Where to begin to read, whether messages before that are lost, and whether a loss behind it would be told.
    fn begin(
        &self,
        id: u32,
        since: Since,
        place: Place,
        limit: usize,
    ) -> Result<(u64, bool, bool), Place> {
        let row = self.rows.get(id);
        let (chain, last) = (row.log, row.last());
        let partition = &self.partitions[self.place_of(row)];
        let log = &partition.log;
        let oldest = log.reaches_back_to(chain).unwrap_or(last);
        let back = match (place, since) {
            (
                Place::Behind {
                    offset,
                    gap,
                    promised,
                },
                _,
            ) => return Ok((offset, gap, promised)),
            (Place::Back(offset, left), _) => Some(log.back(chain, offset, left, limit)),
            (Place::Unknown, Since::Newest(count)) => log.before_newest(chain, count, limit),
            (Place::Unknown, _) => None,
        };
        match back {
            Some(Back::Further(offset, left)) => return Err(Place::Back(offset, left)),
            Some(Back::Found(offset)) => return Ok((offset, false, false)),
            None => {}
        }
        Ok(match since {
            Since::Default | Since::Live | Since::Newest(_) => (last, false, false),
            Since::Oldest => (oldest, false, false),
            Since::After(time_s) => {
                let offset = log.before_time(chain, time_s).unwrap_or(last);
                (offset.min(last), false, false)
            }
            Since::Unknown => (oldest, true, true),
            Since::Unreadable => (last, true, false),
            Since::At(Position { epoch, offset }) => {
                let known =
                    epoch == self.epoch && offset <= partition.sequence.max(partition.known_to);
                match known {
                    true => (offset, false, true),
                    false => (oldest, true, true),
                }
            }
        })
    }
}
