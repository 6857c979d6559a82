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

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use super::Home;
use super::partition::Partition;
use super::readings::{Names, Reader, Reading};
use super::registered::split;
use crate::base::ids::{PartitionId, ShardId};
use crate::base::pace::Pace;
use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::base::rules::Rules;
use crate::base::settings::Keep;
use crate::base::time::Now;
use crate::filters::overlap;
use crate::log::Log;
use crate::log::arrival::{Arrival, Arrivals};
use crate::mail::lanes::Lanes;
use crate::mail::{AttachFilters, Attached, Frames, MatchPage, Tell};

/// Rows that are read for each message of a page: its entry, the chain and the topic that it belongs to, and the topic's name.
pub(super) const ROWS: usize = 4;

impl Home {
    /// A shard has no subscriber of this filter any more.
    pub fn leave_filter(&mut self, from: ShardId, filter: &[u8]) {
        self.filters.remove(filter, from);
    }

    /// Answers an attach by filter with the past, in bounded pages, and gives the shard its place among those that are
    /// told what comes. `names` are the filters, with [`SEPARATOR`](super::SEPARATOR) between; `each` says where to begin in each
    /// partition of the home, if that differs from what `ask` says.
    pub fn attach_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        (names, each): (&[u8], Option<&[Since]>),
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        let filters = split(names);
        self.steps.add(filters.len());
        let mut refused = false;
        if !ask.again && from != lanes.me {
            for filter in &filters {
                refused |= self.filters.add(filter, from, ask.party.number()).is_err();
            }
        }
        let mut names = Names::new(names, ask.partition.map_or(self.partitions.len(), |_| 1));
        for (at, partition) in self.placement.of_home(self.me).enumerate() {
            if ask.partition.is_some_and(|one| one != partition) {
                continue;
            }
            if refused {
                self.refuse_filters(from, ask, partition, lanes);
                continue;
            }
            let since = each.and_then(|each| each.get(at));
            let ask = AttachFilters {
                partition: Some(partition),
                since: since.copied().unwrap_or(ask.since),
                ..*ask
            };
            self.attach_filters_to(
                partition, from, &ask, &mut names, &filters, rules, now, lanes,
            );
        }
    }

    fn refuse_filters(
        &self,
        from: ShardId,
        ask: &AttachFilters,
        partition: PartitionId,
        lanes: &mut Lanes,
    ) {
        let page = MatchPage {
            attached: Attached::Full(Reason::TopicsFull),
            partition,
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
        lanes.tell(from, Tell::Matches { to, serial, page });
    }

    #[allow(clippy::too_many_arguments)] // what a request says, and what a home is always given
    fn attach_filters_to(
        &mut self,
        partition: PartitionId,
        from: ShardId,
        ask: &AttachFilters,
        names: &mut Names<'_>,
        filters: &[&[u8]],
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) {
        self.steps.add(1);
        let at = self.placement.place_at_home(partition);
        self.partitions[at].log.losses.watch();
        let reader = self.reader(ask, partition);
        if let Some(offset) = self.ahead(ask.since, at) {
            let reading = Reading::Filters {
                from,
                ask: *ask,
                names: names.share(),
                reader: Reader {
                    start: offset,
                    from: 0,
                    base: 0,
                    gap: false,
                    retained: false,
                    ..reader
                },
            };
            return self.read_when_there(reading, at, offset);
        }
        // A subscriber that begins live reads nothing, and need not wait for those that do.
        if reader.start < self.partitions[at].sequence && self.must_queue() {
            return self.owe_filters(from, ask, names.share(), reader);
        }
        self.tell_match_page(from, ask, filters, reader, rules, now, lanes);
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

    pub(super) fn reader(&mut self, ask: &AttachFilters, partition: PartitionId) -> Reader {
        let at = self.placement.place_at_home(partition);
        let Partition {
            log,
            sequence,
            known_to,
            ..
        } = &mut self.partitions[at];
        let known_to = (*known_to).max(*sequence);
        let (sequence, losses) = (*sequence, log.losses.count());
        let reader = |start, from, base, gap, retained| Reader {
            partition,
            start,
            from,
            newest: ask.newest,
            base,
            gap,
            retained,
            begun: sequence,
        };
        match ask.since {
            Since::Default if !ask.poll => reader(0, sequence, losses, false, true),
            Since::Live => reader(sequence, sequence, losses, false, false),
            Since::Newest(_) => reader(0, sequence, losses, false, false),
            Since::Default | Since::Oldest => reader(0, 0, losses, false, true),
            Since::After(time_s) => reader(log.arrived_by(time_s), 0, losses, false, false),
            Since::At(Position { epoch, offset }) if epoch == self.epoch && offset <= known_to => {
                if ask.again {
                    // A subscriber that is past the snapshot it began with gets no retained messages again.
                    let begins = ask.base > 0 && (ask.from == 0 || offset < ask.from);
                    let retained = begins && ask.newest == 0;
                    reader(offset, ask.from, ask.base, false, retained)
                } else {
                    reader(offset, 0, 0, false, false)
                }
            }
            Since::Unreadable => reader(sequence, sequence, losses, true, false),
            Since::At(_) | Since::Unknown => reader(0, 0, losses, true, true),
        }
    }

    /// Drops a partition's messages that are too old before a page is read, as far as the limit goes.
    fn expire_some(&mut self, place: usize, rules: &Rules, now: Now) {
        let mut limit = self.pace.page_visits;
        for number in 0..rules.retained() {
            limit -= self.expire_rule(place, number, rules, now, limit);
        }
    }

    /// Whether a page has looked at as many entries as it may, since so many steps were done. To find out which messages are among the newest
    /// costs as much as to read them.
    fn is_page_spent(&self, visits: usize, begun: u64, reader: Reader) -> bool {
        let steps = match reader.newest {
            0 => 0,
            _ => (self.steps.count() - begun) as usize,
        };
        visits + steps >= self.pace.page_visits
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
        let place = self.placement.place_at_home(reader.partition);
        self.expire_some(place, rules, now);
        let concerned = concerned(filters, rules);
        let partition = &self.partitions[place];
        let log = &partition.log;
        let (mut at, lost) = begin_filters(log, &concerned, reader, rules);
        let frames = lanes.frames();
        let (first, names) = (frames.pages.len() as u32, frames.names.len() as u32);
        let forgotten = partition
            .forgotten
            .lost_behind(lost, reader.base, &concerned, filters);
        self.steps.add(forgotten.len() + concerned.len());
        let mut draft = Draft {
            ask,
            filters,
            reader,
            forgotten,
            gap: reader.gap,
            lost: None,
            count: 0,
            bytes: 0,
        };
        let (mut head, mut visits) = (reader.start, 0);
        let begun = self.steps.count();
        let at_head = loop {
            if self.is_page_spent(visits, begun, reader) {
                // The next page goes on behind what was looked at last.
                head += u64::from(planted::is(Fault::LostSeam));
                break false;
            }
            // Each filter may have to be compared.
            visits += filters.len();
            self.steps.add(filters.len());
            let next = log.next_arrival(&mut at);
            let offset = next.as_ref().map_or(u64::MAX, Arrival::offset);
            if !draft.passes_forgotten(offset) {
                break false;
            }
            let Some(next) = next else { break true };
            self.steps.add(ROWS);
            match self.read_arrival(log, &next, &mut draft, rules, now, frames) {
                Fate::Passed => {}
                Fate::Lost if draft.count == 0 => draft.gap = true,
                Fate::Lost | Fate::Full => break false,
            }
            head = offset;
        };
        let (gap, count, lost) = (draft.gap, draft.count, draft.lost);
        if at_head {
            head = partition.sequence;
        }
        if let Some(topic) = lost.filter(|_| gap) {
            self.log_was_short(topic, rules);
        }
        self.count_page(ask, reader, gap);
        MatchPage {
            attached: Attached::Yes,
            partition: reader.partition,
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

    /// Counts a gap or a return: each partition answers a subscriber that comes back, but it comes back once.
    fn count_page(&mut self, ask: &AttachFilters, reader: Reader, gap: bool) {
        let leads = reader.partition == 0;
        if gap {
            self.stats.gaps += u64::from(leads || !reader.gap);
        } else if matches!(ask.since, Since::At(_)) && !ask.again {
            self.stats.resumes += u64::from(leads);
        }
    }

    /// Adds the next item of a log in the order of arrival to a page, if it is for its subscriber.
    fn read_arrival(
        &self,
        log: &Log,
        arrival: &Arrival,
        draft: &mut Draft<'_>,
        rules: &Rules,
        now: Now,
        frames: &mut Frames,
    ) -> Fate {
        let reader = draft.reader;
        match *arrival {
            Arrival::Orphaned { .. } => Fate::Passed,
            Arrival::Lost {
                offset,
                topic,
                number,
            } => {
                let row = self.rows.get(topic);
                let latest = reader.newest == 0 && keeps_latest(rules, row.rule);
                let wanted = offset > reader.from || latest;
                let told = number > reader.base && wanted;
                draft.lost_if(told && draft.matches(self.names.get(row.name)), topic)
            }
            Arrival::Kept {
                id,
                offset,
                topic,
                rule,
                time_s,
            } => {
                let row = self.rows.get(topic);
                let name = self.names.get(row.name);
                let gone = log.is_expired(id, now.unix_s);
                let reaches = |lost| offset <= lost;
                let shown = rule != rules.retained()
                    || offset <= reader.from
                    || log.reaches_back_to(row.log).is_none_or(reaches);
                if !shown || gone || !draft.matches(name) {
                    return Fate::Passed;
                }
                let in_snapshot = reader.newest > 0 && offset <= reader.from;
                if in_snapshot && !log.is_among_newest(id, reader.newest) {
                    return Fate::Passed;
                }
                if now.unix_s.saturating_sub(time_s) >= rules.get(rule).log_age_s {
                    // It counts as lost, though it is not dropped yet. A reader that begins without a position
                    // is promised only what comes after `begun`.
                    let told = reader.base == 0 || draft.ask.again || offset > reader.begun;
                    let told = told && !in_snapshot;
                    return draft.lost_if(told, topic);
                }
                if !draft.takes(log.bytes_of(id), &self.pace) {
                    return Fate::Full;
                }
                let record = log.copy(id, frames);
                frames.pages.push(record);
                let name = frames.push_name(name);
                frames.names.push(name);
                Fate::Passed
            }
        }
    }
}

/// A page for a subscriber by filter, as far as it is read.
struct Draft<'a> {
    ask: &'a AttachFilters,
    filters: &'a [&'a [u8]],
    reader: Reader,
    /// The losses of forgotten topics that are to be told, in order.
    forgotten: VecDeque<u64>,
    gap: bool,
    /// A topic whose log has lost a message of the page.
    lost: Option<u32>,
    /// Messages, and their bytes.
    count: usize,
    bytes: usize,
}

/// What became of an item that was to be read into a page.
enum Fate {
    /// The page has it, or its subscriber does not want it.
    Passed,
    /// It is lost to the subscriber.
    Lost,
    /// The page has no room for it.
    Full,
}

impl Draft<'_> {
    fn lost_if(&mut self, lost: bool, topic: u32) -> Fate {
        if !lost {
            return Fate::Passed;
        }
        self.lost = Some(topic);
        Fate::Lost
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.filters
            .iter()
            .any(|filter| topic::matches(filter, name))
    }

    /// Forgotten topics that lost messages up to this offset make a gap. A gap is told before the messages of its page, so a
    /// loss behind one of them begins another page: false then.
    fn passes_forgotten(&mut self, offset: u64) -> bool {
        let is_due = |lost: &u64| *lost <= offset;
        if !self.forgotten.front().is_some_and(is_due) {
            return true;
        }
        if self.count > 0 {
            return false;
        }
        self.gap = true;
        while self.forgotten.front().is_some_and(is_due) {
            self.forgotten.pop_front();
        }
        true
    }

    /// Counts a message of so many bytes, if there is room for it; one always fits.
    fn takes(&mut self, bytes: usize, pace: &Pace) -> bool {
        let most = if self.ask.poll { 1 } else { pace.page_messages };
        let fits = self.count < most && (self.count == 0 || self.bytes + bytes <= pace.page_bytes);
        if fits {
            (self.count, self.bytes) = (self.count + 1, self.bytes + bytes);
        }
        fits
    }
}

/// Begins to read the lists of these rules, and of retained messages, for a reader; says also behind which offset it is told
/// losses.
fn begin_filters(log: &Log, concerned: &[u8], reader: Reader, rules: &Rules) -> (Arrivals, u64) {
    let start = |latest| match latest || reader.newest > 0 {
        true => reader.start,
        false => reader.start.max(reader.from),
    };
    let latest = |number: &u8| keeps_latest(rules, *number);
    let lists = concerned
        .iter()
        .map(|number| (*number, start(latest(number))));
    // Last, so that a message that the log has too is read from the log and skipped here; a page may end between
    // the two.
    let retained = reader.retained.then_some((rules.retained(), reader.start));
    let lost = start(concerned.iter().any(latest));
    (log.arrivals(lists.chain(retained), lost), lost)
}

/// The rules that may govern topics which the filters match. A lone `#` governs `$` topics too.
fn concerned(filters: &[&[u8]], rules: &Rules) -> Vec<u8> {
    let may_match = |number: &u8| {
        let rule = rules.get(*number).filter.as_bytes();
        rule == b"#" || filters.iter().any(|filter| overlap(rule, filter))
    };
    (0..rules.retained()).filter(may_match).collect()
}

fn keeps_latest(rules: &Rules, number: u8) -> bool {
    rules.get(number).keep == Keep::Latest
}
