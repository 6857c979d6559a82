//! Counts of the events in a run, by kind. If a kind never occurs, the run has tested nothing about it and fails.

use crore_broker::Stats;

/// One line per count: the field, its printed name, and what it counts.
macro_rules! counts {
    ($($name:ident $kind:literal: $doc:literal;)*) => {
        /// Counts of one seed or of many.
        #[derive(Clone, Copy, Debug, Default, derive_more::AddAssign)]
        pub struct Coverage {
            /// Counts kept by the shards.
            pub stats: Stats,
            $(#[doc = $doc] pub $name: u64,)*
        }

        impl Coverage {
            /// All counts by printed name.
            pub fn kinds(&self) -> Vec<(&'static str, u64)> {
                let mut kinds = vec![$(($kind, self.$name),)*];
                kinds.extend([
                    ("resumes", self.stats.resumes),
                    ("gaps", self.stats.gaps),
                    ("detaches", self.stats.detaches),
                    ("fallbacks", self.stats.fallbacks),
                    ("credit waits", self.stats.credit_waits),
                    ("pages waited", self.stats.pages_waited),
                    ("superseded", self.stats.superseded),
                    ("expired", self.stats.expired),
                ]);
                kinds
            }
        }
    };
}

#[rustfmt::skip]
counts! {
    messages "messages": "Messages that subscribers received.";
    acknowledged "acknowledged": "Messages that were acknowledged.";
    polls "polls": "Long-polls answered with a message.";
    told_gaps "told gaps": "Gaps reported to subscribers.";
    enveloped_gaps "enveloped gaps": "Gaps reported in an envelope.";
    gone "deletes met": "Subscriptions ended by a delete of the topic.";
    refused "refusals": "Requests, publishes and connections that the server refused.";
    cuts "cuts": "Connections that were cut.";
    torn "torn sends": "Sends of which the socket took only a part.";
    retries "retries": "Publishes that were sent again.";
    replays "replays": "Answers replayed for an idempotency key.";
    cursors "cursors": "Turns that ended with work left.";
    spent "spent turns": "Turns that left sockets unread because the turn's publishes were used up.";
    views "views": "Views of followers that were compared at the end.";
    interest "interest": "Interest events that followers received.";
    sessions_resumed "sessions": "MQTT sessions that a client resumed.";
    takeovers "takeovers": "MQTT connections closed because another connection took over the session.";
    sent_again "sent again": "MQTT messages that a client received again.";
    dups "lost and again": "MQTT messages with DUP whose first delivery was lost.";
    retained "retained": "Retained messages that clients received.";
    restarts "restarts": "Planned restarts.";
    kills "kills": "Crashes of the process only.";
    power_cuts "power cuts": "Crashes of the machine.";
    came_back "came back": "Batches found after a crash although no home had been told of them.";
    damages "damages": "Crashes that damaged the disk.";
    touched "touched": "Partitions in which damage was reported.";
    untouched "untouched": "The other partitions of damaged logs.";
    put_back "put back": "Logs replaced by an older copy.";
    branches "branches": "Subscribers with a position past the end of such a copy.";
    bases "bases": "Bases that replaced segments.";
    committed "committed": "Batches that an engine stored and that count.";
    void "void": "Stored batches that do not count: duplicates, and batches behind a missing number.";
    appended_again "appended again": "Batches that were appended again.";
    shadows "shadows": "Shadows that folded a whole log.";
    checkpoints "checkpoints": "Checkpoints of the log.";
    nodes_lost "nodes lost": "Nodes that were lost.";
    nodes_joined "joined by checkpoints": "Nodes that replaced a lost one and started from checkpoints.";
    purged "purged": "Batches purged from a cluster's log because checkpoints contain them.";
    nodes_cut "nodes cut off": "Nodes that were cut off from the log.";
    deaths "deaths": "Nodes declared dead, per partition.";
    of_dead "of the dead": "Batches of writers that had been declared dead.";
    too_late "too late": "Batches that a cluster's log stored too late: their messages are void.";
}

impl Coverage {
    /// The kinds that did not occur. Kinds that only some ranges of seeds can produce are left out.
    pub fn missing(&self) -> Vec<&'static str> {
        let of_some = [
            "nodes lost",
            "nodes cut off",
            "purged",
            "deaths",
            "of the dead",
            "too late",
            "joined by checkpoints",
            "damages",
            "touched",
            "untouched",
            "put back",
            "branches",
        ];
        let none = self.kinds().into_iter().filter(|(_, count)| *count == 0);
        let none = none.filter(|(kind, _)| !of_some.contains(kind));
        none.map(|(kind, _)| kind).collect()
    }
}
