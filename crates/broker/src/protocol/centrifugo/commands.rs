//! Reads a client's commands from frames, carries them out one after another, and holds those that must wait.

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Answer, Command, Commands, Error, Format, Limits, Request, decode};
use crore_wire::http::head::Head;
use crore_wire::websocket::handshake::choose_subprotocol;

use crate::base::reason::Reason;
use crate::client::credit::{must_stall, stop_reading, waits_for_carriers};
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::list::has_many_pages;
use crate::client::list::page::request_next_pages;
use crate::client::row::{PROTOCOL_OPTIONS, State};
use crate::home::Home;
use crate::io::Io;
use crate::mail::backend::BackendResult;
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::centrifugo::backend::{awaits_backend, take_grant, waits_for_backend};
use crate::protocol::centrifugo::close::{end_for_order, end_with_text};
use crate::protocol::centrifugo::codec::CentrifugoCodec;
use crate::protocol::centrifugo::connect::handle_connect;
use crate::protocol::centrifugo::expiry::end_subscriptions_without_right;
use crate::protocol::centrifugo::history::handle_history;
use crate::protocol::centrifugo::join_leave::ask_for_changes;
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::{AWAITS_PONG, CONNECTED, ONE_WAY, PROTOBUF, format_of};
use crate::protocol::centrifugo::presence::{awaits_members, handle_presence_command};
use crate::protocol::centrifugo::publish::handle_publish_command;
use crate::protocol::centrifugo::reply::{
    CommandRefusal, write_backend_error, write_error, write_reply,
};
use crate::protocol::centrifugo::rpc::{awaits_answer, handle_rpc};
use crate::protocol::centrifugo::server_side::is_connecting;
use crate::protocol::centrifugo::state::{state, state_mut};
use crate::protocol::centrifugo::subscribe::{
    awaits_subscribe, handle_sub_refresh, handle_subscribe_command, handle_unsubscribe_command,
};
use crate::protocol::centrifugo::tokens::{
    awaits_verdict_on_token, handle_refresh, take_verdict, waits_for_verdict,
};
use crate::protocol::front::{Clients, Connections, Context, Front};
use crate::protocol::http::options::UPGRADE;
use crate::protocol::http::parameters::parameter;
use crate::store::slab::NONE;

/// The subprotocol of protobuf.
const PROTOBUF_PROTOCOL: &str = "centrifuge-protobuf";
/// The maximum number of headers of a connect command. This server does not use them.
const HEADERS_MAX: usize = 64;

/// What a path of this protocol serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CentrifugoEndpoint {
    /// The WebSocket.
    WebSocket,
    /// The WebSocket on which only the server sends, after the client's connect command.
    OneWayWebSocket,
    /// The event stream whose client sends no commands after its connect.
    OneWayEvents,
    /// The stream of lines whose client sends no commands after its connect.
    OneWayLines,
    /// The event stream whose client posts its commands.
    Events,
    /// The stream of lines or protobuf messages whose client posts its commands.
    Lines,
    /// Posted commands, which name the session of a connection.
    Emulation,
    /// Nothing, for this reason.
    Refused(Reason),
}

impl CentrifugoEndpoint {
    /// Whether the server sends to the client in the body of an answer.
    pub fn is_body(self) -> bool {
        match self {
            CentrifugoEndpoint::OneWayEvents
            | CentrifugoEndpoint::OneWayLines
            | CentrifugoEndpoint::Events
            | CentrifugoEndpoint::Lines => true,
            CentrifugoEndpoint::WebSocket | CentrifugoEndpoint::OneWayWebSocket => false,
            CentrifugoEndpoint::Emulation | CentrifugoEndpoint::Refused(_) => false,
        }
    }

    /// The methods that pages of other sites may use on the path.
    pub fn methods(self) -> Option<&'static str> {
        match self {
            CentrifugoEndpoint::OneWayEvents
            | CentrifugoEndpoint::OneWayLines
            | CentrifugoEndpoint::Events => Some("GET, POST, OPTIONS"),
            CentrifugoEndpoint::Lines | CentrifugoEndpoint::Emulation => Some("POST, OPTIONS"),
            CentrifugoEndpoint::WebSocket
            | CentrifugoEndpoint::OneWayWebSocket
            | CentrifugoEndpoint::Refused(_) => None,
        }
    }
}

/// What this path serves; `None` if it is no path of this protocol.
pub(crate) fn endpoint_of(ctx: &Context, path: &[u8]) -> Option<CentrifugoEndpoint> {
    let settings = &ctx.world.settings.centrifugo;
    if path == settings.emulation_path.as_bytes() {
        return Some(match settings.enabled {
            true => CentrifugoEndpoint::Emulation,
            false => CentrifugoEndpoint::Refused(Reason::CentrifugoOff),
        });
    }
    let rest = path.strip_prefix(settings.path.as_bytes())?;
    let rest = rest.strip_prefix(b"/")?;
    Some(match (settings.enabled, rest) {
        (false, _) => CentrifugoEndpoint::Refused(Reason::CentrifugoOff),
        (true, b"websocket") => CentrifugoEndpoint::WebSocket,
        (true, b"uni_websocket") => CentrifugoEndpoint::OneWayWebSocket,
        (true, b"sse") => CentrifugoEndpoint::Events,
        (true, b"http_stream") => CentrifugoEndpoint::Lines,
        (true, b"uni_sse") => CentrifugoEndpoint::OneWayEvents,
        (true, b"uni_http_stream") => CentrifugoEndpoint::OneWayLines,
        (true, _) => CentrifugoEndpoint::Refused(Reason::CentrifugoPath),
    })
}

/// The subprotocol to choose, if the client offers it.
pub(crate) fn subprotocol_of(head: &Head<'_>) -> Option<&'static str> {
    let offered = head.headers("sec-websocket-protocol");
    choose_subprotocol(offered, &[PROTOBUF_PROTOCOL]).map(|_| PROTOBUF_PROTOCOL)
}

/// The options of a WebSocket at this endpoint.
pub(crate) fn options_of(endpoint: Option<CentrifugoEndpoint>, head: &Head<'_>) -> u32 {
    let protocol_parameter = parameter(head.query, b"cf_protocol");
    let is_protobuf = subprotocol_of(head).is_some()
        || protocol_parameter.is_some_and(|name| *name == *b"protobuf");
    match endpoint {
        Some(CentrifugoEndpoint::OneWayWebSocket) => ONE_WAY,
        _ => PROTOBUF * u32::from(is_protobuf),
    }
}

/// Switches a connection to this protocol, with these options.
pub(crate) fn begin_centrifugo(clients: &mut Clients, slot: u32, options: u32) {
    let head_s = clients.ctx.world.settings.timeouts.head_s;
    let row = clients.conns.get_mut(slot);
    // The options of the request have no meaning any more.
    row.consumer.options &= !PROTOCOL_OPTIONS;
    row.consumer.options |= options;
    row.consumer.state = State::Centrifugo;
    row.consumer.member_place = clients.ctx.now.s + head_s;
    row.link.deadline_s = 0;
}

/// How a connection continues after a command.
enum AfterCommand {
    /// It handles the next command.
    NextCommand,
    /// It handles the same command again, later.
    SameCommandLater,
    /// It has ended.
    Stop,
}

impl Front {
    /// Handles a frame of commands. Returns false if the connection takes no more frames.
    pub(crate) fn handle_centrifugo_frame<I: Io>(
        &mut self,
        slot: u32,
        data: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        if let Err(error) = check_frame(&self.clients, slot, data) {
            end_for_bad_frame(&mut self.clients, slot, error, io);
            return false;
        }
        let held_commands = match self.take_held_commands(slot) {
            // Earlier commands wait, so these wait behind them.
            Some(held_commands) => append_frame(&self.clients, slot, held_commands, data),
            None => match self.handle_commands(slot, data, home, io) {
                Some(consumed) if consumed < data.len() => SpillBuffer::new(&data[consumed..]),
                Some(_) => return true,
                None => return false,
            },
        };
        self.hold_commands(slot, held_commands, io)
    }

    /// Handles a frame of commands that was posted in a request. The commands wait for the connection's turn. Nothing slows such requests down, so the bytes that
    /// wait are limited to those of the largest frame.
    pub(super) fn handle_posted_frame<I: Io>(&mut self, slot: u32, data: &[u8], io: &mut I) {
        if let Err(error) = check_frame(&self.clients, slot, data) {
            return end_for_bad_frame(&mut self.clients, slot, error, io);
        }
        let held_commands = self.take_held_commands(slot).unwrap_or_default();
        let held_commands = append_frame(&self.clients, slot, held_commands, data);
        let settings = &self.clients.ctx.world.settings;
        let bytes_max = settings.limits.message_bytes + settings.centrifugo.frame_beside_bytes;
        if held_commands.rest().len() > bytes_max {
            return end_for_room(&mut self.clients, slot, io);
        }
        if self.hold_commands(slot, held_commands, io) {
            let conn = self.clients.conns.id_of(slot);
            self.queues.resume_later(&self.clients, conn);
        }
    }

    /// Continues with held commands, and with subscriptions that fell behind.
    pub(crate) fn centrifugo_resume<I: Io>(
        &mut self,
        slot: u32,
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        if awaits_verdict_on_token(&self.clients, slot)
            || awaits_backend(&self.clients, slot)
            || is_connecting(&self.clients, slot)
        {
            return;
        }
        let conn = self.clients.conns.id_of(slot);
        self.queues
            .resume_reading(&mut self.clients.conns, conn, io);
        if let Some(mut held_commands) = self.take_held_commands(slot) {
            let Some(consumed) = self.handle_commands(slot, held_commands.rest(), home, io) else {
                return;
            };
            held_commands.consume(consumed);
            if !held_commands.is_empty() && !self.hold_commands(slot, held_commands, io) {
                return;
            }
        }
        let row = self.clients.conns.get(slot);
        if row.link.unprocessed_input != NONE && row.has_option(UPGRADE) {
            self.receive_frames(slot, &mut [], home, io);
        }
        if self.clients.conns.get(slot).consumer.state == State::Centrifugo {
            request_next_pages::<CentrifugoCodec, _>(&mut self.clients, &mut self.subs, slot);
            ask_for_changes(&mut self.clients, &mut self.subs.lanes, slot);
        }
    }

    /// Carries out commands. Returns the number of bytes of those that are done; `None` if the connection ends.
    fn handle_commands<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<usize> {
        let limits = Limits {
            // The commands were counted when their frame came.
            commands: usize::MAX,
            subs: self
                .clients
                .ctx
                .world
                .settings
                .limits
                .subscriptions_with_room(),
            headers: HEADERS_MAX,
        };
        let format = format_of(self.clients.conns.get(slot));
        let mut scratch = decode::Scratch::new(channel_names(&self.clients.ctx.world));
        let mut commands = Commands::new(format, bytes, limits);
        let mut rest = bytes.len();
        while rest > 0 {
            if self.pause_if_must_wait(slot, io) {
                break;
            }
            let command = match commands.next(&mut scratch)? {
                Ok(command) => command,
                Err(error) => {
                    end_for_bad_frame(&mut self.clients, slot, error, io);
                    return None;
                }
            };
            self.clients.meter.work.steps.add(1);
            let rest_after = commands.rest().len();
            self.clients.meter.work.steps.add_bytes(rest - rest_after);
            match self.handle_command(slot, &command, home, io) {
                AfterCommand::NextCommand => rest = rest_after,
                AfterCommand::SameCommandLater => break,
                AfterCommand::Stop => return None,
            }
        }
        self.clients.send_reply(slot, io);
        Some(bytes.len() - rest)
    }

    /// Whether no command may be carried out now. Then stops reading or pauses the connection, which is resumed later.
    fn pause_if_must_wait<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        if self.clients.conns.get(slot).link.outbox != NONE {
            return true;
        }
        if awaits_verdict_on_token(&self.clients, slot)
            || awaits_backend(&self.clients, slot)
            || is_connecting(&self.clients, slot)
            || has_many_pages(&self.clients.conns, slot)
        {
            // The answers that the connection waits for resume it.
            stop_reading(&mut self.clients.conns, slot, io);
            return true;
        }
        if self.clients.meter.work.is_spent() {
            self.queues
                .pause_until_next_turn(&mut self.clients, slot, io);
            return true;
        }
        false
    }

    /// Carries out one command, unless it must wait. A refused command gets an error, or ends the connection.
    fn handle_command<I: Io>(
        &mut self,
        slot: u32,
        command: &Command<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> AfterCommand {
        let is_stalled = match command.request {
            Request::Publish(_) => must_stall(&self.clients, &self.subs.lanes, slot),
            Request::Subscribe(_)
            | Request::History(_)
            | Request::Presence(_)
            | Request::PresenceStats(_) => waits_for_carriers(&self.clients, slot),
            _ => false,
        };
        if is_stalled {
            let (conns, stats) = (&mut self.clients.conns, &mut self.clients.meter.stats);
            self.queues.stall(conns, stats, slot, io);
            return AfterCommand::SameCommandLater;
        }
        if let Request::Unsubscribe(channel) = command.request
            && awaits_subscribe(&mut self.clients, &self.subs, slot, channel)
        {
            stop_reading(&mut self.clients.conns, slot, io);
            return AfterCommand::SameCommandLater;
        }
        let asks_presence = matches!(
            command.request,
            Request::Presence(_) | Request::PresenceStats(_)
        );
        if asks_presence && awaits_members(&self.clients, slot) {
            // The answer that it waits for resumes it.
            stop_reading(&mut self.clients.conns, slot, io);
            return AfterCommand::SameCommandLater;
        }
        let is_connect = matches!(command.request, Request::Connect(_));
        if is_connect != self.clients.conns.get(slot).has_option(CONNECTED)
            && waits_for_verdict(self, slot, &command.request, io)
        {
            return AfterCommand::SameCommandLater;
        }
        if matches!(command.request, Request::Rpc { .. }) && awaits_answer(&self.clients, slot) {
            // An answer of the backend resumes it.
            stop_reading(&mut self.clients.conns, slot, io);
            return AfterCommand::SameCommandLater;
        }
        let executed = match waits_for_backend(self, slot, command, io) {
            Ok(true) => return AfterCommand::SameCommandLater,
            Ok(false) => self.execute_command(slot, command, home, io),
            Err(refusal) => Err(refusal),
        };
        match executed {
            Ok(()) => AfterCommand::NextCommand,
            Err(refusal) => self.refuse_command(slot, command, refusal, io),
        }
    }

    fn refuse_command<I: Io>(
        &mut self,
        slot: u32,
        command: &Command<'_>,
        refusal: CommandRefusal,
        io: &mut I,
    ) -> AfterCommand {
        let clients = &mut self.clients;
        let (id, is_connect) = (command.id, matches!(command.request, Request::Connect(_)));
        // After a refused connect, the next commands would be violations, which is not the client's fault. So the connection ends with a code after which the
        // client connects again.
        match refusal {
            CommandRefusal::Error(code, text) => {
                write_error(clients, slot, id, code, &text);
                if is_connect {
                    let end = match code {
                        ErrorCode::TOKEN_EXPIRED => Disconnect::EXPIRED,
                        _ => Disconnect::CONNECTION_CLOSED,
                    };
                    end_with_text(clients, slot, end, &text, io);
                }
            }
            CommandRefusal::Backend(error) => {
                write_backend_error(clients, slot, id, &error);
                if is_connect {
                    let end = Disconnect::CONNECTION_CLOSED;
                    end_with_text(clients, slot, end, &error.message, io);
                }
            }
            CommandRefusal::End(code, text) => {
                end_with_text(clients, slot, code, &text, io);
                return AfterCommand::Stop;
            }
            CommandRefusal::Disconnect(code, reason) => {
                end_for_order(clients, slot, code, &reason, io);
                return AfterCommand::Stop;
            }
        }
        match is_connect {
            true => AfterCommand::Stop,
            false => AfterCommand::NextCommand,
        }
    }

    fn execute_command<I: Io>(
        &mut self,
        slot: u32,
        command: &Command<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Result<(), CommandRefusal> {
        let Front {
            clients,
            subs,
            census,
            ..
        } = self;
        let id = command.id;
        let is_connected = clients.conns.get(slot).has_option(CONNECTED);
        if !is_connected && !matches!(command.request, Request::Connect(_)) {
            return Err(CommandRefusal::bad_request(
                "the first command is not connect",
            ));
        }
        let verdict = take_verdict(clients, slot);
        match &command.request {
            Request::Connect(connect) => {
                let grant_of = BackendResult::into_connect;
                let granted = take_grant(clients, subs, slot, &command.request, grant_of)?;
                handle_connect(clients, subs, slot, (id, connect), (verdict, granted))
            }
            Request::Pong => {
                clients.conns.get_mut(slot).consumer.options &= !AWAITS_PONG;
                Ok(())
            }
            Request::Ping => {
                write_reply(clients, slot, id, Answer::Ping);
                Ok(())
            }
            Request::Subscribe(request) => {
                let grant_of = BackendResult::into_subscribe;
                let granted = take_grant(clients, subs, slot, &command.request, grant_of)?;
                let grants = (verdict, granted);
                handle_subscribe_command(clients, subs, census, slot, (id, request), grants)
            }
            Request::Unsubscribe(channel) => {
                handle_unsubscribe_command(clients, subs, slot, id, channel)
            }
            Request::Publish(publish) => {
                let grant_of = BackendResult::into_publish;
                let granted = take_grant(clients, subs, slot, &command.request, grant_of)?;
                handle_publish_command(clients, subs, slot, (id, publish), granted, home)
            }
            Request::History(request) => handle_history(clients, subs, slot, id, request),
            Request::Refresh(token) => {
                handle_refresh(clients, slot, id, token, verdict)?;
                end_subscriptions_without_right(clients, subs, slot);
                Ok(())
            }
            Request::SubRefresh(refresh) => {
                handle_sub_refresh(clients, subs, slot, (id, refresh), verdict)
            }
            // A send command has no reply that could have the error.
            Request::Send(_) => Err(CommandRefusal::End(
                Disconnect::NOT_AVAILABLE,
                Disconnect::NOT_AVAILABLE.text.into(),
            )),
            Request::Presence(channel) => {
                handle_presence_command(clients, &mut subs.lanes, slot, id, (channel, false))
            }
            Request::PresenceStats(channel) => {
                handle_presence_command(clients, &mut subs.lanes, slot, id, (channel, true))
            }
            Request::Rpc { method, data } => handle_rpc(self, slot, id, (method, data), io),
        }
    }

    /// Takes the held commands.
    fn take_held_commands(&mut self, slot: u32) -> Option<SpillBuffer> {
        let held = state(&self.clients.conns, slot)?;
        if held.held_commands.is_empty() {
            return None;
        }
        let held = core::mem::take(&mut state_mut(&mut self.clients.conns, slot).held_commands);
        self.clients.conns.stop_counting_held_bytes(held.bytes());
        Some(held)
    }

    /// Holds commands that must wait. Returns false if the connection ends, because there is no room for them.
    fn hold_commands<I: Io>(&mut self, slot: u32, commands: SpillBuffer, io: &mut I) -> bool {
        let Front {
            clients,
            queues,
            census,
            ..
        } = self;
        if !has_receive_room(clients, queues, census, slot, commands.bytes(), io) {
            end_for_room(clients, slot, io);
            return false;
        }
        clients.conns.count_held_bytes(commands.bytes());
        state_mut(&mut clients.conns, slot).held_commands = commands;
        true
    }
}

/// Checks the number of commands in a frame.
fn check_frame(clients: &Clients, slot: u32, data: &[u8]) -> Result<(), Error> {
    let commands_max = clients.ctx.world.settings.centrifugo.frame_commands_max;
    match decode::count(format_of(clients.conns.get(slot)), data)? <= commands_max {
        true => Ok(()),
        false => Err(Error::TooManyCommands),
    }
}

/// Appends the commands of a frame to held commands.
fn append_frame(
    clients: &Clients,
    slot: u32,
    mut commands: SpillBuffer,
    data: &[u8],
) -> SpillBuffer {
    let is_json = format_of(clients.conns.get(slot)) == Format::Json;
    if is_json && !commands.is_empty() && !commands.rest().ends_with(b"\n") {
        commands.append(b"\n", usize::MAX);
    }
    commands.append(data, usize::MAX);
    commands
}

/// Ends a connection whose frame cannot be read.
fn end_for_bad_frame<I: Io>(clients: &mut Clients, slot: u32, error: Error, io: &mut I) {
    let text = alloc::format!("{error}");
    end_with_text(clients, slot, Disconnect::BAD_REQUEST, &text, io);
}

/// The bytes of held commands, for the limits of received bytes.
pub(super) fn held_command_bytes(conns: &Connections, slot: u32) -> usize {
    state(conns, slot).map_or(0, |it| it.held_commands.bytes())
}
