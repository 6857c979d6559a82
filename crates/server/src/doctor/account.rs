//! Adds up the memory that is used when everything that has a limit is full, and compares the sum with the available memory.
//!
//! The other parts of the doctor that estimate memory (`bounds.rs`, `checks/memory.rs`) count idle connections only. The account also
//! counts all else that clients can make the server and the kernel hold: kept messages, unsent bytes, socket buffers.

use serde::Serialize;

use super::formula;
use super::host::Host;
use super::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

/// A part of the memory that has its own limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    pub name: &'static str,
    /// The limit, if it is known.
    pub bytes: Option<u64>,
    /// How `bytes` was computed.
    pub how: String,
}

/// All parts, and the memory that they share.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// In the order of the report.
    pub parts: Vec<Part>,
    /// The memory available to the server: the available memory of the machine, or what remains of a control group's limit if that is less.
    pub room: Option<u64>,
}

impl Account {
    pub fn new(host: &Host, workload: &Workload) -> Account {
        let part = |name, bytes, how| Part { name, bytes, how };
        let connections = format_count(workload.connections);
        let each = workload.connection_bytes(host) - workload.process_bytes();
        let (buffers, reach) = buffers(host, workload);
        let groups = host.groups.iter();
        Account {
            parts: vec![
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
                    Some(workload.connections * each),
                    format!("{connections} connections x {each} B of the kernel"),
                ),
                part("socket buffers", buffers, reach),
                part(
                    "limits.log_bytes",
                    Some(workload.log_bytes),
                    "kept messages; by default an eighth of the memory".to_string(),
                ),
                part(
                    MEMORY_SETTING,
                    Some(workload.memory_bytes_max),
                    "what else clients make the server hold; by default an eighth of the memory"
                        .to_string(),
                ),
            ],
            room: host
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
    pub fn is_over(&self) -> bool {
        self.room.is_some_and(|room| self.bytes() > room)
    }
}

/// The setting that limits the last part.
pub const MEMORY_SETTING: &str = "limits.memory_bytes";

/// Limit of the kernel's socket buffers, and how it was computed.
fn buffers(host: &Host, workload: &Workload) -> (Option<u64>, String) {
    let most = |name| host.numbers::<3>(name).map(|[.., most]| most);
    let send = most("net.ipv4.tcp_wmem").map(|most| match workload.send_buffer_bytes {
        0 => most,
        unsent => most.min(unsent + formula::UNSENT_PIECE_BYTES),
    });
    let receive = most("net.ipv4.tcp_rmem");
    let each = send
        .zip(receive)
        .map(|(send, receive)| workload.connections.saturating_mul(send + receive));
    let all = most("net.ipv4.tcp_mem").map(|pages| pages.saturating_mul(formula::PAGE_BYTES));
    let shown = |most: Option<u64>| most.map_or("unknown".to_string(), format_bytes);
    let how = format!(
        "{} connections x ({} to send + {} received), at most net.ipv4.tcp_mem: {}",
        format_count(workload.connections),
        shown(send),
        shown(receive),
        shown(all)
    );
    (each.into_iter().chain(all).min(), how)
}
