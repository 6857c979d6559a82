//! The counters of a swarm: messages, connections, retransmissions, and packets that the tool could not handle.

use serde_json::{Value, json};

use super::wire::Traffic;
use crate::measure::add_counters::add_counters;
use crate::measure::stats::Latency;
use crate::measure::tally::Tally;

/// The quantiles from which a latency distribution is plotted.
const QUANTILES: [f64; 12] = [
    0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999, 1.0,
];

/// The counters of one worker, or of all of them.
#[derive(Clone, Default)]
pub struct Counts {
    /// Messages and connections.
    pub tally: Tally,
    /// Times from the SYN of a connection to the answer to its request.
    pub setup_times: Latency,
    /// Messages whose length differs from the published one.
    pub wrong_length: u64,
    /// Protocol violations by the server, such as a wrong accept key or an invalid frame.
    pub violations: u64,
    /// The first violation, in words.
    pub first_violation: Option<String>,
    /// Connections that the tool closed.
    pub dropped: u64,
    /// Connections that the server did not close in time after the client had closed its own end.
    pub late_closes: u64,
    /// Messages that slow readers did not receive.
    pub slow_missed: u64,
    /// Segments that the tool retransmitted.
    pub retransmitted: u64,
    /// Segments that arrived before an earlier one.
    pub out_of_order: u64,
    /// Segments whose data had arrived already.
    pub repeated: u64,
    /// SYNs that were sent from addresses that nobody has.
    pub forged_syns: u64,
    /// Resets sent in answer to segments without a connection.
    pub resets: u64,
    /// Packet counters.
    pub traffic: Traffic,
}

impl Counts {
    /// Adds the counts of another worker.
    pub fn merge(&mut self, other: &Counts) {
        self.tally.merge(&other.tally);
        self.setup_times.merge(&other.setup_times);
        add_counters!(
            self, other;
            wrong_length, violations, dropped, late_closes, slow_missed,
            retransmitted, out_of_order, repeated, forged_syns, resets
        );
        self.traffic += other.traffic;
        if self.first_violation.is_none() {
            self.first_violation.clone_from(&other.first_violation);
        }
    }

    /// Counts a protocol violation by the server.
    pub fn record_violation(&mut self, reason: &str) {
        self.violations += 1;
        self.first_violation
            .get_or_insert_with(|| reason.to_string());
    }

    /// The faults of server and tool that make a run fail, each with its count.
    pub fn faults(&self) -> Vec<(&'static str, u64)> {
        let (tally, connections) = (&self.tally, &self.tally.connections);
        let faults = [
            ("lost", tally.lost),
            ("doubled", tally.doubled),
            ("misdelivered", tally.misdelivered),
            ("of a wrong length", self.wrong_length),
            ("without a header", tally.unmeasured),
            ("violations of the protocol", self.violations),
            ("connections closed by the server", connections.closed),
            ("connections closed late", self.late_closes),
            ("connections given up", connections.given_up),
            (
                "packets that the device did not take",
                self.traffic.write_failed,
            ),
        ];
        faults.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// The counts for the result.
    pub fn json(&self) -> Value {
        let (tally, connections) = (&self.tally, &self.tally.connections);
        json!({
            "messages": tally.messages,
            "latency_ms": latency_json(&tally.latency),
            "lost": tally.lost,
            "doubled": tally.doubled,
            "misdelivered": tally.misdelivered,
            "wrong_length": self.wrong_length,
            "unmeasured": tally.unmeasured,
            "missed_away": tally.missed_away,
            "told_lost": tally.announced_lost,
            "slow_missed": self.slow_missed,
            "connections": {
                "opened": connections.opened,
                "setup_ms": latency_json(&self.setup_times),
                "failed": connections.failed,
                "first_failure": connections.first_failure,
                "given_up": connections.given_up,
                "closed_by_server": connections.closed,
                "dropped": self.dropped,
                "late_closes": self.late_closes,
                "bytes": connections.bytes,
            },
            "violations": self.violations,
            "first_violation": self.first_violation,
            "segments": {
                "received": self.traffic.received,
                "sent": self.traffic.sent,
                "retransmitted": self.retransmitted,
                "out_of_order": self.out_of_order,
                "repeated": self.repeated,
                "forged_syns": self.forged_syns,
                "resets": self.resets,
                "lost_on_purpose": self.traffic.lost,
                "not_taken": self.traffic.write_failed,
            },
        })
    }
}

/// A latency summary with its distribution.
fn latency_json(latency: &Latency) -> Value {
    let mut value = latency.summary().json();
    value["quantiles"] = json!(QUANTILES.map(|share| (share, latency.quantile_ms(share))));
    value
}
