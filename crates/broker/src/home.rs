//! The home of topics: the part of a shard that keeps the names, offsets and logs of its partitions' topics, and knows which carriers (shards with
//! subscribers) each topic has.
//!
//! Invariants:
//! * A topic's row lives while the topic has carriers or messages, and then until the topic has been idle for its rule's `position_age_s`. The row of an
//!   idle topic may be evicted earlier to make room for a new topic.
//! * When a row is freed, the floor of the topic's slot (one of 256 groups of topics, by the hash of their names) rises at least to the last offset of the
//!   topic. So a subscriber that resumes a forgotten topic from an old position gets a gap, the notice that messages are lost.
//! * Live messages (sent when they are published) and pages (runs of older messages) for one carrier arrive in order, because they share one
//!   lane, the ordered queue of mail to that shard.
//!
//! The home does not know connections: it addresses a carrier by the row that the carrier has for the topic, and by the serial of that row (the number of
//! times that the row was used). Each field of `Home` owns its data and does not use `Home`. The files with an `impl Home` connect the fields.

pub(crate) mod sessions;

mod accounting;
mod admit;
mod answers;
mod apply;
mod attach;
mod budget;
mod carriers;
mod compression;
mod context;
mod expiry;
mod filter_pages;
mod filters;
mod follow;
mod followers;
mod forgotten_topics;
mod future_pages;
mod gaps;
mod group_positions;
mod groups;
mod idempotence;
mod idle_topics;
mod info;
mod interest;
mod logs;
mod newest_claims;
mod operator;
mod page_queue;
mod partition;
mod planned_rules;
mod presence;
mod presence_requests;
mod publish;
pub(crate) mod qos_retention;
mod qos_subscriptions;
mod read_pages;
pub(crate) mod refused_wills;
mod reload;
mod remote_interest;
mod replicated;
mod reports;
mod reservations;
mod retained;
pub(crate) mod retired_tokens;
pub(crate) mod session_terms;
mod shadow;
mod shard_filters;
mod share_groups;
mod snapshot;
mod subscribers;
mod subscriptions;
pub(crate) mod takeovers;
mod topic_pages;
mod topic_row;
mod topics;
pub(crate) mod unreleased;

use alloc::boxed::Box;

use crate::base::ids::ShardId;
use crate::base::placement::Placement;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::turn_limits::{PREFETCH_ROWS, TurnLimits};
use crate::base::work::Steps;
use crate::budget::admission::Admission;
use crate::budget::stats::Stats;
use crate::budget::world::World;
use crate::filters::matching::Matching;
pub(crate) use crate::home::answers::AnswerCursor;
use crate::home::answers::Retries;
use crate::home::compression::MessageCompressor;
pub(crate) use crate::home::context::HomeContext;
pub(crate) use crate::home::group_positions::{DuePosition, GroupKey};
pub(crate) use crate::home::groups::{GroupJoin, bytes_alone as group_bytes_alone};
use crate::home::interest::TopicInterest;
use crate::home::logs::Logs;
use crate::home::page_queue::PageQueue;
use crate::home::presence::Presence;
pub(crate) use crate::home::qos_subscriptions::bytes_alone as filter_bytes_alone;
pub use crate::home::remote_interest::STREAMS;
use crate::home::reports::Reports;
pub(crate) use crate::home::reservations::Reservation;
pub use crate::home::shard_filters::SEPARATOR;
use crate::home::subscriptions::Subscriptions;
pub(crate) use crate::home::topic_row::RestoredTopic;
use crate::home::topics::TopicTable;
use crate::log;
use crate::store::index::Chained as _;
use crate::store::slab::NONE;

/// The message for `expect`: only shards with a home receive asks, the requests of carriers to homes.
pub(crate) const ONLY_HOMES_ARE_ASKED: &str = "only homes are asked";

/// The topics of all partitions that this shard keeps.
pub struct Home {
    pub(crate) topics: TopicTable,
    pub(crate) logs: Logs,
    pub(crate) subscriptions: Subscriptions,
    /// Followers (connections that are told which topics have subscribers), and topics that have subscribers at other nodes.
    pub(crate) interest: TopicInterest,
    /// The members of topics; `None` before the first request about members.
    presence: Option<Box<Presence>>,
    /// The writer number with which this process began; 0 outside a cluster.
    process: u64,
    /// The number of pages that were sent to watchers of members in this turn.
    presence_pages: usize,
    presence_page_bytes: usize,
    /// The first answer to each idempotency key.
    pub(crate) retries: Retries,
    /// Pages that subscribers, groups and followers wait for.
    pub(crate) page_queue: PageQueue,
    pub(crate) reports: Reports,
    compressor: MessageCompressor,
    pub turn_limits: TurnLimits,
    /// The steps of work that all parts of the home have done since the start.
    steps: Steps,
    admission: Admission,
}

impl Home {
    /// An empty home for shard `me`.
    pub(crate) fn for_world(world: &World, me: ShardId) -> Self {
        let mut home = Home::new(
            &world.settings,
            &world.rules,
            world.admission.clone(),
            world.epoch,
            world.placement(),
            me,
            world.seed,
        );
        if world.appends() {
            let partitions = home.logs.partitions.iter_mut();
            partitions.for_each(|it| it.log.losses.keep_earlier());
        }
        if world.is_replicated() {
            home.process = world.writer.unwrap_or_default();
            home.set_replicated();
        }
        home
    }

    /// An empty home for shard `me`. `admission` counts each client's topics. The homes of `placement` share the limits of topics and of the logs'
    /// bytes. `epoch` is the epoch of this start of the server, and `seed` keys all hashes.
    pub fn new(
        settings: &Settings,
        rules: &Rules,
        admission: Admission,
        epoch: u32,
        placement: Placement,
        me: ShardId,
        seed: u64,
    ) -> Self {
        let steps = Steps::default();
        let homes = usize::from(placement.homes());
        let topics_max = settings.limits.topics_per_home(homes);
        let log_bytes_max = settings.limits.log_bytes / homes;
        Home {
            topics: TopicTable::new(topics_max, rules.count(), admission.clone(), seed),
            logs: Logs::new(
                rules,
                placement,
                me,
                log_bytes_max,
                (epoch, seed),
                &admission,
                &steps,
            ),
            subscriptions: Subscriptions::new(
                seed,
                placement.count_at(me),
                settings.mqtt.durable_sessions,
                &steps,
            ),
            interest: TopicInterest::new(settings.interest.debounce_s),
            presence: None,
            process: 0,
            presence_pages: 0,
            presence_page_bytes: 0,
            retries: Retries::new(seed, placement.count_at(me), admission.clone()),
            page_queue: PageQueue::new(&steps),
            reports: Reports::default(),
            compressor: MessageCompressor::new(admission.clone(), &steps),
            turn_limits: TurnLimits::default(),
            steps,
            admission,
        }
    }

    /// Whether the home has no topics, filters, shared subscriptions or members.
    pub fn is_idle(&self) -> bool {
        self.topics.rows.len() == 0
            && self.subscriptions.filters.is_empty()
            && self.subscriptions.groups.is_empty()
            && self.presence.as_ref().is_none_or(|it| it.is_empty())
    }

    pub fn stats(&self) -> Stats {
        Stats {
            attaches: self.topics.carriers.attaches,
            detaches: self.topics.carriers.detaches,
            pages_waited: self.page_queue.queued_count,
            superseded: self
                .logs
                .iter()
                .map(|log| log.removal_counts.superseded)
                .sum(),
            expired: self.logs.iter().map(|log| log.removal_counts.expired).sum(),
            ..self.reports.stats
        }
    }

    /// Whether the tables of this home and of the filters of the shard's connections are too large for the CPU's cache. Then
    /// [`prefetch`](Home::prefetch) saves time.
    pub fn is_large(&self, local_filters: &Matching) -> bool {
        let rows = self.topics.rows.len()
            + self.subscriptions.filters.len()
            + self.subscriptions.qos.filter_count();
        rows as usize + local_filters.len() >= self.turn_limits.prefetch_from_rows
    }

    /// Prefetches the memory that publishes to these topics will read: rows, names, the ends of logs, and the tries of filters. The reads of
    /// different topics do not depend on each other, so their cache misses overlap. Handles at most [`PREFETCH_ROWS`] topics.
    pub fn prefetch(&self, topics: &[(u32, &[u8])], local_filters: &Matching) {
        let mut ids = [NONE; PREFETCH_ROWS];
        for (id, (hash, _)) in ids.iter_mut().zip(topics) {
            *id = self.topics.index.first(*hash).unwrap_or(NONE);
        }
        // Hash chains rarely have more than two rows.
        for _ in 0..2 {
            for (id, (hash, _)) in ids.iter_mut().zip(topics) {
                if *id != NONE && self.topics.rows.get(*id).hash != *hash {
                    *id = self.topics.rows.get(*id).next();
                }
            }
        }
        let found = ids.iter().filter(|id| **id != NONE);
        // A row of 40 bytes often spans two cache lines, so both ends are read.
        let touch = |sum, id: &u32| {
            let row = self.topics.rows.get(*id);
            sum ^ self.topics.names.get(row.name).len() ^ row.flags as usize
        };
        core::hint::black_box(found.clone().fold(0, touch));
        log::prefetch::for_appends(found.map(|id| {
            (
                &self.logs.partitions[self.topic_partition_index(*id)].log,
                self.topics.rows.get(*id).chain,
            )
        }));
        let names = topics.iter().map(|(_, name)| *name);
        local_filters.prefetch(names.clone());
        self.subscriptions.filters.prefetch(names.clone());
        self.subscriptions.groups.prefetch(names.clone());
        self.subscriptions.qos.prefetch(names);
    }
}
