//! Counts of the events in a run. A run without any event of some kind has shown nothing about it, and fails.

use std::ops::AddAssign;

use crore_broker::Stats;

/// Counts of one seed or of many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    /// The shards' own counts.
    pub stats: Stats,
    /// Messages that subscribers got.
    pub messages: u64,
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// Long-polls that were answered with a message.
    pub polls: u64,
    /// Gaps that subscribers were told of.
    pub told_gaps: u64,
    /// Those of the gaps that came as envelopes.
    pub enveloped_gaps: u64,
    /// Subscriptions that a delete ended.
    pub gone: u64,
    /// Answers 503.
    pub refused: u64,
    /// Connections that were cut.
    pub cuts: u64,
    /// Sends that took less than was offered.
    pub torn: u64,
    /// Publishes that were sent again.
    pub retries: u64,
    /// Answers that repeated a first one.
    pub replays: u64,
    /// Turns that ended with work left.
    pub cursors: u64,
    /// Turns that left sockets unread, since they had published their share.
    pub spent: u64,
    /// Views of followers that were compared at rest.
    pub views: u64,
    /// Events that followers of interest got.
    pub interest: u64,
    /// MQTT sessions that a client found again.
    pub sessions_resumed: u64,
    /// MQTT connections that were told that another connection took over their session.
    pub takeovers: u64,
    /// MQTT messages that came again.
    pub sent_again: u64,
    /// MQTT messages that were sent again after the first delivery was lost.
    pub dups: u64,
    /// Retained messages that came.
    pub retained: u64,
    /// Planned restarts.
    pub restarts: u64,
    /// Crashes in which the kernel lived on.
    pub kills: u64,
    /// Crashes in which it did not.
    pub power_cuts: u64,
    /// Batches that came back although no home had heard of them.
    pub came_back: u64,
    /// Crashes that have harmed the disk.
    pub damages: u64,
    /// Partitions in which these were told.
    pub touched: u64,
    /// Other partitions of these logs.
    pub untouched: u64,
    /// Bases that took the place of segments.
    pub bases: u64,
    /// Batches that an engine kept.
    pub committed: u64,
    /// Batches in an engine's log that do not count: duplicates, and those behind a gap.
    pub void: u64,
    /// Batches that were appended again.
    pub appended_again: u64,
    /// Shadows that had folded a whole log.
    pub shadows: u64,
    /// Checkpoints of the log.
    pub checkpoints: u64,
    /// Nodes that were lost.
    pub nodes_lost: u64,
    /// Nodes that took the place of a lost one with checkpoints of the log.
    pub nodes_joined: u64,
    /// Nodes that were cut off from the log.
    pub nodes_cut: u64,
    /// Deaths of nodes in the log of a partition.
    pub deaths: u64,
    /// Batches of nodes that were dead.
    pub of_dead: u64,
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.stats += other.stats;
        for (sum, more) in [
            (&mut self.messages, other.messages),
            (&mut self.acknowledged, other.acknowledged),
            (&mut self.polls, other.polls),
            (&mut self.told_gaps, other.told_gaps),
            (&mut self.enveloped_gaps, other.enveloped_gaps),
            (&mut self.gone, other.gone),
            (&mut self.refused, other.refused),
            (&mut self.cuts, other.cuts),
            (&mut self.torn, other.torn),
            (&mut self.retries, other.retries),
            (&mut self.replays, other.replays),
            (&mut self.cursors, other.cursors),
            (&mut self.spent, other.spent),
            (&mut self.interest, other.interest),
            (&mut self.views, other.views),
            (&mut self.sessions_resumed, other.sessions_resumed),
            (&mut self.takeovers, other.takeovers),
            (&mut self.sent_again, other.sent_again),
            (&mut self.dups, other.dups),
            (&mut self.retained, other.retained),
            (&mut self.restarts, other.restarts),
            (&mut self.kills, other.kills),
            (&mut self.power_cuts, other.power_cuts),
            (&mut self.came_back, other.came_back),
            (&mut self.damages, other.damages),
            (&mut self.touched, other.touched),
            (&mut self.untouched, other.untouched),
            (&mut self.bases, other.bases),
            (&mut self.committed, other.committed),
            (&mut self.void, other.void),
            (&mut self.appended_again, other.appended_again),
            (&mut self.shadows, other.shadows),
            (&mut self.checkpoints, other.checkpoints),
            (&mut self.nodes_lost, other.nodes_lost),
            (&mut self.nodes_joined, other.nodes_joined),
            (&mut self.nodes_cut, other.nodes_cut),
            (&mut self.deaths, other.deaths),
            (&mut self.of_dead, other.of_dead),
        ] {
            *sum += more;
        }
    }
}

impl Met {
    /// Each kind by name.
    pub fn kinds(&self) -> [(&'static str, u64); 46] {
        [
            ("messages", self.messages),
            ("acknowledged", self.acknowledged),
            ("resumes", self.stats.resumes),
            ("gaps", self.stats.gaps),
            ("told gaps", self.told_gaps),
            ("detaches", self.stats.detaches),
            ("fallbacks", self.stats.fallbacks),
            ("credit waits", self.stats.credit_waits),
            ("pages waited", self.stats.pages_waited),
            ("polls", self.polls),
            ("enveloped gaps", self.enveloped_gaps),
            ("deletes met", self.gone),
            ("refusals", self.refused),
            ("cuts", self.cuts),
            ("torn sends", self.torn),
            ("retries", self.retries),
            ("replays", self.replays),
            ("superseded", self.stats.superseded),
            ("expired", self.stats.expired),
            ("cursors", self.cursors),
            ("spent turns", self.spent),
            ("interest", self.interest),
            ("views", self.views),
            ("sessions", self.sessions_resumed),
            ("takeovers", self.takeovers),
            ("sent again", self.sent_again),
            ("lost and again", self.dups),
            ("retained", self.retained),
            ("restarts", self.restarts),
            ("kills", self.kills),
            ("power cuts", self.power_cuts),
            ("came back", self.came_back),
            ("damages", self.damages),
            ("touched", self.touched),
            ("untouched", self.untouched),
            ("bases", self.bases),
            ("committed", self.committed),
            ("void", self.void),
            ("appended again", self.appended_again),
            ("shadows", self.shadows),
            ("checkpoints", self.checkpoints),
            ("nodes lost", self.nodes_lost),
            ("joined by checkpoints", self.nodes_joined),
            ("nodes cut off", self.nodes_cut),
            ("deaths", self.deaths),
            ("of the dead", self.of_dead),
        ]
    }

    /// The kinds that did not occur, but for those of worlds that only some ranges of seeds have.
    pub fn missing(&self) -> Vec<&'static str> {
        let of_some = [
            "nodes lost",
            "nodes cut off",
            "deaths",
            "of the dead",
            "joined by checkpoints",
            "damages",
            "touched",
            "untouched",
        ];
        let none = self.kinds().into_iter().filter(|(_, count)| *count == 0);
        let none = none.filter(|(kind, _)| !of_some.contains(kind));
        none.map(|(kind, _)| kind).collect()
    }
}
