//! The namespaces and devices of the benchmarks, and what that file imports from its room.

use rustix::net::SocketFlags;

/// The flags of sockets.
pub const SOCKET: SocketFlags = SocketFlags::CLOEXEC;

#[path = "../../../bench/src/sys/tun.rs"]
#[allow(dead_code, reason = "the benchmarks use all of it")]
pub mod tun;
