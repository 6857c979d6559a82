//! Counters of the faults that a proxy has caused.

use serde_json::{Value, json};

/// The counts of a proxy.
#[derive(Clone, Debug, Default, derive_more::AddAssign)]
pub struct ProxyCounts {
    pub(super) connections: u64,
    pub(super) resets: u64,
    pub(super) ends: u64,
    pub(super) ghosts: u64,
    pub(super) in_mid_bytes: u64,
    pub(super) stalls: u64,
    pub(super) tears: u64,
    pub(super) bytes: u64,
}

impl ProxyCounts {
    /// Connections that were cut.
    pub fn cuts(&self) -> u64 {
        self.resets + self.ends + self.ghosts
    }

    /// The counts for the result.
    pub fn json(&self) -> Value {
        json!({
            "connections": self.connections,
            "cuts": self.cuts(),
            "cuts_reset": self.resets,
            "cuts_ended": self.ends,
            "cuts_towards_the_client_only": self.ghosts,
            "cuts_in_mid_bytes": self.in_mid_bytes,
            "stalls": self.stalls,
            "tears": self.tears,
            "bytes": self.bytes,
        })
    }
}
