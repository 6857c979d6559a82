//! Adds up the memory that is used when everything that has a limit is full, and compares the sum with the available memory.
//!
//! The other estimates of the doctor (`bounds.rs`, most checks in `checks/memory.rs`) count idle connections only. This one also
//! counts everything else that clients can make the server and the kernel hold: kept messages, unsent bytes, socket buffers.

use serde::Serialize;

use super::formula;
use super::host::Host;
use super::workload::{Workload, XdpInterface};
use crate::settings::numbers::{format_bytes, format_count};

/// A part of the memory that has its own limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryPart {
    pub name: &'static str,
    /// The maximum size, if it is known.
    pub bytes: Option<u64>,
    /// How `bytes` was computed.
    pub how: String,
}

/// All parts, and the memory that they share.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEstimate {
    /// In the order of the report.
    pub parts: Vec<MemoryPart>,
    /// The memory available to the server: the available memory of the machine, or what remains of a control group's limit if that is less.
    pub available: Option<u64>,
}

impl MemoryEstimate {
    pub fn new(host: &Host, workload: &Workload) -> MemoryEstimate {
        let part = |name, bytes, how| MemoryPart { name, bytes, how };
        let connections = format_count(workload.connections);
        let kernel_bytes = workload.connection_bytes(host) - workload.process_bytes();
        let (buffer_bytes, buffers_how) = max_socket_buffers(host, workload);
        let groups = host.memory_groups.iter();
        let of_xdp = workload.xdp.iter().flat_map(|xdp| xdp_parts(xdp, workload));
        MemoryEstimate {
            parts: [
                part(
                    "server",
                    Some(formula::server_bytes(workload.shards)),
                    format!("empty, with {} shards", format_count(workload.shards)),
                ),
                part(
                    "connections, topics",
                    Some(workload.connections * workload.process_bytes()),
                    format!(
                        "{connections} connections x {} B, with a topic each",
                        workload.process_bytes()
                    ),
                ),
                part(
                    "sockets",
                    Some(workload.connections * kernel_bytes),
                    format!("{connections} connections x {kernel_bytes} B of the kernel"),
                ),
                part("socket buffers", buffer_bytes, buffers_how),
                part(
                    "limits.log_bytes",
                    Some(workload.log_bytes),
                    "kept messages; by default an eighth of the memory".to_string(),
                ),
                part(
                    MEMORY_SETTING,
                    Some(workload.memory_bytes_max),
                    "all other data that clients make the server hold; by default an eighth of the memory"
                        .to_string(),
                ),
            ]
            .into_iter()
            .chain(of_xdp)
            .collect(),
            available: host
                .memory
                .map(|memory| memory.available)
                .into_iter()
                .chain(groups.map(|group| group.limit.saturating_sub(group.held)))
                .min(),
        }
    }

    /// The sum of the known parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().filter_map(|part| part.bytes).sum()
    }

    /// Whether the sum exceeds the available memory.
    pub fn exceeds_available(&self) -> bool {
        self.available
            .is_some_and(|available| self.bytes() > available)
    }
}

/// What connections over `AF_XDP` add.
fn xdp_parts(xdp: &XdpInterface, workload: &Workload) -> [MemoryPart; 3] {
    let connections = workload.connections.min(xdp.connections_max);
    let row_bytes = formula::XDP_ROW_BYTES;
    let queues = xdp.queues.as_ref().ok().copied();
    [
        MemoryPart {
            name: "xdp connections",
            bytes: Some(connections * row_bytes),
            how: format!("{} connections x {row_bytes} B", format_count(connections)),
        },
        MemoryPart {
            name: "xdp.buffer_bytes",
            bytes: Some(xdp.buffer_bytes),
            how: "their bytes under way".to_string(),
        },
        MemoryPart {
            name: "xdp.frames",
            bytes: queues.map(|queues| queues * xdp.queue_bytes),
            how: format!(
                "{} queues x {}, locked",
                queues.map_or("unknown".to_string(), format_count),
                format_bytes(xdp.queue_bytes)
            ),
        },
    ]
}

/// The setting that limits all that has no limit of its own.
pub const MEMORY_SETTING: &str = "limits.memory_bytes";

/// The maximum size of the kernel's socket buffers, and how it was computed.
fn max_socket_buffers(host: &Host, workload: &Workload) -> (Option<u64>, String) {
    let last_number = |name| host.numbers::<3>(name).map(|[.., last]| last);
    let send_max = last_number("net.ipv4.tcp_wmem").map(|most| match workload.send_buffer_bytes {
        0 => most,
        unsent => most.min(unsent + formula::UNSENT_PIECE_BYTES),
    });
    let receive_max = last_number("net.ipv4.tcp_rmem");
    let of_connections = send_max
        .zip(receive_max)
        .map(|(send, receive)| workload.connections.saturating_mul(send + receive));
    let of_kernel =
        last_number("net.ipv4.tcp_mem").map(|pages| pages.saturating_mul(formula::PAGE_BYTES));
    let or_unknown = |maximum: Option<u64>| maximum.map_or("unknown".to_string(), format_bytes);
    let how = format!(
        "{} connections x ({} to send + {} received), at most net.ipv4.tcp_mem: {}",
        format_count(workload.connections),
        or_unknown(send_max),
        or_unknown(receive_max),
        or_unknown(of_kernel)
    );
    (of_connections.into_iter().chain(of_kernel).min(), how)
}
