//! Compares the log with the plain list that is its model.

use super::*;

/// An item that a reader by filter must find.
#[derive(Clone, Copy)]
enum Item<'a> {
    Kept(&'a ModelMessage),
    /// The last loss of a topic, and its number.
    Lost(usize, u64),
}

impl Fixture {
    pub(super) fn check(&mut self, starts: &[(u8, u64)], lost: u64, time_s: u32) {
        self.check_topics();
        let Fixture { model, log, .. } = self;
        // In one of three cases, orphaned messages are not removed yet.
        let is_clear = !model.offset.is_multiple_of(3);
        if is_clear {
            log.clear_orphans(usize::MAX);
            assert_eq!(log.len() as usize, model.kept.len());
            Fixture::check_marks(model, log);
        }
        let losses = model.losses.iter().flatten().count();
        assert_eq!(log.losses.topics(), losses);

        let mut cursor = log.arrivals(starts.iter().copied(), lost);
        for (offset, _, item) in Fixture::expected(model, starts, lost) {
            let mut next = || log.next_arrival(&mut cursor).expect("there is one more");
            let arrival = loop {
                match next() {
                    Arrival::Orphaned { .. } => assert!(!is_clear),
                    arrival => break arrival,
                }
            };
            assert_eq!(arrival.offset(), offset);
            Fixture::check_arrival(model, log, arrival, item);
        }
        while let Some(arrival) = log.next_arrival(&mut cursor) {
            assert!(!is_clear && matches!(arrival, Arrival::Orphaned { .. }));
        }
        let arrived = model.kept.iter().filter(|kept| kept.time_s <= time_s);
        let last = arrived.map(|kept| kept.offset).max().unwrap_or(0);
        assert!(log.last_arrived_by(time_s) >= last);
        if is_clear {
            assert_eq!(log.last_arrived_by(time_s), last);
        }
        Fixture::check_searches(model, log, &self.chains, time_s);
    }

    /// Checks that each topic has the messages and the last lost offset of the plain list.
    fn check_topics(&mut self) {
        let Fixture { model, log, .. } = self;
        for topic in 0..TOPICS {
            let last_lost = log.last_lost_offset(self.chains[topic]);
            assert_eq!(last_lost.unwrap_or(model.last[topic]), model.lost[topic]);
            for (chain, retained) in [(self.chains[topic], false), (self.retained[topic], true)] {
                let mut frames = Frames::default();
                log.read_oldest(chain, usize::MAX, usize::MAX, &mut frames);
                let read: Vec<_> = frames.pages.iter().map(|record| record.offset).collect();
                assert_eq!(read, model.offsets(topic, retained));
            }
        }
        let counts = (log.removal_counts.superseded, log.removal_counts.expired);
        assert_eq!(counts, (model.superseded, model.expired));
    }

    /// Checks that the marks lead to any entry in a few steps.
    fn check_marks(model: &Model, log: &Log) {
        for number in 0..model.rules.count() {
            let of_list = |kept: &&ModelMessage| usize::from(model.rule_number_of(kept)) == number;
            let mut marks = log.lists.marks(number).peekable();
            let mut since_mark = 0;
            for kept in model.kept.iter().filter(of_list) {
                since_mark += 1;
                if let Some((_, id)) = marks.next_if(|mark| mark.0 == kept.offset) {
                    assert_eq!(log.entries.get(id).offset, kept.offset);
                    assert!(log.entries.get(id).flags & MARKED != 0);
                    since_mark = 0;
                }
                assert!(since_mark <= MARK_EVERY, "{} has no mark", kept.offset);
            }
            assert_eq!(marks.next(), None, "of an entry that is gone");
        }
    }

    /// The items that a reader by filter must find, by offset and list. At the same offset, messages come in the order of the lists, and
    /// before the loss.
    fn expected<'a>(
        model: &'a Model,
        starts: &[(u8, u64)],
        lost: u64,
    ) -> Vec<(u64, usize, Item<'a>)> {
        let mut expected = Vec::new();
        for (place, (number, start)) in starts.iter().enumerate() {
            let of_list = |kept: &&ModelMessage| {
                model.rule_number_of(kept) == *number && kept.offset > *start
            };
            let all = model.kept.iter().filter(of_list);
            expected.extend(all.map(|kept| (kept.offset, place, Item::Kept(kept))));
        }
        for (topic, loss) in model.losses.iter().enumerate() {
            let loss = loss.filter(|(offset, _)| *offset > lost);
            expected.extend(loss.map(|(offset, number)| {
                let place = starts.len() + topic;
                (offset, place, Item::Lost(topic, number))
            }));
        }
        expected.sort_by_key(|(offset, place, ..)| (*offset, *place));
        expected
    }

    fn check_arrival(model: &Model, log: &Log, arrival: Arrival, item: Item<'_>) {
        let offset = arrival.offset();
        match (arrival, item) {
            (
                Arrival::Lost {
                    topic, number: n, ..
                },
                Item::Lost(lost_topic, number),
            ) => {
                assert_eq!((topic as usize, n), (lost_topic, number));
            }
            (
                Arrival::Kept {
                    id,
                    topic,
                    rule,
                    time_s,
                    ..
                },
                Item::Kept(kept),
            ) => {
                let found = (topic as usize, rule, time_s);
                assert_eq!(found, (kept.topic, model.rule_number_of(kept), kept.time_s));
                assert_eq!(log.is_expired(id, model.now_s), model.is_expired(kept));
                let key = KEYS[kept.key as usize];
                let end = if kept.ttl_s.is_some() { 4 } else { 0 };
                let owner = if owner(offset).is_known() { 4 } else { 0 };
                assert_eq!(
                    log.bytes_of(id),
                    end + owner + key.len() + frame(offset).len()
                );
                let mut frames = Frames::default();
                let record = log.copy(id, &mut frames);
                assert_eq!((record.offset, record.ttl_s()), (offset, kept.ttl_s));
                assert_eq!(
                    (frames.key(&record), frames.frame(&record)),
                    (key, &frame(offset)[..])
                );
            }
            _ => panic!("{offset} is kept or lost, and not the other"),
        }
    }

    /// Checks that a search from any place in a topic, in however few steps, finds the same as a search in the plain list.
    fn check_searches(model: &Model, log: &Log, chains: &[u32; TOPICS], time_s: u32) {
        for (topic, chain) in chains.iter().enumerate() {
            let all = model.offsets(topic, false);
            for limit in [1, 3, usize::MAX] {
                for start in [0, 1, 2, 5, 11].map(|n| model.offset.saturating_sub(n)) {
                    let mut from = start;
                    let found = loop {
                        match log.seek(*chain, from, limit) {
                            SeekResult::Found(NONE) => break None,
                            SeekResult::Found(id) => break Some(log.entries.get(id).offset),
                            SeekResult::Continue(offset) => {
                                assert!(offset > from, "it has come further");
                                from = offset;
                            }
                        }
                    };
                    assert_eq!(found, all.iter().copied().find(|offset| *offset > start));
                }
                for count in [1, 2, 5] {
                    let mut back = log.seek_newest(*chain, count, limit);
                    while let Some(SeekBackResult::Continue(offset, left)) = back {
                        let next = log.seek_back(*chain, offset, left, limit);
                        assert_ne!(next, SeekBackResult::Continue(offset, left));
                        back = Some(next);
                    }
                    let first = all.len().saturating_sub(count as usize);
                    let Some(SeekBackResult::Found(before)) = back else {
                        assert!(all.is_empty());
                        continue;
                    };
                    let behind = all.iter().copied().find(|offset| *offset > before);
                    assert_eq!(behind, all.get(first).copied());
                }
            }
            Self::check_search_back(log, *chain, &all, model.offset);
            let late = |kept: &&ModelMessage| {
                kept.topic == topic && !kept.retained && kept.time_s > time_s
            };
            let first = model.kept.iter().filter(late).map(|kept| kept.offset).min();
            let before = log.offset_before_time(*chain, time_s);
            let behind = all
                .iter()
                .copied()
                .find(|offset| *offset > before.unwrap_or(0));
            assert_eq!(behind, first);
        }
    }

    /// Checks that a search back counts the newest messages up to an offset, even if the message at this offset was removed. `all` are the offsets of
    /// the chain, and `last` is the last offset of the log.
    fn check_search_back(log: &Log, chain: u32, all: &[u64], last: u64) {
        if all.is_empty() {
            return;
        }
        for limit in [1, 3, usize::MAX] {
            for start in [0, 1, 2, 5, 11].map(|n| last.saturating_sub(n)) {
                for count in [1, 2, 5] {
                    let (mut offset, mut left) = (start, count);
                    let before = loop {
                        match log.seek_back(chain, offset, left, limit) {
                            SeekBackResult::Found(before) => break before,
                            next @ SeekBackResult::Continue(..)
                                if next == SeekBackResult::Continue(offset, left) =>
                            {
                                panic!("a search that does not advance")
                            }
                            SeekBackResult::Continue(at, more) => (offset, left) = (at, more),
                        }
                    };
                    let up_to = all.partition_point(|offset| *offset <= start);
                    let first = all[up_to.saturating_sub(count as usize)..].first();
                    let behind = all.iter().find(|offset| **offset > before);
                    assert_eq!(behind, first, "{count} up to {start} of {all:?}");
                }
            }
        }
    }
}
