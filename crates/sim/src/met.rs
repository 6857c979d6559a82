//! Counts of the events in a run. A run without any event of some kind has shown nothing about it, and fails.

use crore_broker::Stats;

/// One row is one line: the field, its kind and the events that it counts.
macro_rules! counts {
    ($($name:ident $kind:literal: $doc:literal;)*) => {
        /// Counts of one seed or of many.
        #[derive(Clone, Copy, Debug, Default, derive_more::AddAssign)]
        pub struct Met {
            /// The shards' own counts.
            pub stats: Stats,
            $(#[doc = $doc] pub $name: u64,)*
        }

        impl Met {
            /// Each kind by name.
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
    messages "messages": "Messages that subscribers got.";
    acknowledged "acknowledged": "Messages that were acknowledged.";
    polls "polls": "Long-polls that were answered with a message.";
    told_gaps "told gaps": "Gaps that subscribers were told of.";
    enveloped_gaps "enveloped gaps": "Those of the gaps that came as envelopes.";
    gone "deletes met": "Subscriptions that a delete ended.";
    refused "refusals": "Answers 503.";
    cuts "cuts": "Connections that were cut.";
    torn "torn sends": "Sends that took less than was offered.";
    retries "retries": "Publishes that were sent again.";
    replays "replays": "Answers that repeated a first one.";
    cursors "cursors": "Turns that ended with work left.";
    spent "spent turns": "Turns that left sockets unread, since they had published their share.";
    views "views": "Views of followers that were compared at rest.";
    interest "interest": "Events that followers of interest got.";
    sessions_resumed "sessions": "MQTT sessions that a client found again.";
    takeovers "takeovers": "MQTT connections that were told that another connection took over their session.";
    sent_again "sent again": "MQTT messages that came again.";
    dups "lost and again": "MQTT messages that were sent again after the first delivery was lost.";
    retained "retained": "Retained messages that came.";
    restarts "restarts": "Planned restarts.";
    kills "kills": "Crashes in which the kernel lived on.";
    power_cuts "power cuts": "Crashes in which it did not.";
    came_back "came back": "Batches that came back although no home had heard of them.";
    damages "damages": "Crashes that have harmed the disk.";
    touched "touched": "Partitions in which these were told.";
    untouched "untouched": "Other partitions of these logs.";
    put_back "put back": "Logs that were put back from an older copy.";
    branches "branches": "Subscribers whose position was behind the end of the copy.";
    bases "bases": "Bases that took the place of segments.";
    committed "committed": "Batches that an engine kept.";
    void "void": "Batches in an engine's log that do not count: duplicates, and those behind a gap.";
    appended_again "appended again": "Batches that were appended again.";
    shadows "shadows": "Shadows that had folded a whole log.";
    checkpoints "checkpoints": "Checkpoints of the log.";
    nodes_lost "nodes lost": "Nodes that were lost.";
    nodes_joined "joined by checkpoints": "Nodes that took the place of a lost one with checkpoints of the log.";
    purged "purged": "Batches of the log of several nodes that were purged, since checkpoints contain them.";
    nodes_cut "nodes cut off": "Nodes that were cut off from the log.";
    deaths "deaths": "Deaths of nodes in the log of a partition.";
    of_dead "of the dead": "Batches of nodes that were dead.";
    too_late "too late": "Batches that the log of several nodes stored too late: their messages are void.";
}

impl Met {
    /// The kinds that did not occur, but for those of worlds that only some ranges of seeds have.
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
