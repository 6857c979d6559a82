//! Attaching: what a subscriber missed, and its place among those that get what comes.
//!
//! Invariant: the page and the place are given in one step, and the page travels in the lane of the live
//! messages; so whatever is published later comes behind it, and nothing lies between.

use super::carriers::Carrier;
use super::{CREATED, DELETED, Home, REQUESTED, WANTS_DEFLATE};
use crate::lanes::Lanes;
use crate::mail::{Attach, Attached, Page, ShardId, Tell};
use crate::position::{Position, Since};
use crate::rules::Rules;
use crate::settings::{Concurrency, First, Keep};
use crate::time::Now;

impl Home {
    /// Answers an attach: the past in bounded pages, and the carrier's place among those that get
    /// what comes.
    pub fn attach(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        let page = match self.place(ask, name, rules, now, lanes) {
            Ok(id) => {
                let mut page = self.page(id, ask, rules, now, lanes);
                // A long-poll that finds its message here is no subscriber: it does not wait.
                let answered = ask.poll && page.count > 0;
                page.counted = !ask.again && !answered;
                if page.counted {
                    let (serial, topic) = (ask.serial, ask.topic);
                    self.count_in(
                        id,
                        Carrier {
                            shard: from,
                            serial,
                            topic,
                            subscribers: 1,
                        },
                    );
                }
                self.queue_if_idle(id, now);
                page
            }
            Err(attached) => {
                let (epoch, again) = (self.epoch, ask.again);
                let found = self.find(ask.hash, name);
                Page {
                    attached,
                    first: 0,
                    count: 0,
                    head: found.map_or(0, |id| self.rows.get(id).last()),
                    epoch,
                    newest_s: None,
                    at_head: true,
                    gap: false,
                    again,
                    counted: false,
                    retained: 0,
                    only_retained: false,
                }
            }
        };
        lanes.tell(
            from,
            Tell::Page {
                topic: ask.topic,
                serial: ask.serial,
                to: ask.to,
                page,
            },
        );
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
            None => self
                .create(ask.hash, name, ask.client, rules, now)
                .map_err(Attached::Full)?,
        };
        let row = self.rows.get_mut(id);
        row.touched_s = now.unix_s;
        row.flags |= REQUESTED;
        if row.has(DELETED) {
            match ask.since {
                // It has heard of the deletion and goes on with what comes behind it.
                Since::At(seen) if seen.epoch == self.epoch && seen.offset == row.last() => {
                    row.flags &= !DELETED;
                }
                Since::At(_) | Since::Unknown | Since::After(_) => return Err(Attached::Gone),
                // The end of a wait brings nothing back to life.
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

    fn page(&mut self, id: u32, ask: &Attach, rules: &Rules, now: Now, lanes: &mut Lanes) -> Page {
        let row = self.rows.get_mut(id);
        let rule = rules.get(row.rule);
        row.log = self.log.freshen(row.log, rule.log_age_s, now.unix_s);
        let last = row.last();
        let log = row.log;
        let oldest = self.log.reaches_back_to(log).unwrap_or(last);
        let by_rule = match (rule.first, ask.poll) {
            (First::ByTransport, true) | (First::Oldest, _) => Since::Oldest,
            (First::ByTransport, false) if rule.keep == Keep::Latest => Since::Oldest,
            (First::ByTransport, false) | (First::Live, _) => Since::Live,
            (First::Newest(n), _) => Since::Newest(n),
        };
        let since = if ask.since == Since::Default {
            by_rule
        } else {
            ask.since
        };
        let (start, gap) = match since {
            Since::Default | Since::Live => (last, false),
            Since::Oldest => (oldest, false),
            Since::Newest(n) => (self.log.before_newest(log, n).unwrap_or(last), false),
            Since::After(time_s) => (self.log.before_time(log, time_s).unwrap_or(last), false),
            Since::Unknown => (oldest, true),
            Since::At(Position { epoch, offset }) => {
                let known = epoch == self.epoch && offset <= self.sequence;
                if known && offset >= oldest {
                    (offset, false)
                } else {
                    (oldest, true)
                }
            }
        };
        if gap {
            self.stats.gaps += 1;
        } else if matches!(since, Since::At(_)) && !ask.again {
            self.stats.resumes += 1;
        }
        let latest = rule.keep == Keep::Latest;
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
        let at_head = ask.poll && shown.is_some()
            || self
                .log
                .read(log, start, messages_max, self.pace.page_bytes, frames);
        let count = frames.pages.len() as u32 - first;
        let retained = if ask.retained && latest {
            count
        } else {
            u32::from(shown.is_some())
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
            newest_s: self.log.newest_time_s(log),
            at_head,
            gap,
            again: ask.again,
            counted: false,
            retained,
            only_retained: ask.again && ask.retained,
        }
    }
}
