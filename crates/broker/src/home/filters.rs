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

use super::Home;
use super::context::HomeContext;
use super::logs::Logs;
use super::page_queue::{FilterNames, PendingPage, Reader};
use super::partition::Partition;
use super::shard_filters::split;
use super::subscriptions::Subscriptions;
use crate::base::ids::{PartitionId, ShardId};
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::base::work::page_visits;
use crate::mail::lanes::Lanes;
use crate::mail::{AttachFilters, Attached, MatchPage, Tell};

impl Subscriptions {
    /// A shard has no subscriber of this filter any more.
    pub(crate) fn leave_filter(&mut self, from: ShardId, filter: &[u8]) {
        self.filters.remove(filter, from);
    }
}

impl Home {
    /// Answers an attach by filter with the past, in bounded pages, and gives the shard its place among those that are
    /// told what comes. `names` are the filters, with [`SEPARATOR`](super::SEPARATOR) between; `each` says where to begin in each
    /// partition of the home, if that differs from what `ask` says.
    pub(crate) fn attach_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        (names, each): (&[u8], Option<&[Since]>),
        context: &mut HomeContext<'_>,
    ) {
        let filters = split(names);
        self.steps.add(filters.len());
        let mut refused = false;
        if !ask.again && from != context.lanes.me {
            for filter in &filters {
                refused |= self
                    .subscriptions
                    .filters
                    .add(filter, from, ask.party.number())
                    .is_err();
            }
        }
        let mut names = FilterNames::new(
            names,
            ask.partition.map_or(self.logs.partitions.len(), |_| 1),
        );
        for (at, partition) in self.logs.placement.of_home(self.logs.me).enumerate() {
            if ask.partition.is_some_and(|one| one != partition) {
                continue;
            }
            if refused {
                self.logs
                    .refuse_filters(from, ask, partition, context.lanes);
                continue;
            }
            let since = each.and_then(|each| each.get(at));
            let since = since.copied().unwrap_or(ask.since);
            let ask = AttachFilters {
                partition: Some(partition),
                since: self.logs.of_this_life(since, at),
                ..*ask
            };
            self.attach_filters_to(partition, from, &ask, &mut names, &filters, context);
        }
    }

    fn attach_filters_to(
        &mut self,
        partition: PartitionId,
        from: ShardId,
        ask: &AttachFilters,
        names: &mut FilterNames<'_>,
        filters: &[&[u8]],
        context: &mut HomeContext<'_>,
    ) {
        self.steps.add(1);
        let at = self.logs.placement.place_at_home(partition);
        self.logs.partitions[at].log.losses.watch();
        let reader = self.logs.reader(ask, partition);
        if let Some(offset) = self.logs.ahead(ask.since, at) {
            let reading = PendingPage::Filters {
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
            return self
                .page_queue
                .wait_for_log(&mut self.logs, reading, at, offset);
        }
        // A subscriber that begins live reads nothing, and need not wait for those that do.
        if reader.start < self.logs.partitions[at].sequence
            && self.page_queue.must_queue(&self.pace)
        {
            let names = names.share();
            return self
                .page_queue
                .queue_filters(from, ask, names, reader, false);
        }
        if !self.tell_match_page(from, ask, filters, reader, context) {
            let names = names.share();
            self.page_queue
                .queue_filters(from, ask, names, reader, true);
        }
    }

    /// Reads a page and tells it; false if it has to wait among the large ones.
    pub(super) fn tell_match_page(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        filters: &[&[u8]],
        reader: Reader,
        context: &mut HomeContext<'_>,
    ) -> bool {
        let Some(page) = self.match_page(ask, filters, reader, context) else {
            return false;
        };
        let (to, serial) = (ask.to, ask.serial);
        context
            .lanes
            .frames()
            .weights
            .add(ask.party, page_visits(page.count));
        context.lanes.tell(from, Tell::Matches { to, serial, page });
        true
    }
}

impl Logs {
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
            epoch: self.epoch,
            at_head: true,
            ..MatchPage::default()
        };
        let (to, serial) = (ask.to, ask.serial);
        lanes
            .frames()
            .weights
            .add(ask.party, page_visits(page.count));
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
}
