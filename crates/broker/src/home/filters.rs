//! Subscribers by filter: which shards have some, which messages they get, and which they missed.
//!
//! A home knows shards, not connections: it tells a message once to each shard that has a matching filter, and the
//! shard matches again. Filters of its own shard are not registered: there it looks at those of the connections. Missed
//! messages are read from the log in the order of arrival, in bounded pages. A lost message stands in that order too,
//! so a gap is told before the position passes it, and only where a message is lost.
//!
//! Invariants: a shard's filter is registered from its first attach to its leave, and mail between the two is in order;
//! the page that is marked `at_head` travels in the lane of the live messages. A subscriber that gives no position
//! first gets a snapshot of what the rules keep by `latest`, and of retained messages: it holds offsets up to
//! [`MatchPage::from`].

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use super::Home;
use crate::base::ids::ShardId;
use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::settings::Keep;
use crate::base::time::Now;
use crate::budget::admission::Reached;
use crate::filters::matching::Matching;
use crate::filters::{Filters, Refused, overlap};
use crate::home::carriers::Carrier;
use crate::log::arrival::Arrival;
use crate::mail::lanes::Lanes;
use crate::mail::{AttachFilters, Attached, MatchPage, Record, Tell};
use crate::store::slab::{NONE, Side};

/// A filter's number is a shard below this, above it a set of shards.
const SET: u32 = 1 << 31;
/// Forgotten topics that are remembered by name, so that only filters that match are told their losses. Of earlier ones
/// the rule is remembered: every filter that may have topics of that rule is told a gap, if its position is older than
/// the loss.
const NAMED_MAX: usize = 1024;
/// Between the filters of one attach; a control character, which no filter has.
pub const SEPARATOR: u8 = b'\n';

/// The filters of all other shards.
pub(super) struct Registered {
    filters: Filters,
    sets: Side<Vec<ShardId>>,
    /// The shards that get the message at hand.
    due: Vec<ShardId>,
    forgotten: Forgotten,
}

/// Topics that are forgotten and had lost messages: of the most recent ones the name, of others the rule.
#[derive(Default)]
struct Forgotten {
    /// The last message that each had lost, the number of that loss, the rule and the name; in no order.
    named: VecDeque<(u64, u64, u8, Box<[u8]>)>,
    by_rule: Vec<u64>,
}

impl Registered {
    pub fn new(rules: usize, seed: u64) -> Self {
        Registered {
            filters: Filters::new(seed),
            sets: Side::new(),
            due: Vec::new(),
            forgotten: Forgotten {
                named: VecDeque::new(),
                by_rule: alloc::vec![0; rules],
            },
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    pub fn len(&self) -> u32 {
        self.filters.len()
    }

    pub fn bytes(&self) -> usize {
        self.filters.bytes()
    }

    /// A topic that lost messages is forgotten.
    pub fn forget(&mut self, rule: u8, lost: u64, number: u64, name: &[u8]) {
        let Forgotten { named, by_rule } = &mut self.forgotten;
        if named.len() == NAMED_MAX {
            let (lost, _, rule, _) = named.pop_front().expect("it is full");
            let of_rule = &mut by_rule[rule as usize];
            *of_rule = lost.max(*of_rule);
        }
        named.push_back((lost, number, rule, name.into()));
    }

    /// Forgotten topics that had lost messages: the last one, the number of that loss, the name.
    pub fn forgotten_topics(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let named = self.forgotten.named.iter();
        named.map(|(lost, number, _, name)| (*lost, *number, &name[..]))
    }

    /// The last losses of those that are remembered by rule.
    pub fn blamed_rules(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = (0..).zip(self.forgotten.by_rule.iter().copied());
        all.filter(|(_, lost)| *lost > 0)
    }

    /// Notes for the rule with this filter that its forgotten topics lost a message at `lost`; if there is no such
    /// rule, for all rules.
    pub fn blame(&mut self, filter: &[u8], lost: u64, rules: &Rules) {
        let by_rule = &mut self.forgotten.by_rule;
        match rules.with_filter(filter) {
            Some(number) => by_rule[number as usize] = lost.max(by_rule[number as usize]),
            None => by_rule.iter_mut().for_each(|of| *of = lost.max(*of)),
        }
    }

    /// The rules get other numbers. Losses that were noted for a rule that is gone are noted for all rules.
    pub fn change_rules(&mut self, former: &Rules, rules: &Rules) {
        let Forgotten { named, by_rule } = &mut self.forgotten;
        for (_, _, rule, name) in named {
            *rule = rules.number_for(name);
        }
        let blamed = core::mem::replace(by_rule, alloc::vec![0; rules.count()]);
        for (number, lost) in (0..).zip(blamed).filter(|(_, lost)| *lost > 0) {
            self.blame(former.get(number).filter.as_bytes(), lost, rules);
        }
    }

    /// The last losses of forgotten topics that these filters may match, if behind `offset` and after loss `base`, in
    /// order.
    fn lost_behind(
        &self,
        offset: u64,
        base: u64,
        rules: &[u8],
        filters: &[&[u8]],
    ) -> VecDeque<u64> {
        let of_rules = rules.iter().map(|n| self.forgotten.by_rule[*n as usize]);
        let matches = |name: &[u8]| filters.iter().any(|filter| topic::matches(filter, name));
        let named = self.forgotten.named.iter();
        let of_names = named
            .filter(|(lost, number, _, name)| *lost > offset && *number > base && matches(name))
            .map(|(lost, ..)| *lost);
        let mut all: Vec<u64> = of_rules
            .filter(|lost| *lost > offset && base == 0)
            .chain(of_names)
            .collect();
        all.sort_unstable();
        all.into()
    }

    /// See [`Filters::warm`].
    pub fn warm<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.warm(topics);
    }

    /// Finds the shards that get a message; returns how many there are.
    pub fn find(&mut self, name: &[u8]) -> u32 {
        self.due.clear();
        if self.filters.is_empty() {
            return 0;
        }
        let (sets, due) = (&self.sets, &mut self.due);
        self.filters.matches(name, |id| {
            let value = self.filters.value(id);
            if value & SET == 0 {
                due.push(value as ShardId);
            } else {
                due.extend_from_slice(sets.get(value & !SET));
            }
        });
        due.sort_unstable();
        due.dedup();
        due.len() as u32
    }

    /// The same, with the home's own shard.
    pub fn find_with(&mut self, name: &[u8], here: &Matching, me: ShardId) -> u32 {
        let others = self.find(name);
        if !here.has_match(name) {
            return others;
        }
        self.due.push(me);
        others + 1
    }

    fn add(&mut self, filter: &[u8], shard: ShardId) -> Result<(), Refused> {
        let id = self.filters.open(filter)?;
        let value = self.filters.value(id);
        if value == NONE {
            self.filters.set_value(id, u32::from(shard));
        } else if value & SET != 0 {
            let set = self.sets.get_mut(value & !SET);
            if !set.contains(&shard) {
                set.push(shard);
            }
        } else if value != u32::from(shard) {
            let set = self.sets.insert(alloc::vec![value as ShardId, shard]);
            self.filters.set_value(id, SET | set);
        }
        Ok(())
    }

    fn remove(&mut self, filter: &[u8], shard: ShardId) {
        let Some(id) = self.filters.find(filter) else {
            return;
        };
        let value = self.filters.value(id);
        if value & SET != 0 {
            let set = self.sets.get_mut(value & !SET);
            set.retain(|other| *other != shard);
            if !set.is_empty() {
                return;
            }
            self.sets.remove(value & !SET);
        } else if value != u32::from(shard) {
            return;
        }
        self.filters.close(id);
    }
}

/// The filters of one attach.
pub(super) fn split(names: &[u8]) -> Vec<&[u8]> {
    names.split(|b| *b == SEPARATOR).collect()
}

/// Where a reader stands.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    start: u64,
    from: u64,
    /// Losses up to this number happened before it began without a position and are not told to it; 0 if it gave one.
    base: u64,
    gap: bool,
    /// Whether it gets retained messages: those up to `from`, and those that their topic's log no longer has.
    retained: bool,
    /// The home's last offset when it asked: what is lost behind it is told, even to a reader that began without a
    /// position.
    begun: u64,
}

impl Home {
    /// Tells the message to every shard that has a subscriber of it, by filter or not.
    pub(super) fn tell_matched(&mut self, id: u32, name: &[u8], record: Record, lanes: &mut Lanes) {
        let mut due = core::mem::take(&mut self.filters.due);
        let name = lanes.frames().push_name(name);
        self.each_carrier(id, |carrier: &Carrier| {
            let (topic, serial) = (carrier.topic, carrier.serial);
            // The shard matches for all its subscribers together.
            let tell = match due.iter().position(|shard| *shard == carrier.shard) {
                Some(at) => {
                    due.swap_remove(at);
                    Tell::Match {
                        topic,
                        serial,
                        name,
                        record,
                    }
                }
                None => Tell::Live {
                    topic,
                    serial,
                    record,
                },
            };
            lanes.tell(carrier.shard, tell);
        });
        for shard in due.drain(..) {
            let tell = Tell::Match {
                topic: NONE,
                serial: 0,
                name,
                record,
            };
            lanes.tell(shard, tell);
        }
        self.filters.due = due;
    }

    /// A shard has no subscriber of this filter any more.
    pub fn leave_filter(&mut self, from: ShardId, filter: &[u8]) {
        self.filters.remove(filter, from);
    }

    /// Answers an attach by filter with the past, in bounded pages, and gives the shard its place among those that are
    /// told what comes. `names` are the filters, with [`SEPARATOR`] between.
    pub fn attach_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        names: &[u8],
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        let filters = split(names);
        self.log.steps.add(filters.len());
        self.log.losses.watch();
        let mut refused = false;
        if !ask.again && from != lanes.me {
            for filter in &filters {
                refused |= self.filters.add(filter, from).is_err();
            }
        }
        if refused {
            let page = MatchPage {
                attached: Attached::Full(Reached::Topics),
                first: 0,
                count: 0,
                names: 0,
                head: 0,
                from: 0,
                base: 0,
                epoch: self.epoch,
                at_head: true,
                gap: false,
            };
            let (to, serial) = (ask.to, ask.serial);
            return lanes.tell(from, Tell::Matches { to, serial, page });
        }
        let reader = self.reader(ask);
        // A subscriber that begins live reads nothing, and need not wait for those that do.
        if reader.start < self.sequence && self.must_queue() {
            return self.owe_filters(from, ask, names, reader);
        }
        self.tell_match_page(from, ask, &filters, reader, rules, now, lanes);
    }

    /// Reads a page and tells it.
    #[allow(clippy::too_many_arguments)] // what a request says, and what a home is always given
    pub(super) fn tell_match_page(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        filters: &[&[u8]],
        reader: Reader,
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        let page = self.match_page(ask, filters, reader, rules, now, lanes);
        let (to, serial) = (ask.to, ask.serial);
        lanes.tell(from, Tell::Matches { to, serial, page });
    }

    fn reader(&mut self, ask: &AttachFilters) -> Reader {
        let (sequence, losses) = (self.sequence, self.log.losses.count());
        let reader = |start, from, base, gap, retained| Reader {
            start,
            from,
            base,
            gap,
            retained,
            begun: sequence,
        };
        match ask.since {
            Since::Default if !ask.poll => reader(0, sequence, losses, false, true),
            Since::Live | Since::Newest(_) => reader(sequence, sequence, losses, false, false),
            Since::Default | Since::Oldest => reader(0, 0, losses, false, true),
            Since::After(time_s) => reader(self.log.arrived_by(time_s), 0, losses, false, false),
            Since::At(Position { epoch, offset }) if epoch == self.epoch && offset <= sequence => {
                if ask.again {
                    // A subscriber that is past the snapshot it began with gets no retained messages again.
                    let retained = ask.base > 0 && (ask.from == 0 || offset < ask.from);
                    reader(offset, ask.from, ask.base, false, retained)
                } else {
                    reader(offset, 0, 0, false, false)
                }
            }
            Since::At(_) | Since::Unknown => reader(0, 0, losses, true, true),
        }
    }

    fn match_page(
        &mut self,
        ask: &AttachFilters,
        filters: &[&[u8]],
        reader: Reader,
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) -> MatchPage {
        // Messages that are too old are dropped before the page is read, as far as the limit goes.
        let mut limit = self.pace.page_visits;
        for number in 0..rules.retained() {
            limit -= self.expire_rule(number, rules, now, limit);
        }
        let mut gap = reader.gap;
        let matches = |name: &[u8]| filters.iter().any(|filter| topic::matches(filter, name));
        // A lone `#` governs `$` topics too.
        let concerned: Vec<u8> = (0..rules.retained())
            .filter(|number| {
                let rule = rules.get(*number).filter.as_bytes();
                rule == b"#" || filters.iter().any(|filter| overlap(rule, filter))
            })
            .collect();
        let lists = concerned.iter().map(|number| {
            let latest = rules.get(*number).keep == Keep::Latest;
            let start = if latest {
                reader.start
            } else {
                reader.start.max(reader.from)
            };
            (*number, start)
        });
        // Last, so that a message that the log has too is read from the log and skipped here; a page may end between
        // the two.
        let retained = reader.retained.then_some((rules.retained(), reader.start));
        let snapshot = |number: &u8| rules.get(*number).keep == Keep::Latest;
        let lost = match concerned.iter().any(snapshot) {
            true => reader.start,
            false => reader.start.max(reader.from),
        };
        let mut at = self.log.arrivals(lists.chain(retained), lost);

        let messages_max = if ask.poll { 1 } else { self.pace.page_messages };
        let frames = lanes.frames();
        let (first, names) = (frames.pages.len() as u32, frames.names.len() as u32);
        let (mut count, mut bytes, mut visits) = (0, 0, 0);
        let mut head = reader.start;
        let mut forgotten = self
            .filters
            .lost_behind(lost, reader.base, &concerned, filters);
        self.log.steps.add(forgotten.len() + concerned.len());
        let at_head = loop {
            if visits >= self.pace.page_visits {
                // The next page goes on behind what was looked at last.
                head += u64::from(planted::is(Fault::LostSeam));
                break false;
            }
            // Each filter may have to be compared.
            visits += filters.len();
            self.log.steps.add(filters.len());
            let next = self.log.next_arrival(&mut at);
            let offset = next.as_ref().map_or(u64::MAX, Arrival::offset);
            // A gap is told before the messages of its page, so a loss behind one of them begins another page.
            let mut is_lost = forgotten.front().is_some_and(|lost| *lost <= offset);
            if is_lost && count == 0 {
                gap = true;
                while forgotten.front().is_some_and(|lost| *lost <= offset) {
                    forgotten.pop_front();
                }
                is_lost = false;
            }
            match next {
                _ if is_lost => {}
                None => break true,
                Some(Arrival::Doomed { .. }) => {}
                Some(Arrival::Lost { topic, number, .. }) => {
                    let row = self.rows.get(topic);
                    let wanted = offset > reader.from || snapshot(&row.rule);
                    is_lost = number > reader.base && wanted && matches(self.names.get(row.name));
                }
                Some(Arrival::Kept {
                    id,
                    topic,
                    rule,
                    time_s,
                    ..
                }) => {
                    let row = self.rows.get(topic);
                    let name = self.names.get(row.name);
                    let gone = self.log.is_expired(id, now.unix_s);
                    let reaches = |lost| offset <= lost;
                    let shown = rule != rules.retained()
                        || offset <= reader.from
                        || self.log.reaches_back_to(row.log).is_none_or(reaches);
                    let too_old = now.unix_s.saturating_sub(time_s) >= rules.get(rule).log_age_s;
                    if shown && !gone && matches(name) {
                        let more = self.log.bytes_of(id);
                        if too_old {
                            // It counts as lost, though it is not dropped yet. A reader that begins without a position
                            // is promised only what comes after `begun`.
                            is_lost = reader.base == 0 || ask.again || offset > reader.begun;
                        } else if count == messages_max
                            || count > 0 && bytes + more > self.pace.page_bytes
                        {
                            break false;
                        } else {
                            (count, bytes) = (count + 1, bytes + more);
                            let record = self.log.copy(id, frames);
                            frames.pages.push(record);
                            let name = frames.push_name(name);
                            frames.names.push(name);
                        }
                    }
                }
            }
            if is_lost && count > 0 {
                break false;
            }
            gap |= is_lost;
            head = offset;
        };
        if at_head {
            head = self.sequence;
        }
        if gap {
            self.stats.gaps += 1;
        } else if matches!(ask.since, Since::At(_)) && !ask.again {
            self.stats.resumes += 1;
        }
        MatchPage {
            attached: Attached::Yes,
            first,
            count: count as u32,
            names,
            head,
            from: reader.from,
            base: reader.base,
            epoch: self.epoch,
            at_head,
            gap,
        }
    }
}
