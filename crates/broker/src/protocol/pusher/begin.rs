//! Begins a connection: the upgrade to WebSocket, and the first event, which tells the client its socket id.

use alloc::format;

use crore_wire::http::head::Head;
use crore_wire::pusher::{ErrorCode, EventData};

use crate::base::journal::EventKind;
use crate::base::reason::Reason;
use crate::client::row::{PROTOCOL_OPTIONS, State};
use crate::io::Io;
use crate::protocol::front::{Clients, Context};
use crate::protocol::http::options::PUBLISHES;
use crate::protocol::http::parameters::parameter;
use crate::protocol::http::task::Flow;
use crate::protocol::pusher::close::end_with_code;
use crate::protocol::pusher::contract::silent_until_s;
use crate::protocol::pusher::options::{APP, APP_SHIFT};
use crate::protocol::pusher::reply::write_event;
use crate::protocol::pusher::state::socket_id;
use crate::protocol::websocket::handshake::{FrameContent, accept_upgrade};

/// The prefix of the path. The key of an app follows.
const PATH: &[u8] = b"/app/";
/// The versions of the protocol that are spoken. They differ in nothing that this server sends.
const VERSIONS: core::ops::RangeInclusive<u32> = 5..=7;

/// Whether this is a path of Pusher's protocol.
pub(crate) fn is_pusher_path(ctx: &Context, path: &[u8]) -> bool {
    !ctx.world.settings.pusher_apps.is_empty() && path.starts_with(PATH)
}

/// Upgrades a request to a WebSocket of this protocol. A client whose app or version is not known is told so in an event, since browsers hide a refused upgrade from a
/// page.
pub(crate) fn begin_pusher<I: Io>(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    io: &mut I,
) -> Flow {
    if let Err(reason) = accept_upgrade(clients, slot, head, FrameContent::Protocol(None)) {
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    let app = find_app(&clients.ctx, head);
    let number = app.unwrap_or_default() as u32;
    let row = clients.conns.get_mut(slot);
    // The options of the request have no meaning any more. A frame may publish, so it waits for credit.
    row.consumer.options &= !(PROTOCOL_OPTIONS | APP);
    row.consumer.options |= PUBLISHES | number << APP_SHIFT;
    row.consumer.state = State::Pusher;
    if let Err((code, reason)) = app {
        clients.refused(slot, reason);
        end_with_code(clients, slot, reason.row().closed, (code, code.text), io);
        return Flow::Wait;
    }
    row_deadline(clients, slot);
    let id = socket_id(clients, slot);
    let timeout_s = clients.ctx.world.settings.pusher.activity_timeout_s;
    let data = format!("{{\"socket_id\":\"{id}\",\"activity_timeout\":{timeout_s}}}");
    let data = EventData::Text(data.as_bytes());
    write_event(clients, b"pusher:connection_established", None, data);
    clients.record_event(slot, EventKind::SessionOpened, id.as_bytes());
    clients.send_reply(slot, io);
    Flow::Wait
}

fn row_deadline(clients: &mut Clients, slot: u32) {
    let deadline_s = silent_until_s(clients);
    clients.conns.get_mut(slot).link.deadline_s = deadline_s;
}

/// The number of the app with the key in the path.
fn find_app(ctx: &Context, head: &Head<'_>) -> Result<usize, (ErrorCode, Reason)> {
    let key = head.path.strip_prefix(PATH).unwrap_or_default();
    if memchr::memchr(b'/', key).is_some() {
        return Err((ErrorCode::NO_PATH, Reason::PusherPath));
    }
    let apps = &ctx.world.settings.pusher_apps;
    let number = apps.iter().position(|app| app.key.as_bytes() == key);
    let number = number.ok_or((ErrorCode::NO_APP, Reason::PusherKey))?;
    let version = parameter(head.query, b"protocol");
    let Some(version) = version.filter(|version| !version.is_empty()) else {
        return Err((ErrorCode::NO_VERSION, Reason::PusherVersion));
    };
    let version = core::str::from_utf8(&version).ok();
    match version.and_then(|version| version.parse::<u32>().ok()) {
        Some(version) if VERSIONS.contains(&version) => Ok(number),
        Some(_) => Err((ErrorCode::VERSION, Reason::PusherVersion)),
        None => Err((ErrorCode::BAD_VERSION, Reason::PusherVersion)),
    }
}
