//! Takes the events of clients.

use crore_wire::pusher::{EventData, Request};

use crate::base::reason::Reason;
use crate::client::list::has_many_pages;
use crate::home::Home;
use crate::io::Io;
use crate::protocol::front::{Clients, Front};
use crate::protocol::pusher::publish::{ClientEvent, handle_client_event};
use crate::protocol::pusher::reply::{refuse, write_event};
use crate::protocol::pusher::signin::handle_signin;
use crate::protocol::pusher::subscribe::{
    SubscribeEvent, handle_subscribe_event, handle_unsubscribe_event,
};
use crate::store::slab::NONE;

/// Whether further events must wait: the client does not read what it was sent, or many pages that it asked for have not come yet.
pub(super) fn awaits_answers(clients: &Clients, slot: u32) -> bool {
    clients.conns.get(slot).link.outbox != NONE || has_many_pages(&clients.conns, slot)
}

/// Handles an event. An event that cannot be carried out gets an error, and the connection continues.
pub(super) fn handle_event<I: Io>(
    front: &mut Front,
    slot: u32,
    frame: &[u8],
    home: &mut Option<Home>,
    io: &mut I,
) {
    let Front {
        clients,
        subs,
        census,
        ..
    } = front;
    let request = match Request::read(frame) {
        Ok(request) => request,
        Err(error) => {
            let text = alloc::format!("the event is not valid: {error}");
            refuse(clients, slot, Reason::BadEvent, &text);
            return clients.send_reply(slot, io);
        }
    };
    match request {
        Request::Ping => write_event(clients, b"pusher:pong", None, EventData::Value(b"{}")),
        Request::Pong => {}
        Request::Subscribe {
            channel,
            auth,
            channel_data,
            since,
        } => {
            let event = SubscribeEvent {
                channel: &channel,
                auth: &auth,
                channel_data: &channel_data,
                since: since.as_deref(),
            };
            handle_subscribe_event(clients, subs, census, slot, &event);
        }
        Request::Unsubscribe { channel } => {
            handle_unsubscribe_event(clients, subs, slot, &channel);
        }
        Request::Signin { auth, user_data } => handle_signin(clients, slot, &auth, &user_data),
        Request::ClientEvent {
            event,
            channel,
            data,
        } => {
            let event = ClientEvent {
                name: &event,
                channel: &channel,
                data: data.bytes(),
            };
            handle_client_event(clients, subs, slot, &event, home);
        }
    }
    clients.send_reply(slot, io);
}
