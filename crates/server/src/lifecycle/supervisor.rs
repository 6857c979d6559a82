//! Reports the server's state to the supervisor that started it: systemd, or another program that understands systemd's protocol
//! (`sd_notify(3)`). Without a supervisor, all functions do nothing.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

use super::shards::Shards;

/// The supervisor kills the server if no progress message comes for this time, in microseconds. A server that makes progress sends them more
/// often.
const PROGRESS_TIMEOUT_US: u32 = 15_000_000;

/// The environment variable with the address of the supervisor's socket: a path, or `@` and a name in the abstract namespace.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends these states to the supervisor, if there is a supervisor.
fn notify(states: &[NotifyState<'_>]) {
    let socket = std::env::var_os(SOCKET_VARIABLE).unwrap_or_default();
    if socket.is_empty() {
        return;
    }
    let mut message = String::new();
    for state in states {
        let _ = writeln!(message, "{state}");
    }
    if let Err(error) = send(&socket, message.as_bytes()) {
        tracing::debug!(%error, "the supervisor cannot be told");
    }
}

/// Sends one datagram. The crate `sd_notify` supports only paths, but in a container the socket of systemd may be in the abstract
/// namespace.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => UnixAddr::from_abstract_name(name)?,
        _ => UnixAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(message, &address)
        .map(drop)
}

/// Reports that the server is ready, after the start and after a reload.
pub fn report_ready(listen: &[SocketAddr]) {
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let status = format!("serving on {}", listen.join(", "));
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

pub fn report_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

pub fn report_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports the progress of a stop, and asks the supervisor to wait for the next report.
pub fn report_progress(text: &str) {
    notify(&[
        NotifyState::Status(text),
        NotifyState::ExtendTimeoutUsec(PROGRESS_TIMEOUT_US),
    ]);
}

/// Reports that the server writes its state to disk. Asks the supervisor to wait `budget_s` seconds longer than usual, because the server
/// reports no progress while it writes.
pub fn report_writing(budget_s: u32) {
    let budget_us = budget_s.saturating_mul(1_000_000);
    notify(&[
        NotifyState::Status("writing logs and sessions to disk"),
        NotifyState::ExtendTimeoutUsec(budget_us.saturating_add(PROGRESS_TIMEOUT_US)),
    ]);
}

/// Notifies the supervisor's watchdog twice in each interval, as long as all shards answer. If a shard hangs, the watchdog ends the server.
pub fn start_watchdog(shards: Shards) {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return;
    };
    tokio::spawn(async move {
        loop {
            if shards.accounts().await.is_ok() {
                notify(&[NotifyState::Watchdog]);
            }
            tokio::time::sleep((interval / 2).max(Duration::from_millis(1))).await;
        }
    });
}
