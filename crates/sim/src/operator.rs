//! The way to a shard that has no clients: orders go in, and reports come out.

use crore_broker::{Close, ConnId, Io, Link, Mail, Part, Report, ShardId, Ticket};

/// An `Io` without connections, which keeps the last report.
#[derive(Default)]
pub struct Operator {
    /// The last report.
    pub report: Option<Report>,
}

impl Io for Operator {
    fn open(&mut self, _: Link, _: ConnId) {}
    fn send(&mut self, _: Link, _: &[Part<'_>]) -> usize {
        0
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, _: Close) {}
    fn post(&mut self, _: ShardId, _: Mail) {}
    fn report(&mut self, _: Ticket, report: Report) {
        self.report = Some(report);
    }
}
