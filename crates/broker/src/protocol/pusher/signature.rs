//! Checks the signatures of subscriptions and sign-ins.

use crate::base::pusher::PusherApp;
use crate::protocol::front::Clients;
use crate::protocol::pusher::state::app_of;

/// The bytes that are copied in the time in which one byte is hashed.
const HASH_WORK: usize = 8;

/// Whether `auth` is the key of the connection's app, and the signature of these parts.
pub(super) fn is_signed(clients: &Clients, slot: u32, auth: &str, parts: &[&[u8]]) -> bool {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    clients.meter.work.steps.add_bytes(bytes * HASH_WORK);
    app_of(clients, slot).is_some_and(|app| app.is_signed(parts, signature_of(app, auth)))
}

/// The signature in `auth`, which begins with the key of the app; empty without it.
fn signature_of<'a>(app: &PusherApp, auth: &'a str) -> &'a str {
    let signature = auth.strip_prefix(&*app.key);
    signature
        .and_then(|rest| rest.strip_prefix(':'))
        .unwrap_or_default()
}
