//! Reads the queued pages of a home (the part of a shard that keeps topics), as far as the budget of the turn (a pass of the shard's loop)
//! goes. A page is a bounded run of past messages for one subscriber.
//!
//! Reading one page examines at most [`TurnLimits::page_entries`](crate::base::turn_limits::TurnLimits::page_entries) log entries. A page that is not
//! complete by then is queued again with its progress. So a subscriber that reads many old messages delays others by one page at a time. The parties
//! (addresses and users) have fair shares, so a thousand subscribers of one address delay others no more than one subscriber. Publishes do not wait for
//! pages.
//!
//! Invariants:
//! * While the first page of a subscription waits, the subscriber is already counted, and its filter is registered: later requests from the same
//!   shard rely on both.
//! * A page marked `at_head` is sent in the step that reads it, so no message is missed between the page and the live messages.

use super::Home;
use super::context::HomeContext;
use super::page_queue::{DeferredPage, PageQueue, PendingPage, Reader, SharedFilterNames};
use super::shard_filters::split;
use super::topic_row::DELETED;
use crate::base::ids::ShardId;
use crate::base::turn_limits::TurnLimits;
use crate::base::work::{STEP_BYTES, Steps};
use crate::budget::admission::Party;
use crate::mail::{Attach, AttachFilters, ReplyTo};

impl Home {
    /// Counts the steps of work since the start.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Heap bytes of all pages that wait.
    #[inline]
    pub fn pages_bytes(&self) -> usize {
        self.page_queue.bytes() + self.logs.future_pages.as_ref().map_or(0, |it| it.bytes())
    }

    /// Ends the turn: the next turn has a new budget for pages.
    pub fn end_turn(&mut self) {
        self.page_queue.end_turn(self.steps.count());
        self.reset_watch_limits();
    }

    /// Reads the next page; returns false if none may be read now.
    pub(crate) fn read_queued_page(&mut self, context: &mut HomeContext<'_>) -> bool {
        let Some(page) = self.page_queue.pop(context.lanes) else {
            return false;
        };
        let steps_before = self.steps.count();
        let large_bytes_before = context.lanes.frames().large_page_bytes;
        self.steps.add(1);
        self.read_pending(page, context);
        let steps_done = self.steps.count() - steps_before;
        // A large message is not copied here, but its delivery is work for the subscriber's shard. The page's party is charged for this work here.
        let large_bytes = context.lanes.frames().large_page_bytes - large_bytes_before;
        self.page_queue
            .charge(steps_done + (large_bytes / STEP_BYTES) as u64);
        true
    }

    fn read_pending(&mut self, page: PendingPage, context: &mut HomeContext<'_>) {
        match page {
            PendingPage::Topic {
                from,
                ask,
                name,
                progress,
                is_counted: false,
            } => self.attach(from, &ask, &name, Some(progress), context),
            PendingPage::Topic {
                from,
                ask,
                name,
                progress,
                is_counted: true,
            } => {
                let found = self.topics.find(ask.hash, &name);
                match found.filter(|id| !self.topics.rows.get(*id).has(DELETED)) {
                    Some(id) => {
                        self.send_page_to_counted(id, from, &ask, &name, progress, context);
                    }
                    // The topic was deleted meanwhile: the subscription ends as if the page had been sent before the deletion.
                    None => self.end_deleted_subscription(from, &ask, &name, context),
                }
            }
            PendingPage::Filters {
                from,
                ask,
                names,
                reader,
            } => {
                let filters = split(&names.text);
                if !self.send_filter_page(from, &ask, &filters, reader, context) {
                    self.page_queue
                        .queue_filters(from, &ask, names, reader, true);
                }
            }
            PendingPage::Group(id, _) => self.deliver_to_group(id, context),
            PendingPage::LateGroups => self.wake_late_groups(),
            PendingPage::Interest(shard, to, _) => self.read_next_page(shard, to),
        }
    }
}

impl PageQueue {
    /// Whether a new page must be queued, because other pages wait or the home has used half of a turn's steps.
    pub(super) fn must_queue(&self, turn_limits: &TurnLimits) -> bool {
        let spent = self.steps_of_turn(self.steps.count());
        self.has_unthrottled() || spent >= u64::from(turn_limits.steps_per_turn) / 2
    }

    pub(super) fn queue_topic(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        deferred: DeferredPage,
        counted: bool,
    ) {
        self.queued_count += 1;
        let page = PendingPage::Topic {
            from,
            ask: *ask,
            name: name.into(),
            progress: deferred.progress,
            is_counted: counted,
        };
        self.queue(page, deferred.is_large);
    }

    pub(super) fn queue_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        names: SharedFilterNames,
        reader: Reader,
        is_large: bool,
    ) {
        self.queued_count += 1;
        let page = PendingPage::Filters {
            from,
            ask: *ask,
            names,
            reader,
        };
        self.queue(page, is_large);
    }

    fn queue(&mut self, page: PendingPage, is_large: bool) {
        match is_large {
            true => self.push_large(page),
            false => self.push(page),
        }
    }

    pub(super) fn queue_group(&mut self, id: u64, party: Party) {
        self.push(PendingPage::Group(id, party));
    }

    pub(super) fn queue_late_groups(&mut self) {
        self.push(PendingPage::LateGroups);
    }

    pub(super) fn queue_interest(&mut self, shard: ShardId, to: ReplyTo, party: Party) {
        self.push(PendingPage::Interest(shard, to, party));
    }
}
