//! The TLS connections of a shard, and the log of those that TLS has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crore_net::stream::{TlsFailure, TlsStreams};

/// The least time between two log lines with the same reason, for all shards together.
const LOG_EVERY_S: u32 = 60;

/// The TLS connections of a shard, and their log.
pub struct Tls {
    /// The TLS connections.
    pub streams: Box<TlsStreams>,
    /// The log of failed connections.
    pub failures: FailureLog,
}

/// The numbers of connections that TLS ended, by reason. All shards share this table.
#[derive(Debug, Default)]
pub struct FailureCounts([FailureCount; TlsFailure::COUNT]);

/// The count for one reason.
#[derive(Debug, Default)]
struct FailureCount {
    /// Connections that ended for this reason since the start. A shard adds its own when it logs.
    count: AtomicU64,
    /// The reason is not logged again before this second.
    quiet_until_s: AtomicU32,
}

/// Logs why TLS connections of a shard ended. The shards share the time of the last log line for each reason.
pub struct FailureLog {
    counts: Arc<FailureCounts>,
    /// By reason, how many ended connections of this shard are in `counts`.
    logged_counts: [u64; TlsFailure::COUNT],
}

impl FailureLog {
    /// The log of a shard.
    pub fn new(counts: Arc<FailureCounts>) -> FailureLog {
        FailureLog {
            counts,
            logged_counts: [0; TlsFailure::COUNT],
        }
    }

    /// Logs new failures with their remedy, each reason at most once in [`LOG_EVERY_S`].
    pub(crate) fn log(&mut self, tls: &mut TlsStreams, now_s: u32) {
        let stats = tls.stats();
        for (failure, detail) in tls.take_failures() {
            let reason = &self.counts.0[failure as usize];
            let logged_count = &mut self.logged_counts[failure as usize];
            let new_count = stats.count_of(failure) - *logged_count;
            *logged_count += new_count;
            let since_start = reason.count.fetch_add(new_count, Relaxed) + new_count;
            let until_s = reason.quiet_until_s.load(Relaxed);
            let next_s = now_s + LOG_EVERY_S;
            // If several shards come here at the same time, only one of them logs.
            let claim_line = || {
                let quiet = &reason.quiet_until_s;
                quiet.compare_exchange(until_s, next_s, Relaxed, Relaxed)
            };
            if now_s < until_s || claim_line().is_err() {
                continue;
            }
            let (reason, remedy) = (failure.name(), remedy(failure));
            tracing::warn!(
                reason,
                since_start,
                "TLS: a connection was ended: {detail}; {remedy}"
            );
        }
    }
}

fn remedy(failure: TlsFailure) -> &'static str {
    match failure {
        TlsFailure::Garbage => "see who speaks something else than TLS to this port",
        TlsFailure::Incompatible => {
            "clients need TLS 1.2 with ECDHE, or 1.3 (tls.min_version), and h2 (http.h2), http/1.1 or mqtt if they use ALPN"
        }
        TlsFailure::Certificate => {
            "clients must show a certificate that leads to tls.client_ca (tls.client_certificates)"
        }
        TlsFailure::Distrust => {
            "clients must trust the root of tls.certificate, whose file also holds those in between, and ask by a name in it"
        }
        TlsFailure::Gone => "probes of the port do this, and clients that gave up",
        TlsFailure::Slow => "raise timeouts.head_s if clients are that far away",
        TlsFailure::Evicted => {
            "raise tls.handshakes_max, or keep those away who leave handshakes hanging"
        }
        TlsFailure::TooLong => "see who says more than a handshake needs",
        TlsFailure::Internal => "`crore serve --check` reads the files of [tls] again",
        TlsFailure::Renegotiation => "the client must not ask for it; with TLS 1.3 it cannot",
        TlsFailure::Record => "see what changes bytes on their way, or which client is broken",
        TlsFailure::Room => "raise limits.memory_bytes",
        TlsFailure::Key => "the client has only to come again; with TLS 1.3 keys are changed",
        TlsFailure::Plain => {
            "clients need https://, wss:// or mqtts://, or tls.required must be off"
        }
    }
}
