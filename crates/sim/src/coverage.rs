//! Counts the events in a run, by kind. The simulation, its network and its engine each have a [`Coverage`]; a run adds them. If a kind of event occurs in no seed of a search, the search has tested nothing about it and fails.

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
    recovered "recovered": "Subscriptions of Centrifugo's clients that lost nothing.";
    unrecovered "unrecovered": "Subscriptions of Centrifugo's clients that were told of a loss.";
    told_gaps "told gaps": "Gaps reported to subscribers.";
    enveloped_gaps "enveloped gaps": "Gaps reported in an envelope.";
    ended_by_delete "ended by delete": "Subscriptions ended by a delete of the topic.";
    refused "refusals": "Requests, publishes and connections that the server refused.";
    cuts "cuts": "Connections that were cut.";
    tcp_connections "TCP connections": "Connections over the product's own TCP.";
    tcp_retransmissions "TCP retransmissions": "Segments that this TCP retransmitted.";
    tcp_failures "TCP resets": "Connections over this TCP that were reset, since their other end was closed.";
    partial_sends "partial sends": "Sends of which the socket took only a part.";
    retries "retries": "Publishes that were sent again.";
    replays "replays": "Answers replayed for an idempotency key.";
    cursors "cursors": "Turns that ended with work left.";
    spent "spent turns": "Turns that left sockets unread because the turn had no publishes left.";
    views "views": "Followers whose topics were compared with the server's at the end.";
    interest "interest": "Interest events that followers received.";
    sessions_resumed "sessions": "MQTT sessions that a client resumed.";
    takeovers "takeovers": "MQTT connections closed because another connection took over the session.";
    sessions_recovered "recovered sessions": "MQTT sessions that a client resumed although the server had crashed during the session.";
    again_after_crash "again after crash": "MQTT messages that came again after a crash, since the log did not know that the client had them.";
    wills_after_crash "wills after crash": "Wills of connections that ended with the server, published by the next process.";
    sent_again "sent again": "MQTT messages that a client received again.";
    released "released": "MQTT messages of QoS 2 whose clients got PUBCOMP.";
    lost_first_sends "lost first sends": "MQTT messages with DUP that the client had not received before.";
    retained "retained": "Retained messages that clients received.";
    restarts "restarts": "Planned restarts.";
    process_kills "process kills": "Crashes of the process only.";
    power_cuts "power cuts": "Crashes of the machine.";
    unreported_batches "unreported batches": "Batches that were found in the log after a crash, although no home had learned that they were stored.";
    damages "damages": "Crashes that damaged the disk.";
    damaged_partitions "damaged partitions": "Partitions in which damage was reported.";
    intact_partitions "intact partitions": "Partitions of damaged logs in which no damage was reported.";
    log_restores "log restores": "Logs replaced by an older copy of the log.";
    lost_branches "lost branches": "Positions of subscribers past the end of an older copy that replaced the log.";
    bases "bases": "Compactions of a log: a new base (a checkpoint on disk) replaced segments.";
    partial_bases "partial bases": "Compactions that ended when only some documents of the last base were replaced.";
    committed "committed": "Batches that an engine stored, without the void ones.";
    void "void batches": "Stored batches that every reader skips: duplicates, and batches after a missing number.";
    appended_again "appended again": "Batches that were appended again.";
    log_replays "log replays": "Whole logs that another server replayed.";
    checkpoints "checkpoints": "Checkpoints of the log.";
    nodes_lost "nodes lost": "Nodes that were lost.";
    nodes_joined "joined by checkpoints": "Nodes that replaced a lost one and started from checkpoints.";
    purged "purged": "Batches purged from a cluster's log because checkpoints contain them.";
    nodes_cut "nodes cut off": "Nodes that were cut off from the log.";
    deaths "deaths": "Nodes declared dead, counted once for each partition.";
    from_dead_writers "from dead writers": "Batches of writers that had been declared dead.";
    too_late "too late": "Batches that a cluster's log stored too late: their messages have no effect.";
}

/// What a search among clusters with MQTT sessions need not have met: these worlds have no deletes, interest, retained messages, restarts or disks, and
/// messages that are sent again on one connection are rare.
const NOT_OF_CLUSTER_SESSIONS: [&str; 26] = [
    "recovered",
    "unrecovered",
    "TCP connections",
    "TCP retransmissions",
    "TCP resets",
    "ended by delete",
    "views",
    "interest",
    "wills after crash",
    "sent again",
    "retained",
    "restarts",
    "process kills",
    "power cuts",
    "unreported batches",
    "damages",
    "damaged partitions",
    "intact partitions",
    "log restores",
    "lost branches",
    "bases",
    "partial bases",
    "log replays",
    "checkpoints",
    "superseded",
    "expired",
];

impl Coverage {
    /// The kinds that did not occur in a search among clusters with MQTT sessions.
    pub fn missing_of_cluster_sessions(&self) -> Vec<&'static str> {
        self.missing_but(&NOT_OF_CLUSTER_SESSIONS)
    }

    /// The kinds that did not occur. Kinds that only some ranges of seeds can produce are left out.
    pub fn missing(&self) -> Vec<&'static str> {
        let optional = [
            "recovered",
            "unrecovered",
            "TCP connections",
            "TCP retransmissions",
            "TCP resets",
            "recovered sessions",
            "again after crash",
            "wills after crash",
            "nodes lost",
            "nodes cut off",
            "purged",
            "deaths",
            "from dead writers",
            "too late",
            "joined by checkpoints",
            "damages",
            "damaged partitions",
            "intact partitions",
            "partial bases",
            "log restores",
            "lost branches",
        ];
        self.missing_but(&optional)
    }

    /// The kinds that did not occur in a search among worlds with Centrifugo's clients.
    pub fn missing_of_centrifugo(&self) -> Vec<&'static str> {
        self.missing_and([
            ("recovered", self.recovered),
            ("unrecovered", self.unrecovered),
        ])
    }

    /// The kinds that did not occur in a search among worlds with connections over TCP.
    pub fn missing_of_tcp(&self) -> Vec<&'static str> {
        self.missing_and([
            ("TCP connections", self.tcp_connections),
            ("TCP retransmissions", self.tcp_retransmissions),
            ("TCP resets", self.tcp_failures),
        ])
    }

    fn missing_and<const N: usize>(&self, own: [(&'static str, u64); N]) -> Vec<&'static str> {
        let none = own.into_iter().filter(|(_, count)| *count == 0);
        let mut missing = self.missing();
        missing.extend(none.map(|(kind, _)| kind));
        missing
    }

    fn missing_but(&self, optional: &[&str]) -> Vec<&'static str> {
        let none = self.kinds().into_iter().filter(|(_, count)| *count == 0);
        let none = none.filter(|(kind, _)| !optional.contains(kind));
        none.map(|(kind, _)| kind).collect()
    }
}
