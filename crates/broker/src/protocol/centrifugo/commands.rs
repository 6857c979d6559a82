//! The commands of a client: takes them out of frames, has them carried out one after another, and holds those that must wait.

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{Answer, Command, Commands, Error, Format, Limits, Request, decode};
use crore_wire::http::head::Head;
use crore_wire::websocket::handshake::choose_subprotocol;

use crate::base::reason::Reason;
use crate::client::credit::{must_stall, stop_reading, waits_for_carriers};
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::list::has_many_pages;
use crate::client::list::page::catch_up;
use crate::client::row::{PROTOCOL_OPTIONS, State};
use crate::home::Home;
use crate::io::Io;
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::centrifugo::close::end_saying;
use crate::protocol::centrifugo::codec::CentrifugoCodec;
use crate::protocol::centrifugo::connect::client_connects;
use crate::protocol::centrifugo::history::client_asks_history;
use crate::protocol::centrifugo::join_leave::ask_for_changes;
use crate::protocol::centrifugo::lapse::end_not_granted;
use crate::protocol::centrifugo::options::{AWAITS_PONG, CONNECTED, ONE_WAY, PROTOBUF, format_of};
use crate::protocol::centrifugo::presence::{awaits_members, client_asks_presence};
use crate::protocol::centrifugo::publish::client_publishes;
use crate::protocol::centrifugo::reply::{Refused, write_error, write_reply};
use crate::protocol::centrifugo::server_side::is_connecting;
use crate::protocol::centrifugo::state::{state, state_mut};
use crate::protocol::centrifugo::subscribe::{
    awaits_subscribe, client_refreshes_subscription, client_subscribes, client_unsubscribes,
};
use crate::protocol::centrifugo::tokens::{
    client_refreshes, is_asked_for, take_verdict, waits_for_verdict,
};
use crate::protocol::front::{Clients, Connections, Context, Front};
use crate::protocol::http::options::UPGRADE;
use crate::protocol::http::parameters::parameter;
use crate::store::slab::NONE;

/// The subprotocol of protobuf.
const PROTOBUF_PROTOCOL: &str = "centrifuge-protobuf";
/// The maximum number of headers of a connect command. They are for backends, and are not read.
const HEADERS_MAX: usize = 64;

/// Where a path of this protocol leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To the WebSocket.
    WebSocket,
    /// To the WebSocket that only goes to the client.
    OneWayWebSocket,
    /// To the event stream that only goes to the client.
    OneWayEvents,
    /// To the stream of lines that only goes to the client.
    OneWayLines,
    /// To the event stream whose client posts its commands.
    Events,
    /// To the stream of replies whose client posts its commands.
    Lines,
    /// To the connection whose session the posted commands name.
    Emulation,
    /// Nowhere, for this reason.
    Nowhere(Reason),
}

impl Place {
    /// Whether the way to the client is the body of an answer.
    pub fn is_body(self) -> bool {
        match self {
            Place::OneWayEvents | Place::OneWayLines | Place::Events | Place::Lines => true,
            Place::WebSocket | Place::OneWayWebSocket => false,
            Place::Emulation | Place::Nowhere(_) => false,
        }
    }

    /// The methods that pages of other sites may use there.
    pub fn methods(self) -> Option<&'static str> {
        match self {
            Place::OneWayEvents | Place::OneWayLines | Place::Events => Some("GET, POST, OPTIONS"),
            Place::Lines | Place::Emulation => Some("POST, OPTIONS"),
            Place::WebSocket | Place::OneWayWebSocket | Place::Nowhere(_) => None,
        }
    }
}

/// Where this path leads; `None` if it is not of this protocol.
pub(crate) fn place_of(ctx: &Context, path: &[u8]) -> Option<Place> {
    let settings = &ctx.world.settings.centrifugo;
    if path == settings.emulation_path.as_bytes() {
        return Some(match settings.enabled {
            true => Place::Emulation,
            false => Place::Nowhere(Reason::CentrifugoOff),
        });
    }
    let rest = path.strip_prefix(settings.path.as_bytes())?;
    let rest = rest.strip_prefix(b"/")?;
    Some(match (settings.enabled, rest) {
        (false, _) => Place::Nowhere(Reason::CentrifugoOff),
        (true, b"websocket") => Place::WebSocket,
        (true, b"uni_websocket") => Place::OneWayWebSocket,
        (true, b"sse") => Place::Events,
        (true, b"http_stream") => Place::Lines,
        (true, b"uni_sse") => Place::OneWayEvents,
        (true, b"uni_http_stream") => Place::OneWayLines,
        (true, _) => Place::Nowhere(Reason::CentrifugoPath),
    })
}

/// The subprotocol to choose, if the client offers it.
pub(crate) fn subprotocol_of(head: &Head<'_>) -> Option<&'static str> {
    let offered = head.headers("sec-websocket-protocol");
    choose_subprotocol(offered, &[PROTOBUF_PROTOCOL]).map(|_| PROTOBUF_PROTOCOL)
}

/// The options of a WebSocket at this place.
pub(crate) fn options_of(place: Option<Place>, head: &Head<'_>) -> u32 {
    let named = parameter(head.query, b"cf_protocol");
    let is_protobuf =
        subprotocol_of(head).is_some() || named.is_some_and(|name| *name == *b"protobuf");
    match place {
        Some(Place::OneWayWebSocket) => ONE_WAY,
        _ => PROTOBUF * u32::from(is_protobuf),
    }
}

/// The connection speaks this protocol from now on, with these options.
pub(crate) fn begin_centrifugo(clients: &mut Clients, slot: u32, options: u32) {
    let head_s = clients.ctx.world.settings.timeouts.head_s;
    let row = clients.conns.get_mut(slot);
    // The options of the request have no meaning any more.
    row.consumer.options &= !PROTOCOL_OPTIONS;
    row.consumer.options |= options;
    row.consumer.state = State::Centrifugo;
    row.consumer.place = clients.ctx.now.s + head_s;
    row.link.deadline_s = 0;
}

/// How a connection goes on after a command.
enum After {
    /// With the next command.
    Next,
    /// With the same one, when it has waited.
    Later,
    /// Not at all.
    End,
}

impl Front {
    /// A frame of commands. False if the connection takes no more frames.
    pub(crate) fn centrifugo_frame<I: Io>(
        &mut self,
        slot: u32,
        data: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        if let Err(error) = check_frame(&self.clients, slot, data) {
            end_wrong(&mut self.clients, slot, error, io);
            return false;
        }
        let held = match self.take_held_commands(slot) {
            // Earlier commands wait, so these wait behind them.
            Some(held) => append_frame(&self.clients, slot, held, data),
            None => match self.centrifugo_commands(slot, data, home, io) {
                Some(used) if used < data.len() => SpillBuffer::new(&data[used..]),
                Some(_) => return true,
                None => return false,
            },
        };
        self.hold_commands(slot, held, io)
    }

    /// A frame of commands that came in a request of its own. They wait for the connection's turn. Requests wait for no one, so what they may add is
    /// bounded: as much as a frame may have.
    pub(super) fn posted_frame<I: Io>(&mut self, slot: u32, data: &[u8], io: &mut I) {
        if let Err(error) = check_frame(&self.clients, slot, data) {
            return end_wrong(&mut self.clients, slot, error, io);
        }
        let held = self.take_held_commands(slot).unwrap_or_default();
        let held = append_frame(&self.clients, slot, held, data);
        let settings = &self.clients.ctx.world.settings;
        let most = settings.limits.message_bytes + settings.centrifugo.frame_beside_bytes;
        if held.rest().len() > most {
            return end_for_room(&mut self.clients, slot, io);
        }
        if self.hold_commands(slot, held, io) {
            let conn = self.clients.conns.id_of(slot);
            self.queues.resume_later(&self.clients, conn);
        }
    }

    /// Goes on with held commands, and with subscriptions that fell behind.
    pub(crate) fn centrifugo_resume<I: Io>(
        &mut self,
        slot: u32,
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        if is_asked_for(&self.clients, slot) || is_connecting(&self.clients, slot) {
            return;
        }
        let conn = self.clients.conns.id_of(slot);
        self.queues.read_again(&mut self.clients.conns, conn, io);
        if let Some(mut held) = self.take_held_commands(slot) {
            let Some(used) = self.centrifugo_commands(slot, held.rest(), home, io) else {
                return;
            };
            held.consume(used);
            if !held.is_empty() && !self.hold_commands(slot, held, io) {
                return;
            }
        }
        let row = self.clients.conns.get(slot);
        if row.link.unprocessed_input != NONE && row.has_option(UPGRADE) {
            self.frames_received(slot, &mut [], home, io);
        }
        if self.clients.conns.get(slot).consumer.state == State::Centrifugo {
            catch_up::<CentrifugoCodec, _>(&mut self.clients, &mut self.subs, slot);
            ask_for_changes(&mut self.clients, &mut self.subs.lanes, slot);
        }
    }

    /// Carries out commands. Returns the number of bytes of those that are done, unless the connection ends.
    fn centrifugo_commands<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<usize> {
        let limits = Limits {
            // They were counted when their frame came.
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
        let mut scratch = decode::Scratch::default();
        let mut commands = Commands::new(format, bytes, limits);
        let mut rest = bytes.len();
        while rest > 0 {
            if self.must_wait_now(slot, io) {
                break;
            }
            let command = match commands.next(&mut scratch)? {
                Ok(command) => command,
                Err(error) => {
                    end_wrong(&mut self.clients, slot, error, io);
                    return None;
                }
            };
            self.clients.meter.work.steps.add(1);
            let after = commands.rest().len();
            self.clients.meter.work.steps.add_bytes(rest - after);
            match self.centrifugo_command(slot, &command, home, io) {
                After::Next => rest = after,
                After::Later => break,
                After::End => return None,
            }
        }
        self.clients.send_reply(slot, io);
        Some(bytes.len() - rest)
    }

    /// Whether no command is carried out now. Then the connection is resumed later.
    fn must_wait_now<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        if self.clients.conns.get(slot).link.outbox != NONE {
            return true;
        }
        if is_asked_for(&self.clients, slot)
            || is_connecting(&self.clients, slot)
            || has_many_pages(&self.clients.conns, slot)
        {
            // The answers that it waits for resume it.
            stop_reading(&mut self.clients.conns, slot, io);
            return true;
        }
        if self.clients.meter.work.is_spent() {
            self.queues.pause(&mut self.clients, slot, io);
            return true;
        }
        false
    }

    /// Carries out one command.
    fn centrifugo_command<I: Io>(
        &mut self,
        slot: u32,
        command: &Command<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> After {
        let must_stall = match command.request {
            Request::Publish(_) => must_stall(&self.clients, &self.subs.lanes, slot),
            Request::Subscribe(_)
            | Request::History(_)
            | Request::Presence(_)
            | Request::PresenceStats(_) => waits_for_carriers(&self.clients, slot),
            _ => false,
        };
        if must_stall {
            let (conns, stats) = (&mut self.clients.conns, &mut self.clients.meter.stats);
            self.queues.stall(conns, stats, slot, io);
            return After::Later;
        }
        if let Request::Unsubscribe(channel) = command.request
            && awaits_subscribe(&mut self.clients, &self.subs, slot, channel)
        {
            stop_reading(&mut self.clients.conns, slot, io);
            return After::Later;
        }
        let asks_presence = matches!(
            command.request,
            Request::Presence(_) | Request::PresenceStats(_)
        );
        if asks_presence && awaits_members(&self.clients, slot) {
            // The answer that it waits for resumes it.
            stop_reading(&mut self.clients.conns, slot, io);
            return After::Later;
        }
        let is_connect = matches!(command.request, Request::Connect(_));
        if is_connect != self.clients.conns.get(slot).has_option(CONNECTED)
            && waits_for_verdict(self, slot, &command.request, io)
        {
            return After::Later;
        }
        match self.carry_out_command(slot, command, home) {
            Ok(()) => After::Next,
            Err(Refused::Error(code, words)) => {
                write_error(&mut self.clients, slot, command.id, code, &words);
                if !is_connect {
                    return After::Next;
                }
                // The commands behind it would be wrong without a connect, which is not the client's fault. It comes back.
                let end = match code {
                    ErrorCode::TOKEN_EXPIRED => Disconnect::EXPIRED,
                    _ => Disconnect::CONNECTION_CLOSED,
                };
                end_saying(&mut self.clients, slot, end, &words, io);
                After::End
            }
            Err(Refused::End(code, words)) => {
                end_saying(&mut self.clients, slot, code, &words, io);
                After::End
            }
        }
    }

    fn carry_out_command(
        &mut self,
        slot: u32,
        command: &Command<'_>,
        home: &mut Option<Home>,
    ) -> Result<(), Refused> {
        let Front {
            clients,
            subs,
            census,
            ..
        } = self;
        let id = command.id;
        let is_connected = clients.conns.get(slot).has_option(CONNECTED);
        if !is_connected && !matches!(command.request, Request::Connect(_)) {
            return Err(Refused::bad("the first command is not connect"));
        }
        let verdict = take_verdict(clients, slot);
        match &command.request {
            Request::Connect(connect) => {
                client_connects(clients, subs, slot, (id, connect), verdict)
            }
            Request::Pong => {
                clients.conns.get_mut(slot).consumer.options &= !AWAITS_PONG;
                Ok(())
            }
            Request::Ping => {
                write_reply(clients, slot, id, Answer::Ping);
                Ok(())
            }
            Request::Subscribe(wanted) => {
                client_subscribes(clients, subs, census, slot, (id, wanted), verdict)
            }
            Request::Unsubscribe(channel) => client_unsubscribes(clients, subs, slot, id, channel),
            Request::Publish(publish) => client_publishes(clients, subs, slot, id, publish, home),
            Request::History(wanted) => client_asks_history(clients, subs, slot, id, wanted),
            Request::Refresh(token) => {
                client_refreshes(clients, slot, id, token, verdict)?;
                end_not_granted(clients, subs, slot);
                Ok(())
            }
            Request::SubRefresh(refresh) => {
                client_refreshes_subscription(clients, subs, slot, (id, refresh), verdict)
            }
            // No reply could say it.
            Request::Send(_) => Err(Refused::End(
                Disconnect::NOT_AVAILABLE,
                Disconnect::NOT_AVAILABLE.text.into(),
            )),
            Request::Presence(channel) => {
                client_asks_presence(clients, &mut subs.lanes, slot, id, (channel, false))
            }
            Request::PresenceStats(channel) => {
                client_asks_presence(clients, &mut subs.lanes, slot, id, (channel, true))
            }
            Request::Rpc { .. } => Err(Refused::error(ErrorCode::NOT_AVAILABLE)),
        }
    }

    /// Takes the commands that wait.
    fn take_held_commands(&mut self, slot: u32) -> Option<SpillBuffer> {
        let held = state(&self.clients.conns, slot)?;
        if held.held.is_empty() {
            return None;
        }
        let held = core::mem::take(&mut state_mut(&mut self.clients.conns, slot).held);
        self.clients.conns.stop_counting_held_bytes(held.bytes());
        Some(held)
    }

    /// Keeps commands that wait. False if the connection ends, because there is no room for them.
    fn hold_commands<I: Io>(&mut self, slot: u32, held: SpillBuffer, io: &mut I) -> bool {
        let Front {
            clients,
            queues,
            census,
            ..
        } = self;
        if !has_receive_room(clients, queues, census, slot, held.bytes(), io) {
            end_for_room(clients, slot, io);
            return false;
        }
        clients.conns.count_held_bytes(held.bytes());
        state_mut(&mut clients.conns, slot).held = held;
        true
    }
}

/// Checks a frame as a whole.
fn check_frame(clients: &Clients, slot: u32, data: &[u8]) -> Result<(), Error> {
    let most = clients.ctx.world.settings.centrifugo.frame_commands_max;
    match decode::count(format_of(clients.conns.get(slot)), data)? <= most {
        true => Ok(()),
        false => Err(Error::TooManyCommands),
    }
}

/// Held commands, and behind them those of this frame.
fn append_frame(clients: &Clients, slot: u32, mut held: SpillBuffer, data: &[u8]) -> SpillBuffer {
    let is_json = format_of(clients.conns.get(slot)) == Format::Json;
    if is_json && !held.is_empty() && !held.rest().ends_with(b"\n") {
        held.append(b"\n", usize::MAX);
    }
    held.append(data, usize::MAX);
    held
}

/// Ends a connection whose frame cannot be read.
fn end_wrong<I: Io>(clients: &mut Clients, slot: u32, error: Error, io: &mut I) {
    let words = alloc::format!("{error}");
    end_saying(clients, slot, Disconnect::BAD_REQUEST, &words, io);
}

/// Commands that wait, for the limits of received bytes.
pub(super) fn held_bytes(conns: &Connections, slot: u32) -> usize {
    state(conns, slot).map_or(0, |it| it.held.bytes())
}
