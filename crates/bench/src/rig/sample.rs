//! Takes samples of the server and the kernel before, during and after the load of a scenario.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::server::Server;
use crate::measure::sample::{Kernel, Process};
use crate::{report, sys};

/// Seconds between two samples: the interval at which the 2013 benchmark read its bandwidth.
const SAMPLE_S: f64 = 10.0;

/// How to wait until the kernel has freed sockets: the maximum number of checks, the seconds before each check, and the decrease in bytes
/// that shows that the kernel is still freeing sockets.
const FREED_TRIES: u32 = 12;
const FREED_S: f64 = 5.0;
const FREED_BYTES: u64 = 1 << 20;

/// Memory and processor time per connection between two samples.
pub fn per_connection(connections: u32, before: &Sample, after: &Sample) -> Value {
    let n = f64::from(connections);
    let grown = |after: u64, before: u64| (after as f64 - before as f64) / n;
    let slabs: serde_json::Map<String, Value> = after
        .kernel
        .slabs
        .iter()
        .map(|(name, bytes)| {
            let before = before.kernel.slabs.get(name).copied().unwrap_or(0);
            (name.clone(), json!(grown(*bytes, before)))
        })
        .collect();
    json!({
        "server_pss_bytes": grown(after.process.pss_bytes, before.process.pss_bytes),
        "server_rss_bytes": grown(after.process.rss_bytes, before.process.rss_bytes),
        "server_cpu_us": (after.process.cpu_s - before.process.cpu_s) * 1e6 / n,
        "kernel_both_ends_slab_bytes": grown(after.kernel.slab_bytes, before.kernel.slab_bytes),
        "kernel_both_ends_buffer_bytes": grown(after.kernel.buffer_bytes, before.kernel.buffer_bytes),
        "kernel_both_ends_slabs": slabs,
    })
}

/// The server and the kernel at one time.
pub struct Sample {
    /// The server.
    pub process: Process,
    /// The kernel.
    pub kernel: Kernel,
    /// The time of the sample, on the monotonic clock.
    pub at_ns: u64,
}

impl Sample {
    /// Samples the server and the kernel.
    pub fn of(server: &mut Server) -> Result<Sample> {
        Ok(Sample {
            process: server.sample()?,
            kernel: Kernel::read()?,
            at_ns: sys::now_ns(),
        })
    }

    /// Seconds since an earlier sample.
    pub fn seconds_since(&self, before: &Sample) -> f64 {
        (self.at_ns - before.at_ns) as f64 / 1e9
    }

    /// How many cores the server kept busy since an earlier sample.
    pub fn cores_since(&self, before: &Sample) -> f64 {
        (self.process.cpu_s - before.process.cpu_s) / self.seconds_since(before)
    }

    /// The sample for the result.
    pub fn json(&self) -> Value {
        json!({
            "at_s": self.at_ns as f64 / 1e9,
            "server": self.process,
            "kernel": self.kernel.json(),
        })
    }
}

/// Samples the server for `seconds`: every ten seconds, and at the end.
pub fn watch(server: &mut Server, seconds: f64) -> Result<Vec<Value>> {
    let mut samples = Vec::new();
    let mut left = seconds;
    while left > 0.0 {
        let step = left.min(SAMPLE_S);
        pause(step);
        left -= step;
        samples.push(Sample::of(server)?.json());
    }
    Ok(samples)
}

/// Sleeps.
pub fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// Waits, at most a minute, until the kernel has freed the sockets of earlier runs. If the kernel freed such sockets during this run, the
/// memory of this run would seem smaller.
pub fn wait_for_freed_sockets() -> Result<()> {
    let sockets = || -> Result<u64> {
        let kernel = Kernel::read()?;
        Ok(kernel.slabs.get("TCP").copied().unwrap_or(0))
    };
    let mut before = sockets()?;
    for _ in 0..FREED_TRIES {
        pause(FREED_S);
        let now = sockets()?;
        if now + FREED_BYTES >= before {
            return Ok(());
        }
        report::say("the kernel still frees sockets of an earlier run");
        before = now;
    }
    Ok(())
}

/// Which side, server or tools, was busy all the time.
pub fn bottleneck(
    server_busy: f64,
    server_cores: f64,
    tools_busy: f64,
    tools_cores: f64,
) -> &'static str {
    /// From this load on a core counts as fully busy, because the samples are not more precise.
    const FULL: f64 = 0.93;
    match (
        server_busy >= FULL * server_cores,
        tools_busy >= FULL * tools_cores,
    ) {
        (true, true) => "both",
        (true, false) => "server",
        (false, true) => "TOOL: the server could do more",
        (false, false) => "neither",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_side_is_named() {
        assert_eq!(bottleneck(0.99, 1.0, 0.5, 1.0), "server");
        assert!(bottleneck(0.5, 1.0, 0.99, 1.0).starts_with("TOOL"));
        assert_eq!(bottleneck(0.5, 1.0, 0.5, 1.0), "neither");
    }
}
