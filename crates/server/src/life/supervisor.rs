//! Tells systemd, or any other supervisor with its protocol (`sd_notify(3)`), of the server's life. Without one nothing happens.

use std::net::SocketAddr;
use std::time::Duration;

use sd_notify::NotifyState;

use super::shards::Shards;

/// More than the time between two looks while clients are moved off: the supervisor waits as long as there is progress.
const MORE_TIME_US: u32 = 15_000_000;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the supervisor cannot be told");
    }
}

/// The server serves, by the settings that it has read.
pub fn ready(listen: &[SocketAddr]) {
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let status = format!("serving on {}", listen.join(", "));
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// It reads its settings again.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// It stops.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// How far it is with that; it needs more time until it says so again.
pub fn status(text: &str) {
    tell(&[
        NotifyState::Status(text),
        NotifyState::ExtendTimeoutUsec(MORE_TIME_US),
    ]);
}

/// The server writes its state to disk, which may take so long; nothing more is told meanwhile.
pub fn writing(budget_s: u32) {
    let budget_us = budget_s.saturating_mul(1_000_000);
    tell(&[
        NotifyState::Status("writing logs and sessions down"),
        NotifyState::ExtendTimeoutUsec(budget_us.saturating_add(MORE_TIME_US)),
    ]);
}

/// Says that all shards turn, as often as the supervisor wants to hear it.
pub fn watch(shards: Shards) {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return;
    };
    tokio::spawn(async move {
        loop {
            if shards.accounts().await.is_ok() {
                tell(&[NotifyState::Watchdog]);
            }
            tokio::time::sleep((interval / 2).max(Duration::from_millis(1))).await;
        }
    });
}
