//! Reads requests, carries them out, answers them, and changes a connection to another protocol. The folder `http` calls no protocol that runs over HTTP, so
//! the requests that begin streams, polls, MQTT, Centrifugo's and Pusher's protocol are here.

use crore_wire::http::head::{Head, Method};

use crate::base::ids::ConnId;
use crate::base::reason::{Closed, Reason};
use crate::base::verdict::Identity;
use crate::budget::stats::Transport;
use crate::client::codec::NoSubscriptionHandler;
use crate::client::credit::stall_if_needed;
use crate::client::progress::Allowance;
use crate::client::protocols::{InputKind, MatchPage, Matches, Protocol, TopicPage};
use crate::client::row::{EOF, FILTERS, PAUSED, Row, SERVED, SUBSCRIPTION_LIST, State};
use crate::client::types::{SubscriptionRef, UnprocessedInput};
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::mail::{AttachOutcome, Frames, Outcome, ReplyTo};
use crate::protocol::centrifugo::body::begin_body;
use crate::protocol::centrifugo::commands::{self, CentrifugoEndpoint, begin_centrifugo};
use crate::protocol::centrifugo::emulation::{answer_posted_commands, hand_over_commands};
use crate::protocol::centrifugo::tokens::names_channel;
use crate::protocol::front::{AllProtocols, Clients, Connections, Context, Front, Queues};
use crate::protocol::http::answer::refuse_waiting_request;
use crate::protocol::http::close::{
    awaits_verdict, end_http, end_waiting, is_subscribing, move_idle,
};
use crate::protocol::http::credentials::{http_verdict, is_token};
use crate::protocol::http::history::{answer_history, request_history};
use crate::protocol::http::options::{HISTORY, KEEP_ALIVE};
use crate::protocol::http::pipelined::{drop_pipelined_bytes, hold_pipelined};
use crate::protocol::http::publish;
use crate::protocol::http::publish::batch::{
    continue_batch, handle_batch_fence, has_batch, publish_batch,
};
use crate::protocol::http::publish::outcomes::request_outcome;
use crate::protocol::http::publish::publish_one;
use crate::protocol::http::task::{Flow, Requests, Task};
use crate::protocol::http2::contract;
use crate::protocol::longpoll::filtered::{answer_poll_with_match, handle_request_match_page};
use crate::protocol::longpoll::poll::{answer_poll, end_poll, poll_page};
use crate::protocol::mqtt::packets::{self, begin_mqtt_in_frames};
use crate::protocol::pusher::begin::{begin_pusher, is_pusher_path};
use crate::protocol::stream::filtered::{catch_up_filters, pick_live_matches};
use crate::protocol::stream::interest::{may_follow, request_interest};
use crate::protocol::stream::live::deliver_live_of_topic;
use crate::protocol::stream::presence::request_presence_stream;
use crate::protocol::stream::refused_attach::handle_refused_attach;
use crate::protocol::stream::stream_pages::{is_stream, stream_page};
use crate::protocol::stream::subscribe::request_subscription;
use crate::protocol::websocket::handshake::{FrameContent, accept_upgrade};
use crate::protocol::websocket::publish::upgrade_to_publish;
use crate::store::slab::NONE;

/// A connection that reads HTTP requests or waits for the answer to one, or that only has to send its last bytes. The answer to a long-poll is a message.
pub(crate) struct Request;

impl Protocol<AllProtocols> for Request {
    type SubscriptionHandler = NoSubscriptionHandler;

    fn transport(row: &Row) -> Transport {
        match row.consumer.state {
            State::Poll => Transport::LongPoll,
            State::Draining => Transport::Closing,
            _ => Transport::Http,
        }
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        match front.clients.conns.get(slot).consumer.state {
            State::Draining => front.clients.discard_received(slot, bytes.len()),
            State::Waiting | State::Poll => hold_pipelined(front, slot, bytes, io),
            _ => front.receive_http(slot, bytes, home, io),
        }
    }

    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        let row = front.clients.conns.get(conn.slot);
        match row.consumer.state {
            State::Http => front.http_resume(conn, home, io),
            State::Waiting if row.has_option(FILTERS) => {
                catch_up_filters(&mut front.clients, &mut front.subs, conn.slot);
            }
            State::Waiting => continue_batch(front, conn.slot, home, io),
            _ => {}
        }
    }

    fn outbox_drained(front: &mut Front, slot: u32) {
        let clients = &front.clients;
        if clients.conns.get(slot).consumer.state == State::Http {
            front
                .queues
                .resume_later(clients, clients.conns.id_of(slot));
        }
    }

    /// Stays open while an answer is due.
    fn peer_ended<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
        let row = clients.conns.get_mut(slot);
        let is_due = match row.consumer.state {
            State::Proxy | State::Poll => false,
            State::Waiting => true,
            _ => row.link.outbox != NONE,
        };
        if is_due {
            row.link.flags |= EOF | PAUSED;
            return clients.conns.update_interest(slot, io);
        }
        clients.drop_connection(slot, CloseMode::Now);
    }

    fn silent_until_s(clients: &Clients, slot: u32) -> u32 {
        match clients.conns.get(slot).consumer.state {
            State::Http => clients.ctx.now.s + clients.ctx.world.settings.timeouts.keep_alive_s,
            _ => 0,
        }
    }

    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let clients = &mut front.clients;
        let row = clients.conns.get_mut(slot);
        match row.consumer.state {
            State::Http if row.link.unprocessed_input == NONE && row.link.has(SERVED) => {
                clients.close_after_output(slot, io)
            }
            State::Http => clients.end_connection(slot, Reason::TooSlow, io),
            State::Waiting => row.link.deadline_s = 0,
            State::Poll => end_poll(front, slot, io),
            _ => {
                clients.scratch.set_close_reason(Closed::Timeout);
                clients.drop_connection(slot, CloseMode::Now);
            }
        }
    }

    fn has_waiting_input(conns: &Connections, slot: u32) -> bool {
        has_batch(conns, slot)
            || conns
                .unprocessed_input(slot)
                .is_some_and(UnprocessedInput::is_waiting)
    }

    fn unprocessed_input_kind(row: &Row) -> InputKind {
        match row.consumer.state {
            State::Http => InputKind::Incomplete,
            State::Poll => InputKind::Pipelined,
            _ => InputKind::MustStay,
        }
    }

    /// The partly received input of a connection that got its last bytes was discarded.
    fn has_begun_input(conns: &Connections, slot: u32) -> bool {
        let row = conns.get(slot);
        row.consumer.state != State::Draining && row.link.unprocessed_input != NONE
    }

    fn count_input_second(clients: &mut Clients, slot: u32, allowance: Allowance) -> bool {
        let is_input = clients.conns.get(slot).consumer.state == State::Http;
        let spill = clients
            .conns
            .unprocessed_input_mut(slot)
            .filter(|_| is_input);
        spill.is_some_and(|spill| spill.count_second(allowance))
    }

    fn drop_pipelined<I: Io>(conns: &mut Connections, queues: &Queues, slot: u32, io: &mut I) {
        drop_pipelined_bytes(conns, queues, slot, io);
    }

    fn handle_verdict(clients: &mut Clients, queues: &mut Queues, conn: ConnId, who: Identity) {
        if clients.conns.get(conn.slot).consumer.state == State::Waiting {
            http_verdict(clients, queues, conn, who);
        }
    }

    fn settings_changed<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        let clients = &mut front.clients;
        let state = clients.conns.get(slot).consumer.state;
        let permission =
            may_follow(clients, slot).and_then(|()| clients.check_subscriptions(&front.subs, slot));
        match (permission, state) {
            (Ok(()), _) => false,
            (Err(denied), State::Waiting) => end_waiting(clients, slot, denied),
            (Err(denied), _) => Self::end_for_reason(front, slot, denied, io),
        }
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        end_http(clients, slot, reason, io);
    }

    /// Ends a waiting poll. Other waiting requests continue: the answer to a subscribe request tells what happened to the topic, and the credential is checked
    /// again after the answer.
    fn end_for_reason<I: Io>(front: &mut Front, slot: u32, reason: Reason, io: &mut I) -> bool {
        let is_poll = front.clients.conns.get(slot).consumer.state == State::Poll;
        if is_poll {
            refuse_waiting_request(front, slot, reason, io);
        }
        is_poll
    }

    fn free_memory<I: Io>(clients: &mut Clients, queues: &Queues, slot: u32, io: &mut I) {
        let (row, conns) = (clients.conns.get(slot), &clients.conns);
        match row.consumer.state {
            // No request is being processed.
            State::Http if row.link.unprocessed_input == NONE && row.link.outbox == NONE => {
                clients.close_after_output(slot, io);
            }
            // A publish is in flight, and its answer comes soon, so only the bytes pipelined after it are dropped.
            State::Waiting if !is_subscribing(conns, slot) && !awaits_verdict(conns, slot) => {
                drop_pipelined_bytes(&mut clients.conns, queues, slot, io);
            }
            _ => clients.end_connection(slot, Reason::MemoryFull, io),
        }
    }

    fn move_off<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        let clients = &mut front.clients;
        let row = clients.conns.get_mut(slot);
        match row.consumer.state {
            State::Proxy => {
                clients.drop_connection(slot, CloseMode::Now);
                true
            }
            State::Http => move_idle(clients, slot, io),
            state => {
                // The connection ends with its answer. That of a poll is due now, others come soon.
                row.consumer.options &= !KEEP_ALIVE;
                if state == State::Poll {
                    end_poll(front, slot, io);
                }
                state == State::Poll
            }
        }
    }

    fn handle_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
        request_outcome(front, to, outcome, io);
    }

    fn fence_passed<I: Io>(front: &mut Front, to: ReplyTo, io: &mut I) {
        let (clients, queues) = (&mut front.clients, &mut front.queues);
        if !answer_posted_commands(clients, queues, to, io) {
            handle_batch_fence(clients, queues, to, io);
        }
    }

    fn handle_page<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        page: TopicPage<'_>,
        io: &mut I,
    ) {
        let SubscriptionRef { slot, topic, .. } = subscription;
        if page.0.attached != AttachOutcome::Yes {
            return handle_refused_attach(front, slot, page.0.attached, io);
        }
        let conns = &front.clients.conns;
        if conns.get(slot).has_option(HISTORY) {
            return answer_history(front, (slot, topic), page, io);
        }
        match is_stream(conns, slot) {
            true => stream_page(front, subscription, page, io),
            false => poll_page(front, subscription, page, io),
        }
    }

    fn handle_filter_page<I: Io>(
        front: &mut Front,
        group: (u32, u32),
        page: MatchPage<'_>,
        io: &mut I,
    ) {
        handle_request_match_page(front, group, page, io);
    }

    /// Answers a poll. A stream on several topics that has not begun holds the messages.
    fn deliver_live<I: Io>(
        front: &mut Front,
        subscription: SubscriptionRef,
        frames: &Frames,
        io: &mut I,
    ) {
        let SubscriptionRef {
            slot,
            topic,
            sub_index,
        } = subscription;
        let row = front.clients.conns.get(slot);
        if row.consumer.state != State::Poll {
            return deliver_live_of_topic(front, slot, (topic, sub_index), frames, io);
        }
        let first_record = front.feed.run.records()[0];
        if row.has_option(SUBSCRIPTION_LIST) {
            front.clients.conns.side_row_mut(slot).list[sub_index as usize].offset =
                first_record.offset;
        }
        answer_poll(front, (slot, topic), (&first_record, frames), io);
    }

    fn deliver_matched<I: Io>(front: &mut Front, slot: u32, matches: Matches<'_>, io: &mut I) {
        let (_, messages, frames) = matches;
        let picks = pick_live_matches(&mut front.clients, slot, matches);
        if !picks.is_empty() {
            answer_poll_with_match(front, slot, (&picks, messages, frames), io);
        }
    }
}

impl Requests for AllProtocols {
    fn carry_out<I: Io>(
        front: &mut Front,
        slot: u32,
        head: &Head<'_>,
        task: Task,
        body: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Flow {
        let (clients, subs, _, queues) = front.parts();
        match task {
            Task::Upgrade => match commands::endpoint_of(&clients.ctx, head.path) {
                Some(endpoint) if endpoint.is_body() && !head.is_websocket_upgrade() => {
                    begin_body(front, slot, (head, body), endpoint, home, io)
                }
                endpoint => upgrade(clients, slot, head, endpoint, io),
            },
            Task::Commands => hand_over_commands(clients, &mut subs.lanes, slot, head, body),
            Task::Follow { upgrade } => {
                request_interest(clients, &mut subs.lanes, slot, head, upgrade)
            }
            Task::Presence { name, upgrade } => {
                request_presence_stream(clients, &mut subs.lanes, slot, head, (&name, upgrade), io)
            }
            Task::Batch => publish_batch(clients, subs, queues, slot, body, home, io),
            Task::Publish(name) => {
                let flow = publish_one(clients, subs, slot, head, &name, body, home);
                stall_if_needed(clients, &subs.lanes, queues, slot, io);
                flow
            }
            Task::PublishFrames(name) => upgrade_to_publish(clients, slot, head, &name, io),
            Task::History(name) => request_history(clients, subs, slot, head, &name, io),
            Task::Verb(verb, name) => {
                publish::ask_topic_request(clients, &mut subs.lanes, slot, head, verb, &name)
            }
            Task::Subscribe {
                names,
                is_by_filter,
                publishes,
                upgrade,
            } => {
                if is_by_filter {
                    clients.conns.get_mut(slot).consumer.options |= FILTERS;
                }
                let how = (publishes, upgrade);
                request_subscription(clients, subs, slot, head, names, how, io)
            }
        }
    }

    fn switch_if_other(conns: &mut Connections, slot: u32, first: u8) -> bool {
        packets::switch_if_connect(conns, slot, first)
    }

    fn switch_if_http2<I: Io>(clients: &mut Clients, slot: u32, bytes: &[u8], io: &I) -> bool {
        contract::switch_if_http2(clients, slot, bytes, io)
    }

    fn task_for_other_protocol(
        ctx: &Context,
        head: &Head<'_>,
        upgrade: bool,
    ) -> Option<Result<Task, Reason>> {
        if upgrade && packets::offers_mqtt(head) {
            return Some(Ok(Task::Upgrade));
        }
        if is_pusher_path(ctx, head.path) {
            return Some(match upgrade {
                true => Ok(Task::Upgrade),
                false => Err(Reason::PusherPath),
            });
        }
        Some(match commands::endpoint_of(ctx, head.path)? {
            CentrifugoEndpoint::Refused(reason) => Err(reason),
            _ if is_token(ctx, head, names_channel) => Err(Reason::TokenOfSubscription),
            CentrifugoEndpoint::WebSocket | CentrifugoEndpoint::OneWayWebSocket if upgrade => {
                Ok(Task::Upgrade)
            }
            CentrifugoEndpoint::WebSocket | CentrifugoEndpoint::OneWayWebSocket => {
                Err(Reason::NoUpgrade)
            }
            _ if upgrade => Err(Reason::CentrifugoPath),
            endpoint => match (endpoint, head.method) {
                (CentrifugoEndpoint::Emulation, Method::Post) => Ok(Task::Commands),
                (CentrifugoEndpoint::Emulation, _) | (CentrifugoEndpoint::Lines, Method::Get) => {
                    Err(Reason::Method)
                }
                (_, Method::Get | Method::Post) => Ok(Task::Upgrade),
                _ => Err(Reason::Method),
            },
        })
    }

    fn methods_of_other_protocol(ctx: &Context, path: &[u8]) -> Option<&'static str> {
        commands::endpoint_of(ctx, path)?.methods()
    }

    fn is_command_path(ctx: &Context, path: &[u8]) -> bool {
        let endpoint = commands::endpoint_of(ctx, path);
        matches!(
            endpoint,
            Some(
                CentrifugoEndpoint::Lines
                    | CentrifugoEndpoint::Events
                    | CentrifugoEndpoint::Emulation
            )
        )
    }
}

/// Upgrades to a WebSocket that carries another protocol.
fn upgrade<I: Io>(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    endpoint: Option<CentrifugoEndpoint>,
    io: &mut I,
) -> Flow {
    let is_mqtt = packets::offers_mqtt(head);
    if !is_mqtt && is_pusher_path(&clients.ctx, head.path) {
        return begin_pusher(clients, slot, head, io);
    }
    let chosen = match is_mqtt {
        true => Some(packets::SUBPROTOCOL),
        false => commands::subprotocol_of(head),
    };
    if let Err(reason) = accept_upgrade(clients, slot, head, FrameContent::Protocol(chosen)) {
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    match is_mqtt {
        true => begin_mqtt_in_frames(clients, slot),
        false => begin_centrifugo(clients, slot, commands::options_of(endpoint, head)),
    }
    clients.send_reply(slot, io);
    Flow::Wait
}
