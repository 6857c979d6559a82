//! The results of a run's threads, and the report that is made of them.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use super::crowd::CrowdResult;
use super::feed::FeedResult;
use super::proxy::Done;
use super::world::World;
use crate::report;

/// The results of a run's threads.
#[derive(Default)]
pub struct Outcome {
    /// The clients.
    pub seen: CrowdResult,
    /// The proxies.
    pub done: Done,
    /// The publishers.
    pub fed: FeedResult,
}

impl Outcome {
    /// Messages of which a publish was begun.
    pub fn published(&self, world: &World) -> u64 {
        let begun = world.begun.iter();
        begun.map(|begun| u64::from(begun.load(Relaxed))).sum()
    }

    /// Whether everything that was promised was held.
    pub fn is_clean(&self, world: &World) -> bool {
        let met = &self.seen.met;
        met.counts.is_clean()
            && met.corrupt + met.misdelivered + met.moved == 0
            && self.violations().next().is_none()
            && self.fed.acknowledged == self.published(world)
    }

    fn violations(&self) -> impl Iterator<Item = &String> {
        self.seen.violations.iter().chain(&self.fed.violations)
    }

    /// Prints why a run is not clean.
    pub fn say_why(&self) {
        for reason in self.violations().chain(&self.seen.met.broken) {
            report::say(reason);
        }
    }

    /// All counts, for the result.
    pub fn json(&self, world: &World) -> Value {
        let (seen, met) = (&self.seen, &self.seen.met);
        let counts = &met.counts;
        json!({
            "clean": self.is_clean(world),
            "published": self.published(world),
            "publishers": self.fed,
            "clients": {
                "opened": met.opened,
                "resumed": met.resumed,
                "lost_connections": seen.lost_connections,
                "ended_by_the_server": met.ended,
                "closed_4412": met.closed_for_gap,
                "turned_away": met.turned_away,
                "empty_polls": met.empty_polls,
                "complete_at_the_end": world.complete.load(Relaxed),
            },
            "messages": counts.messages,
            "silent_losses": counts.silent_losses,
            "doubles": counts.doubles,
            "disorders": counts.disorders,
            "told_gaps": counts.told_gaps,
            "told_losses": counts.told_losses,
            "false_gaps": counts.false_gaps,
            "corrupt": met.corrupt,
            "misdelivered": met.misdelivered,
            "moved": met.moved,
            "broken": met.broken,
            "violations": self.violations().collect::<Vec<_>>(),
        })
    }
}
