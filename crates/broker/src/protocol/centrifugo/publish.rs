//! The publish command.

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{Answer, Publish};

use crate::client::asking::publish_as;
use crate::client::publishing::{PublishRefusal as NotPublished, check_message};
use crate::home::Home;
use crate::io::Io;
use crate::mail::backend::PublishGrant;
use crate::mail::message::{self, Headers, is_binary};
use crate::mail::{self, Outcome};
use crate::protocol::centrifugo::reasons::error_of;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_error, write_reply};
use crate::protocol::centrifugo::subscribe::check_name;
use crate::protocol::front::{Clients, Subscriptions};

/// Publishes a message. The command is answered with the outcome. `granted` is the grant of the backend, if it was asked.
pub(super) fn handle_publish_command(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, publish): (u32, &Publish<'_>),
    granted: Option<PublishGrant>,
    home: &mut Option<Home>,
) -> Result<(), CommandRefusal> {
    if publish.channel.is_empty() {
        return Err(CommandRefusal::bad_request("a publish without a channel"));
    }
    if publish.kind != 0 {
        return Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE));
    }
    if publish.data.is_empty() {
        return Err(CommandRefusal::Error(
            ErrorCode::BAD_REQUEST,
            "a publish without data".into(),
        ));
    }
    let replaced = granted.as_ref().and_then(|grant| grant.data.as_deref());
    let (name, data) = (publish.channel.as_bytes(), replaced.unwrap_or(publish.data));
    let checked = match &granted {
        // The backend has the say over rights.
        Some(_) => check_message(&clients.ctx.world.settings.limits, name, data.len(), || {
            false
        }),
        None => clients.check_publish(slot, name, data.len(), || false),
    };
    match checked {
        Ok(()) => {}
        Err(NotPublished::Name(_)) => check_name(clients, slot, publish.channel)?,
        Err(NotPublished::Denied(reason)) => {
            clients.report_denied(slot, reason, name);
            return Err(CommandRefusal::for_reason(clients, slot, reason));
        }
        Err(NotPublished::Other(reason)) => {
            return Err(CommandRefusal::for_reason(clients, slot, reason));
        }
    }
    // A publish that the backend has granted was counted before it was asked.
    if granted.is_none()
        && let Err(reason) = clients.check_publish_rate(slot)
    {
        return Err(CommandRefusal::for_reason(clients, slot, reason));
    }
    let (hash, home_shard) = clients.ctx.hash_and_home_of(name);
    let message = message::Publish {
        hash,
        name,
        data,
        headers: Headers {
            qos: 1,
            binary: is_binary(b"", data),
            ttl_s: granted
                .as_ref()
                .is_some_and(|grant| grant.skips_history)
                .then_some(0),
            ..Headers::default()
        },
        dedup: None,
        client: clients.conns.get(slot).consumer.client,
    };
    let answer = mail::WantedAnswer::OutcomeAndInfo(clients.conns.reply_to(slot, id));
    if let Some(outcome) = publish_as(clients, subs, home, slot, home_shard, &message, answer) {
        write_outcome(clients, slot, id, outcome);
    }
    Ok(())
}

/// Handles another shard's answer to a publish.
pub(super) fn handle_centrifugo_outcome<I: Io>(
    clients: &mut Clients,
    slot: u32,
    id: u32,
    outcome: Outcome,
    io: &mut I,
) {
    write_outcome(clients, slot, id, outcome);
    clients.send_reply(slot, io);
}

fn write_outcome(clients: &mut Clients, slot: u32, id: u32, outcome: Outcome) {
    match outcome.refusal() {
        None => write_reply(clients, slot, id, Answer::Publish),
        Some(reason) => {
            clients.refused(slot, reason);
            let words = reason.text_with_limit(&clients.ctx.world.settings);
            write_error(clients, slot, id, error_of(reason), &words);
        }
    }
}
