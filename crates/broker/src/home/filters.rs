//! Subscribers by filter (with the wildcards `+` and `#`): registers the filters of shards, and sends pages (bounded runs) of missed
//! messages.
//!
//! A home (the part of a shard that keeps topics) does not know which connections have a filter, only which shards. It sends a message once to each shard
//! with a matching filter, and the shard finds its connections. The home's own shard is not registered: the home reads the filters of that shard's
//! connections directly.
//!
//! Missed messages are read from the log in the order of arrival. The log has an entry for each lost message, too. So a subscriber gets a gap (the
//! notice that messages are lost) exactly if a message for it was lost, and before it gets any later message.
//!
//! Invariants:
//! * A filter is registered for a shard from the shard's first attach (a request to subscribe) until the shard's last subscriber has left
//!   the filter. Both requests arrive in order, since they use the same lane (queue of mail to one shard).
//! * The last page before the live messages (marked `at_head`) uses the same lane as these messages, so it arrives first.
//! * A subscriber without a position first gets a snapshot: retained messages, and the messages of topics whose rule keeps only the latest. The
//!   snapshot ends at offset [`FilterPage::snapshot_end`].

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
use crate::mail::{AttachFilters, AttachOutcome, FilterPage, Tell};

impl Subscriptions {
    /// Unregisters a filter of a shard that no longer has subscribers of the filter.
    pub(crate) fn remove_filter(&mut self, from: ShardId, filter: &[u8]) {
        self.filters.remove(filter, from);
    }
}

impl Home {
    /// Answers an attach by filter with pages of past messages, and registers the shard for live messages. `names` are the filters, separated by
    /// [`SEPARATOR`](super::SEPARATOR). `positions` has the position at which to begin in each partition of the home; if it is `None`, all begin at the
    /// position in `ask`.
    pub(crate) fn attach_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        names: &[u8],
        positions: Option<&[Since]>,
        context: &mut HomeContext<'_>,
    ) {
        let filters = split(names);
        self.steps.add(filters.len());
        let mut refusal = None;
        if !ask.is_next_page && from != context.lanes.me {
            for filter in &filters {
                let filters = &mut self.subscriptions.filters;
                let added = filters.add(filter, from, ask.party.number());
                refusal = refusal.or(added.err());
            }
        }
        let mut names = FilterNames::new(
            names,
            ask.partition.map_or(self.logs.partitions.len(), |_| 1),
        );
        for (partition_index, partition) in self.logs.placement.of_home(self.logs.me).enumerate() {
            if ask.partition.is_some_and(|one| one != partition) {
                continue;
            }
            if let Some(reason) = refusal {
                self.logs
                    .refuse_filters(from, ask, partition, reason, context.lanes);
                continue;
            }
            let since = positions.and_then(|each| each.get(partition_index));
            let since = since.copied().unwrap_or(ask.since);
            let ask = AttachFilters {
                partition: Some(partition),
                since: self.logs.to_current_life(since, partition_index),
                ..*ask
            };
            self.attach_filters_in_partition(partition, from, &ask, &mut names, &filters, context);
        }
    }

    fn attach_filters_in_partition(
        &mut self,
        partition: PartitionId,
        from: ShardId,
        ask: &AttachFilters,
        names: &mut FilterNames<'_>,
        filters: &[&[u8]],
        context: &mut HomeContext<'_>,
    ) {
        self.steps.add(1);
        let partition_index = self.logs.placement.index_at_home(partition);
        self.logs.partitions[partition_index].log.losses.watch();
        let reader = self.logs.new_reader(ask, partition);
        if let Some(offset) = self.logs.offset_to_wait_for(ask.since, partition_index) {
            let pending_page = PendingPage::Filters {
                from,
                ask: *ask,
                names: names.share(),
                reader: Reader {
                    start: offset,
                    snapshot_end: 0,
                    losses_before: 0,
                    has_gap: false,
                    gets_retained: false,
                    ..reader
                },
            };
            return self.wait_for_log(pending_page, partition_index, offset);
        }
        // If the subscriber begins with live messages, it reads no past messages, and need not wait for the pages of others.
        if reader.start < self.logs.partitions[partition_index].sequence
            && self.page_queue.must_queue(&self.turn_limits)
        {
            let names = names.share();
            return self
                .page_queue
                .queue_filters(from, ask, names, reader, false);
        }
        if !self.send_filter_page(from, ask, filters, reader, context) {
            let names = names.share();
            self.page_queue
                .queue_filters(from, ask, names, reader, true);
        }
    }

    /// Reads and sends a page; returns false if the page must wait in the queue of pages with large messages.
    pub(super) fn send_filter_page(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        filters: &[&[u8]],
        reader: Reader,
        context: &mut HomeContext<'_>,
    ) -> bool {
        let Some(page) = self.read_filter_page(ask, filters, reader, context) else {
            return false;
        };
        let (to, serial) = (ask.to, ask.serial);
        context
            .lanes
            .frames()
            .visits_by_group
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
        reason: Reason,
        lanes: &mut Lanes,
    ) {
        let page = FilterPage {
            attached: AttachOutcome::NoRoom(reason),
            partition,
            epoch: self.epoch,
            at_head: true,
            ..FilterPage::default()
        };
        let (to, serial) = (ask.to, ask.serial);
        lanes
            .frames()
            .visits_by_group
            .add(ask.party, page_visits(page.count));
        lanes.tell(from, Tell::Matches { to, serial, page });
    }

    /// The beginning of a subscription in this partition, by the position that the subscriber asks for.
    pub(super) fn new_reader(&mut self, ask: &AttachFilters, partition: PartitionId) -> Reader {
        let partition_index = self.placement.index_at_home(partition);
        let Partition {
            log,
            sequence,
            applied_to,
            ..
        } = &mut self.partitions[partition_index];
        let applied_to = (*applied_to).max(*sequence);
        let (sequence, losses) = (*sequence, log.losses.watched_count());
        let from_start = Reader {
            partition,
            start: 0,
            snapshot_end: 0,
            newest: ask.newest,
            losses_before: losses,
            has_gap: false,
            gets_retained: false,
            offset_when_asked: sequence,
        };
        let from_end = Reader {
            start: sequence,
            snapshot_end: sequence,
            ..from_start
        };
        match ask.since {
            Since::Default if !ask.poll => Reader {
                snapshot_end: sequence,
                gets_retained: true,
                ..from_start
            },
            Since::Live => from_end,
            Since::Newest(_) => Reader {
                snapshot_end: sequence,
                ..from_start
            },
            Since::Default | Since::Oldest => Reader {
                gets_retained: true,
                ..from_start
            },
            Since::After(time_s) => Reader {
                start: log.last_arrived_by(time_s),
                ..from_start
            },
            Since::At(Position { epoch, offset })
                if epoch == self.epoch && offset <= applied_to =>
            {
                if ask.is_next_page {
                    // A subscriber past its initial snapshot does not get the retained messages again.
                    let is_in_snapshot = ask.losses_before > 0
                        && (ask.snapshot_end == 0 || offset < ask.snapshot_end);
                    Reader {
                        start: offset,
                        snapshot_end: ask.snapshot_end,
                        losses_before: ask.losses_before,
                        gets_retained: is_in_snapshot && ask.newest == 0,
                        ..from_start
                    }
                } else {
                    Reader {
                        start: offset,
                        losses_before: 0,
                        ..from_start
                    }
                }
            }
            Since::Unreadable => Reader {
                has_gap: true,
                ..from_end
            },
            Since::At(_) | Since::Unknown => Reader {
                has_gap: true,
                gets_retained: true,
                ..from_start
            },
        }
    }
}
