//! `[xdp]`: connections that do not pass through the kernel's TCP.

use crore_net::xdp::MAX_FRAMES;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::problems::Problems;

/// 64 KiB for each of the 256 shards that there may be.
const MIN_BUFFER_BYTES: usize = 16 << 20;
/// With fewer frames a short burst of packets would be lost.
const MIN_FRAMES: u32 = 64;

/// No shard has more rows.
const MAX_CONNECTIONS: u32 = 1 << 28;

/// Connections that do not pass through the kernel's TCP, but through one of ours over `AF_XDP` ([for whom](XDP.md)).
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Xdp {
    /// The network interface and the port of these connections, such as `"eth0:8800"`, besides the addresses of `listen`. `""`: none.
    #[schemars(extend("format" = "an interface and a port"))]
    pub listen: String,
    /// These connections of all shards together. Each shard of the interface takes an equal part of them, and the answer to one more is 503. Each costs
    /// some 110 bytes while it is idle, which no other limit counts.
    #[default(1_000_000)]
    #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
    #[schemars(extend("x-share" = "that of `limits.connections_per_shard`"))]
    pub connections_max: u32,
    /// Bytes of all these connections that are sent and not acknowledged, or received and not read, and what is kept beside them of those that are busy.
    #[default(256 << 20)]
    #[schemars(range(min = MIN_BUFFER_BYTES, max = isize::MAX as usize))]
    #[schemars(extend("x-share" = "none yet: `limits.connections_per_address_max` bounds the connections of an address, each of which has at most 256 KiB to send and 64 KiB received"))]
    pub buffer_bytes: usize,
    /// Frames of 2 KiB for each queue of the interface that wait to be received, and as many to be sent. A power of two.
    #[default(2_048)]
    #[schemars(range(min = MIN_FRAMES, max = MAX_FRAMES))]
    pub frames: u32,
}

impl Xdp {
    /// The interface and the port.
    pub fn place(&self) -> Option<(&str, u16)> {
        let (interface, port) = self.listen.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!interface.is_empty()).then_some((interface, port))
    }

    /// Checks what the table of settings cannot express. `anywhere`: other machines may be served.
    pub fn check(&self, problems: &mut Problems, anywhere: bool) {
        if !self.frames.is_power_of_two() {
            let near = self.frames.next_power_of_two().min(MAX_FRAMES);
            let message = format!("{} is not a power of two; write {near}", self.frames);
            problems.fail("xdp.frames", message);
        }
        if self.listen.is_empty() {
            return;
        }
        if self.place().is_none() {
            let message = format!(
                "`{}` is not an interface and a port, such as \"eth0:8800\"",
                self.listen
            );
            problems.fail("xdp.listen", message);
        } else if !anywhere {
            let message = "other machines reach the interface, and everyone who does may publish and subscribe; \
                        say who may in a table [access] (docs/ACCESS.md), or add the flag --insecure to accept that";
            problems.fail("xdp.listen", message);
        }
    }
}
