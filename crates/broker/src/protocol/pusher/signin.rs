//! User authentication: a client signs in as a user, whom the backend has signed. The client may then subscribe to the channel of that user, and the server API ends all
//! connections of the user.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::json::write_string;
use crore_wire::pusher::{EventData, User};

use crate::base::access::{Grants, VerifiedClient};
use crate::base::pusher::user_name;
use crate::base::reason::Reason;
use crate::protocol::front::Clients;
use crate::protocol::pusher::reply::{refuse, write_event};
use crate::protocol::pusher::signature::is_signed;
use crate::protocol::pusher::state::{app_of, socket_id, state, state_mut};

/// Handles `pusher:signin`.
pub(super) fn handle_signin(clients: &mut Clients, slot: u32, auth: &str, user_data: &str) {
    if let Err((reason, text)) = sign_in(clients, slot, auth, user_data) {
        refuse(clients, slot, reason, &text);
    }
}

fn sign_in(
    clients: &mut Clients,
    slot: u32,
    auth: &str,
    user_data: &str,
) -> Result<(), (Reason, String)> {
    let socket_id = socket_id(clients, slot);
    let parts = [socket_id.as_bytes(), b"::user::", user_data.as_bytes()];
    if !is_signed(clients, slot, auth, &parts) {
        let text = format!(
            "the signature of the sign-in is missing or wrong: the secret of the app must sign {socket_id}::user:: and user_data"
        );
        return Err((Reason::PusherSignature, text));
    }
    let user = User::read_signed_in(user_data)
        .map_err(|error| (Reason::BadEvent, format!("user_data is not valid: {error}")))?;
    let invalid = || {
        let text = "user_data.id has 1 to 128 bytes, without control characters and / + #";
        (Reason::BadEvent, text.into())
    };
    if !is_user_id(&user.id) {
        return Err(invalid());
    }
    if state(&clients.conns, slot).is_some_and(|it| it.user.is_some()) {
        let text = "the connection has signed in already";
        return Err((Reason::BadEvent, text.into()));
    }
    // The user's name for the operator's lists and orders. It has no rights.
    let name = app_of(clients, slot).map(|app| user_name(&app.id, &user.id));
    let grants = Grants::new(&name.unwrap_or_default(), []).map_err(|_| invalid())?;
    let known = VerifiedClient {
        grants: Arc::new(grants),
        until_unix_s: u32::MAX,
    };
    // The operator may have revoked what the user was granted until now.
    clients
        .set_identity(slot, Some(Ok(Some(known))))
        .map_err(|reason| (reason, reason.text().into()))?;
    state_mut(&mut clients.conns, slot).user = Some((&*user.id).into());
    let mut data = Vec::from(b"{\"user_data\":");
    write_string(&mut data, user_data.as_bytes());
    data.push(b'}');
    let data = EventData::Text(&data);
    write_event(clients, b"pusher:signin_success", None, data);
    Ok(())
}

/// Whether this can be the id of a user: it is a level of a topic.
pub(super) fn is_user_id(id: &str) -> bool {
    let is_special = |c: char| c.is_control() || matches!(c, '/' | '+' | '#');
    (1..=128).contains(&id.len()) && !id.chars().any(is_special)
}

/// Whether the client has signed in as this user.
pub(super) fn has_signed_in_as(clients: &Clients, slot: u32, user: &str) -> bool {
    let own = state(&clients.conns, slot).and_then(|it| it.user.as_deref());
    own == Some(user)
}
