//! Pages that wait to be read, since a turn had no time for them. The addresses and users that asked share the work.
//!
//! Each reading is a unit of its own: it looks at [`Pace::page_visits`](crate::base::pace::Pace::page_visits) entries
//! at most and ends with a page, or goes behind the others again with what it has found so far. So a subscriber that
//! reads far back holds up others for no longer than a unit at a time, and a thousand of one address no longer than one of them.
//! Publishes do not wait for page_queue.
//!
//! Invariants: a subscriber that waits for the first page of a topic is counted already, and a filter is registered
//! already, so that the asks behind it in the lane find both; the page that is marked `at_head` is told as it is read,
//! so that no message falls between.

use super::Home;
use super::context::HomeContext;
use super::page_queue::{Deferred, PageQueue, PendingPage, Reader, SharedFilterNames};
use super::shard_filters::split;
use super::topic_row::DELETED;
use crate::base::ids::ShardId;
use crate::base::pace::Pace;
use crate::base::work::{STEP_BYTES, Steps};
use crate::budget::admission::Party;
use crate::mail::{Attach, AttachFilters, ReplyTo};

impl Home {
    /// The work that it has done since it began.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Bytes that their queue occupies.
    pub fn pages_bytes(&self) -> usize {
        self.page_queue.bytes() + self.logs.future_pages.as_ref().map_or(0, |it| it.bytes())
    }

    /// The turn is over: the next one may read as much again.
    pub fn end_turn(&mut self) {
        self.page_queue.end_turn(self.steps.count());
    }

    /// Reads the page whose turn it is; says whether there was one.
    pub(crate) fn read_next(&mut self, context: &mut HomeContext<'_>) -> bool {
        let Some(reading) = self.page_queue.pop(context.lanes) else {
            return false;
        };
        let before = self.steps.count();
        let large = context.lanes.frames().large_pages;
        self.steps.add(1);
        self.read(reading, context);
        let did = self.steps.count() - before;
        // A large message is not copied here, but its party has a carrier's work done for it.
        let large = context.lanes.frames().large_pages - large;
        self.page_queue.did(did + (large / STEP_BYTES) as u64);
        true
    }

    fn read(&mut self, reading: PendingPage, context: &mut HomeContext<'_>) {
        match reading {
            PendingPage::Topic {
                from,
                ask,
                name,
                place,
                counted: false,
            } => self.attach(from, &ask, &name, Some(place), context),
            PendingPage::Topic {
                from,
                ask,
                name,
                place,
                counted: true,
            } => {
                let found = self.topics.find(ask.hash, &name);
                match found.filter(|id| !self.topics.rows.get(*id).has(DELETED)) {
                    Some(id) => {
                        self.read_topic(id, from, &ask, &name, place, context);
                    }
                    // Deleted since: the subscriber goes as if it had got its page before the deletion.
                    None => self.end_waiting(from, &ask, &name, context),
                }
            }
            PendingPage::Filters {
                from,
                ask,
                names,
                reader,
            } => {
                let filters = split(&names.text);
                if !self.tell_match_page(from, &ask, &filters, reader, context) {
                    self.page_queue
                        .queue_filters(from, &ask, names, reader, true);
                }
            }
            PendingPage::Group(id, _) => self.pump(id, context),
            PendingPage::LateGroups => self.subscriptions.wake_late(&mut self.page_queue),
            PendingPage::Interest(shard, to, _) => {
                self.interest.next_page(&self.topics, &self.pace, shard, to)
            }
        }
    }
}

impl PageQueue {
    /// Whether a page has to wait: for others, or for the next turn, since half of this one's budget is spent here.
    pub(super) fn must_queue(&self, pace: &Pace) -> bool {
        let spent = self.spent(self.steps.count());
        !self.is_empty() || spent >= u64::from(pace.steps_per_turn) / 2
    }

    pub(super) fn queue_topic(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        later: Deferred,
        counted: bool,
    ) {
        self.waited += 1;
        let reading = PendingPage::Topic {
            from,
            ask: *ask,
            name: name.into(),
            place: later.place,
            counted,
        };
        self.queue(reading, later.is_large);
    }

    pub(super) fn queue_filters(
        &mut self,
        from: ShardId,
        ask: &AttachFilters,
        names: SharedFilterNames,
        reader: Reader,
        is_large: bool,
    ) {
        self.waited += 1;
        let reading = PendingPage::Filters {
            from,
            ask: *ask,
            names,
            reader,
        };
        self.queue(reading, is_large);
    }

    /// Queues a page, which may begin with a large message.
    fn queue(&mut self, reading: PendingPage, is_large: bool) {
        match is_large {
            true => self.push_large(reading),
            false => self.push(reading),
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
