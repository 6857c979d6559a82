//! Collects the results of a run's threads, and reports them.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use super::client_thread::ClientThreadResult;
use super::proxy::ProxyCounts;
use super::publishers::PublishersResult;
use super::shared_state::SharedState;
use crate::report;

#[derive(Default)]
pub struct RunResult {
    pub clients: ClientThreadResult,
    pub proxies: ProxyCounts,
    pub publishers: PublishersResult,
}

impl RunResult {
    /// How many publishes have begun, answered or not.
    pub fn begun_publishes(&self, shared: &SharedState) -> u64 {
        let counters = shared.begun_counts.iter();
        counters.map(|count| u64::from(count.load(Relaxed))).sum()
    }

    /// Whether every promise was kept.
    pub fn is_clean(&self, shared: &SharedState) -> bool {
        let totals = &self.clients.totals;
        totals.counts.is_clean()
            && totals.corrupt + totals.misdelivered + totals.moved == 0
            && self.violations().next().is_none()
            && self.publishers.acknowledged == self.begun_publishes(shared)
    }

    fn violations(&self) -> impl Iterator<Item = &String> {
        self.clients
            .violations
            .iter()
            .chain(&self.publishers.violations)
    }

    /// Prints the faults that have a description. Others are only counted in the result.
    pub fn print_faults(&self) {
        for reason in self.violations().chain(&self.clients.totals.descriptions) {
            report::say(reason);
        }
    }

    /// All counts, for the result.
    pub fn json(&self, shared: &SharedState) -> Value {
        let (clients, totals) = (&self.clients, &self.clients.totals);
        let counts = &totals.counts;
        json!({
            "clean": self.is_clean(shared),
            "published": self.begun_publishes(shared),
            "publishers": self.publishers,
            "clients": {
                "opened": totals.answered_connections,
                "resumed": totals.resumed,
                "lost_connections": clients.lost_connections,
                "ended_by_the_server": totals.ended,
                "closed_4412": totals.closed_for_gap,
                "turned_away": totals.turned_away,
                "subscription_changes": totals.subscription_changes,
                "empty_polls": totals.empty_polls,
                "complete_at_the_end": shared.complete_clients.load(Relaxed),
            },
            "messages": counts.messages,
            "silent_losses": counts.silent_losses,
            "doubles": counts.doubles,
            "disorders": counts.disorders,
            "told_gaps": counts.told_gaps,
            "told_losses": counts.told_losses,
            "false_gaps": counts.false_gaps,
            "corrupt": totals.corrupt,
            "misdelivered": totals.misdelivered,
            "moved": totals.moved,
            "broken": totals.descriptions,
            "violations": self.violations().collect::<Vec<_>>(),
        })
    }
}
