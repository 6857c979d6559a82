//! An attach is a request to subscribe to a topic. The topic's home (the part of a shard that keeps the topic) answers it with a page (a bounded run) of
//! the messages that the subscriber has missed, and registers the subscriber for live messages, those published from now on.
//!
//! Invariant: the home reads the page and registers the subscriber in one call, so no message is published between the two. Page and live messages use
//! the same lane (an ordered queue of mail to one shard), so the page arrives first.

use crore_wire::topic;

use super::Home;
use super::carriers::Carrier;
use super::context::HomeContext;
use super::page_queue::{PendingPage, SearchProgress};
use super::topic_row::{CREATED, DELETED, HAS_RETAINED, REQUESTED, WANTS_DEFLATE};
use crate::base::ids::ShardId;
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::settings::{Concurrency, RetentionMode, Rule, StartPosition};
use crate::base::work::page_visits;
use crate::mail::lanes::Lanes;
use crate::mail::{Attach, AttachOutcome, Page, Tell};

impl Home {
    /// Answers an attach with a page of past messages, or queues the page if other pages wait. Registers the carrier (the subscriber's shard) for live
    /// messages. An attach that was queued before is passed with the `progress` of the search for its first message.
    pub(crate) fn attach(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        progress: Option<SearchProgress>,
        context: &mut HomeContext<'_>,
    ) {
        self.steps.add(1);
        let (rules, now) = (context.rules, context.now);
        let partition_index =
            usize::from(self.logs.partition_index_by_slot[usize::from(topic::slot(name))]);
        let ask = &Attach {
            since: self.logs.to_current_life(ask.since, partition_index),
            ..*ask
        };
        if let Some(offset) = self.logs.offset_to_wait_for(ask.since, partition_index) {
            let pending_page = PendingPage::Topic {
                from,
                ask: *ask,
                name: name.into(),
                progress: SearchProgress::Unknown,
                is_counted: false,
            };
            return self.wait_for_log(pending_page, partition_index, offset);
        }
        let must_queue = progress.is_none() && self.page_queue.must_queue(&self.turn_limits);
        // A long-poll counts as a subscriber only when it has found no message and waits. A request for a next page comes from a subscriber that was
        // counted before.
        let counts_subscriber = !ask.is_next_page && !ask.poll;
        if must_queue && !counts_subscriber {
            return self.page_queue.queue_topic(
                from,
                ask,
                name,
                SearchProgress::Unknown.into(),
                false,
            );
        }
        if ask.read_only && self.topics.find(ask.hash, name).is_none() {
            let page = self.logs.empty_page(ask, name, rules);
            return tell_page(from, ask, page, context.lanes);
        }
        let id = match self.row_for_subscriber(ask, name, context) {
            Ok(id) => id,
            Err(outcome) => {
                return self.send_refusal(from, ask, name, outcome, context.lanes);
            }
        };
        if must_queue && !self.has_nothing_to_read(id, ask, rules) {
            self.count_subscriber(id, from, ask);
            // The page is read later, and only then do the live messages of this subscription begin. Until then another subscription of the same client
            // may deliver them.
            return self.page_queue.queue_topic(
                from,
                ask,
                name,
                SearchProgress::Unknown.into(),
                true,
            );
        }
        let progress = progress.unwrap_or(SearchProgress::Unknown);
        match self.try_read_page(id, ask, progress, context) {
            Ok(mut page) => {
                // A long-poll that gets its message at once does not wait, so it does not count as a subscriber.
                let is_answered = ask.poll && page.count > 0;
                page.counted = !ask.is_next_page && !is_answered;
                if page.counted {
                    self.count_subscriber(id, from, ask);
                }
                tell_page(from, ask, page, context.lanes);
            }
            Err(later) => {
                if counts_subscriber {
                    self.count_subscriber(id, from, ask);
                }
                self.page_queue
                    .queue_topic(from, ask, name, later, counts_subscriber);
            }
        }
        self.queue_if_idle(id, now);
    }

    /// Sends a subscriber that is counted already the page that it waits for, or queues the page again.
    pub(super) fn send_page_to_counted(
        &mut self,
        id: u32,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        progress: SearchProgress,
        context: &mut HomeContext<'_>,
    ) {
        match self.try_read_page(id, ask, progress, context) {
            Ok(mut page) => {
                page.counted = true;
                tell_page(from, ask, page, context.lanes);
            }
            Err(later) => self.page_queue.queue_topic(from, ask, name, later, true),
        }
    }

    /// Ends a subscription whose topic was deleted while the counted subscriber waited for its page.
    pub(super) fn end_deleted_subscription(
        &mut self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        context: &mut HomeContext<'_>,
    ) {
        self.remove_subscriber(from, ask.hash, ask.topic, ask.serial, context.now);
        self.send_refusal(from, ask, name, AttachOutcome::Gone, context.lanes);
    }

    fn send_refusal(
        &self,
        from: ShardId,
        ask: &Attach,
        name: &[u8],
        outcome: AttachOutcome,
        lanes: &mut Lanes,
    ) {
        let topic_id = self.topics.find(ask.hash, name);
        let last = topic_id.map_or(0, |id| self.topics.rows.get(id).last_offset());
        let page = Page {
            attached: outcome,
            head: last,
            last,
            epoch: self.logs.epoch,
            at_head: true,
            is_next_page: ask.is_next_page,
            only_retained: ask.is_next_page && ask.retained,
            ..Page::default()
        };
        tell_page(from, ask, page, lanes);
    }

    /// Whether the subscriber need not read anything from the log.
    fn has_nothing_to_read(&self, id: u32, ask: &Attach, rules: &Rules) -> bool {
        let row = self.topics.rows.get(id);
        let is_empty = self.logs.message_count(row) == 0 && !row.has(HAS_RETAINED);
        is_empty || !ask.retained && first_position(ask, rules.get(row.rule)) == Since::Live
    }

    fn count_subscriber(&mut self, id: u32, from: ShardId, ask: &Attach) {
        let carrier = Carrier {
            shard: from,
            serial: ask.serial,
            carrier_row: ask.topic,
            subscribers: 1,
        };
        self.add_subscriber(id, carrier);
    }

    /// The topic's row, created if necessary, or the reason why the subscription is refused.
    fn row_for_subscriber(
        &mut self,
        ask: &Attach,
        name: &[u8],
        context: &mut HomeContext<'_>,
    ) -> Result<u32, AttachOutcome> {
        let (rules, now) = (context.rules, context.now);
        let topic_id = self.topics.find(ask.hash, name);
        let rule = match topic_id {
            Some(id) => rules.get(self.topics.rows.get(id).rule),
            None => rules.get(rules.number_for(name)),
        };
        let created = topic_id.is_some_and(|id| self.topics.rows.get(id).has(CREATED));
        if rule.publisher_creates && !created {
            return Err(AttachOutcome::Forbidden);
        }
        let id = match topic_id {
            Some(id) => id,
            None => {
                self.admit_topic(ask.hash, name, ask.client, now)
                    .map_err(AttachOutcome::NoRoom)?;
                self.insert_topic(ask.hash, name, ask.client, rules, now)
            }
        };
        let row = self.topics.rows.get_mut(id);
        let deletion = Since::At(Position::new(self.logs.epoch, row.last_offset()));
        if ask.read_only && row.has(DELETED) {
            // Nothing was published since the deletion, and reading must not create the topic again.
            return match ask.since == deletion {
                true => Ok(id),
                false => Err(AttachOutcome::Gone),
            };
        }
        row.last_used_s = now.unix_s;
        row.flags |= REQUESTED;
        if row.has(DELETED) {
            match ask.since {
                // The subscriber knows of the deletion, since its position is after it. The topic exists again.
                since if since == deletion => row.flags &= !DELETED,
                Since::At(_) | Since::Unknown | Since::Unreadable | Since::After(_) => {
                    return Err(AttachOutcome::Gone);
                }
                // A long-poll that was waiting when the topic was deleted must not create the topic again.
                _ if ask.poll && ask.is_next_page => return Err(AttachOutcome::Gone),
                _ => row.flags &= !DELETED,
            }
        }
        if ask.is_next_page {
            return Ok(id);
        }
        if ask.poll
            && rule.concurrency != Concurrency::Broadcast
            && self.topics.subscriber_count(id) > 0
        {
            if rule.concurrency == Concurrency::First {
                return Err(AttachOutcome::Conflict);
            }
            self.topics.for_each_carrier(id, |carrier| {
                let tell = Tell::Displaced {
                    topic: carrier.carrier_row,
                    serial: carrier.serial,
                };
                context.lanes.tell(carrier.shard, tell);
            });
        }
        if ask.deflate {
            self.topics.rows.get_mut(id).flags |= WANTS_DEFLATE;
        }
        Ok(id)
    }
}

fn tell_page(from: ShardId, ask: &Attach, page: Page, lanes: &mut Lanes) {
    let (topic, to) = (ask.topic, ask.to);
    lanes
        .frames()
        .visits_by_group
        .add(ask.party, page_visits(page.count));
    lanes.tell(from, Tell::Page { topic, to, page });
}

/// Where the subscription begins: at the position in the request, or else at the rule's default.
pub(super) fn first_position(ask: &Attach, rule: &Rule) -> Since {
    let first_position = match (rule.first, ask.poll) {
        (StartPosition::ByTransport, true) | (StartPosition::Oldest, _) => Since::Oldest,
        (StartPosition::ByTransport, false) if rule.keep == RetentionMode::Latest => Since::Oldest,
        (StartPosition::ByTransport, false) | (StartPosition::Live, _) => Since::Live,
        (StartPosition::Newest(n), _) => Since::Newest(n),
    };
    match ask.since {
        Since::Default => first_position,
        since => since,
    }
}
