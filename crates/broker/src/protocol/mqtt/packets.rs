//! Reads the packets of a client, over TCP or within frames, calls the function that handles each of them, and ends the connection for a
//! wrong one.

use alloc::borrow::Cow;
use alloc::format;
use crore_wire::http::head::Head;
use crore_wire::mqtt::{self, Error, Header, Packet, PacketType, ReasonCode, Version, encode};
use crore_wire::topic;
use crore_wire::websocket::handshake::choose_subprotocol;

use crate::base::reason::{Closed, Reason};
use crate::client::asking::prefetch_topics;
use crate::client::credit::{must_stall, stop_reading, waits_for_carriers};
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::progress::{Allowance, Progress};
use crate::client::row::{PROTOCOL_OPTIONS, Row, State};
use crate::client::types::PartialInput;
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::front::{Clients, Connections, Context, Front, Matching};
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::mqtt::access::waits_for_verdict;
use crate::protocol::mqtt::client::{
    self, PACKET_BESIDE_BYTES, mqtt_state, opens_session, packet_bytes_most, touch,
};
use crate::protocol::mqtt::close::mqtt_end_wrong;
use crate::protocol::mqtt::codec::mqtt_catch_up;
use crate::protocol::mqtt::connect::{
    client_connects, client_leaves, open_session, refuse_connect,
};
use crate::protocol::mqtt::deliver::{acknowledged, was_received};
use crate::protocol::mqtt::options::FRAMED;
use crate::protocol::mqtt::publish::{client_published, client_released};
use crate::protocol::mqtt::subscribe::client_subscribed;
use crate::protocol::mqtt::unsubscribe::client_unsubscribed;
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// The first byte of an MQTT connection, which no request begins with (MQTT 5.0 section 3.1.1).
const CONNECT: u8 = 0x10;

/// How a connection goes on after a packet.
enum After {
    /// With the next packet.
    Next,
    /// With the same one, when it has waited.
    Later,
    /// Not at all, or no longer as one of MQTT.
    End,
}

impl Front {
    /// Bytes of an MQTT connection, over TCP or the payload of a frame, in which packets need not end [MQTT-6.0.0-2].
    /// Held bytes are parsed only when a packet is whole.
    pub(crate) fn mqtt_received<I: Io>(
        &mut self,
        slot: u32,
        input: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let (held, mut progress, before) = match take_held(&mut self.clients, slot) {
            Some((mut held, progress)) => {
                let before = held.rest().len();
                held.append(input, whole_bytes(&self.clients.ctx, held.rest()));
                if held.rest().len() >= whole_bytes(&self.clients.ctx, held.rest()) {
                    let Some(used) = self.packets(slot, held.rest(), home, io) else {
                        return;
                    };
                    held.consume(used);
                }
                (held, progress, before)
            }
            None => match self.packets(slot, input, home, io) {
                Some(used) if used < input.len() => {
                    (SpillBuffer::new(&input[used..]), Progress::default(), 0)
                }
                _ => return,
            },
        };
        if held.is_empty() {
            return;
        }
        if !has_receive_room(
            &mut self.clients,
            &self.queues,
            &self.census,
            slot,
            held.bytes(),
            io,
        ) {
            return end_for_room(&mut self.clients, slot, io);
        }
        if held.rest().len() < before + input.len() {
            // Another packet has begun.
            progress = Progress::default();
        }
        if self.clients.conns.get(slot).has_option(FRAMED) {
            self.clients.conns.count_held_bytes(held.bytes());
            let mqtt = mqtt_state(&mut self.clients.conns, slot);
            (mqtt.partial, mqtt.progress) = (held, progress);
        } else {
            self.clients
                .conns
                .set_unprocessed_input(slot, Spill::Mqtt(held, progress));
        }
    }

    /// Goes on with held packets, and with subscriptions that fell behind.
    pub(crate) fn mqtt_resume<I: Io>(&mut self, slot: u32, home: &mut Option<Home>, io: &mut I) {
        let conn = self.clients.conns.id_of(slot);
        if opens_session(&self.clients.conns, slot) {
            open_session(&mut self.clients, &mut self.subs, slot, io);
            if self.clients.conns.get(slot).consumer.state != State::Mqtt {
                return;
            }
        }
        self.queues.read_again(&mut self.clients.conns, conn, io);
        self.mqtt_received(slot, &[], home, io);
        let row = self.clients.conns.get(slot);
        if row.consumer.state == State::Mqtt
            && row.has_option(FRAMED)
            && row.link.unprocessed_input != NONE
        {
            self.frames_received(slot, &mut [], home, io);
        }
        // A client that has not sent its CONNECT yet has no subscriptions.
        let opens =
            |row: &Row| row.consumer.state == State::Mqtt && row.consumer.protocol_row != NONE;
        if opens(self.clients.conns.get(slot)) {
            mqtt_catch_up(self, slot, io);
        }
    }

    /// Carries out all whole packets; returns how many bytes they have, unless the connection ends.
    fn packets<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<usize> {
        let most = packet_bytes_most(&self.clients.ctx);
        let (mut at, mut prefetched) = (0, 0);
        loop {
            let row = self.clients.conns.get(slot);
            if at == bytes.len() || row.link.outbox != NONE {
                break;
            }
            if self.clients.mqtt_must_wait(slot) {
                // The answers and pages that it waits for resume it.
                stop_reading(&mut self.clients.conns, slot, io);
                break;
            }
            if self.clients.meter.work.is_spent() {
                self.queues.pause(&mut self.clients, slot, io);
                break;
            }
            let row = self.clients.conns.get(slot);
            let (connected, version) = (
                row.consumer.protocol_row != NONE,
                client::version(&self.clients.conns, slot),
            );
            let (header, len) = match mqtt::fixed_header(&bytes[at..], most) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => {
                    mqtt_refuse(&mut self.clients, slot, &bytes[at..], error, io);
                    return None;
                }
            };
            if !connected && header.kind() != PacketType::Connect {
                // [MQTT-3.1.0-1]: no client to tell.
                self.clients.scratch.note_close_reason(Closed::Refused);
                self.clients.drop_connection(slot, CloseMode::Now);
                return None;
            }
            let end = at + len + header.body_bytes();
            if end > bytes.len() {
                break;
            }
            // The last packet has none to overlap with.
            if at >= prefetched && end < bytes.len() {
                prefetched = prefetch_publishes(
                    &self.subs.matching,
                    &self.clients.ctx,
                    bytes,
                    at,
                    most,
                    home,
                );
            }
            if self.must_wait(header.kind(), slot) {
                self.clients.send_reply(slot, io);
                self.queues.stall(
                    &mut self.clients.conns,
                    &mut self.clients.meter.stats,
                    slot,
                    io,
                );
                return Some(at);
            }
            self.clients.meter.work.steps.add(1);
            self.clients.meter.work.steps.add_bytes(end - at);
            let came = (header, &bytes[at + len..end]);
            match self.handle_packet(slot, version, came, &bytes[at..], home, io) {
                After::Next => at = end,
                After::Later => break,
                After::End => return None,
            }
        }
        self.clients.send_reply(slot, io);
        Some(at)
    }

    /// Whether a packet that makes work for homes and carriers waits.
    fn must_wait(&self, kind: PacketType, slot: u32) -> bool {
        match kind {
            PacketType::Publish => must_stall(&self.clients, &self.subs.lanes, slot),
            PacketType::Subscribe | PacketType::Unsubscribe => {
                waits_for_carriers(&self.clients, slot)
            }
            _ => false,
        }
    }

    /// Decodes a whole packet, of which the header and the rest are given, and carries it out. `bytes` begin with the packet.
    fn handle_packet<I: Io>(
        &mut self,
        slot: u32,
        version: Version,
        (header, body): (Header, &[u8]),
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> After {
        let packet = mqtt::decode(version, header, body);
        let packet = match &packet {
            Ok(packet) => packet.check_from_client().map(|()| packet),
            Err(error) => Err(*error),
        };
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => {
                mqtt_refuse(&mut self.clients, slot, bytes, error, io);
                return After::End;
            }
        };
        if let Packet::Connect(connect) = packet
            && self.clients.conns.get(slot).consumer.protocol_row == NONE
            && waits_for_verdict(
                &mut self.clients,
                &self.census,
                &mut self.gate,
                slot,
                connect,
                io,
            )
        {
            return After::Later;
        }
        if let Err(reason) = self.packet(slot, packet, home, io) {
            let words = words_of(&self.clients.ctx, packet, reason);
            mqtt_end_wrong(&mut self.clients, slot, reason, &words, io);
            return After::End;
        }
        if self.clients.conns.get(slot).consumer.state != State::Mqtt {
            return After::End;
        }
        if client::mqtt(&self.clients.conns, slot).is_some_and(|mqtt| mqtt.filters_done > 0) {
            // The rest of the packet has its turn when there is time, or when pages have come.
            if !self.clients.mqtt_must_wait(slot) {
                self.queues.pause(&mut self.clients, slot, io);
            }
            return After::Later;
        }
        After::Next
    }

    /// One packet; an error ends the connection.
    fn packet<I: Io>(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Result<(), ReasonCode> {
        touch(&mut self.clients, slot);
        // Messages are counted where they are published.
        let counts = !matches!(packet, Packet::Publish(_)) && {
            let mqtt = client::mqtt(&self.clients.conns, slot);
            mqtt.is_none_or(|mqtt| mqtt.filters_done == 0)
        };
        self.clients.meter.stats.packets_received += u64::from(counts);
        let Front {
            clients,
            subs,
            queues,
            census,
            ..
        } = self;
        match packet {
            Packet::Connect(connect) => {
                client_connects(clients, &mut subs.lanes, slot, connect, io)
            }
            Packet::Publish(publish) => client_published(clients, subs, slot, publish, home),
            Packet::PubAck(ack) | Packet::PubComp(ack) => acknowledged(
                clients,
                &mut subs.lanes,
                queues,
                slot,
                (packet.kind(), ack.packet_id),
            ),
            Packet::PubRec(ack) => was_received(clients, &mut subs.lanes, queues, slot, ack),
            Packet::PubRel(ack) => client_released(clients, &mut subs.lanes, slot, ack.packet_id),
            Packet::Subscribe(subscribe) => {
                client_subscribed(clients, subs, census, slot, subscribe)
            }
            Packet::Unsubscribe(unsubscribe) => {
                client_unsubscribed(clients, subs, queues, slot, unsubscribe)
            }
            Packet::PingReq => {
                clients.write_packet(slot, encode::pingresp);
                Ok(())
            }
            Packet::Disconnect(disconnect) => client_leaves(clients, slot, disconnect, io),
            // No method was agreed upon [MQTT-4.12.0-1].
            _ => Err(ReasonCode::PROTOCOL_ERROR),
        }
    }

    /// A frame: packets in binary data, and no text [MQTT-6.0.0-1]. False when it was the last one.
    pub(crate) fn mqtt_frame<I: Io>(
        &mut self,
        slot: u32,
        data: &[u8],
        binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        if !binary {
            self.clients.send_reply(slot, io);
            end_stream(&mut self.clients, slot, Reason::NotBinary, io);
            return false;
        }
        self.mqtt_received(slot, data, home, io);
        self.clients.conns.get(slot).consumer.state == State::Mqtt
    }
}

/// A packet that cannot be read: the client is told why if its MQTT version can.
fn mqtt_refuse<I: Io>(clients: &mut Clients, slot: u32, bytes: &[u8], error: Error, io: &mut I) {
    if clients.conns.get(slot).consumer.protocol_row == NONE {
        return refuse_connect(clients, slot, bytes, error, io);
    }
    let words: Cow<'_, str> = match error {
        Error::TooLarge { .. } => {
            format!("{error} (limits.message_bytes, and {PACKET_BESIDE_BYTES} for its head)").into()
        }
        error => error.words().into(),
    };
    mqtt_end_wrong(clients, slot, error.reason(), &words, io);
}

/// The connection speaks MQTT from now on, in the frames of a WebSocket [MQTT-6.0.0-3].
pub(crate) fn begin_framed(clients: &mut Clients, slot: u32) {
    let head_s = clients.ctx.world.settings.timeouts.head_s;
    let row = clients.conns.get_mut(slot);
    // The options of the request have no meaning any more.
    row.consumer.options = row.consumer.options & !PROTOCOL_OPTIONS | FRAMED;
    row.consumer.state = State::Mqtt;
    row.link.deadline_s = clients.ctx.now.s + head_s;
}

/// Takes the held bytes of packets; the caller puts them back or drops them.
fn take_held(clients: &mut Clients, slot: u32) -> Option<(SpillBuffer, Progress)> {
    let (held, progress) = if clients.conns.get(slot).has_option(FRAMED) {
        client::mqtt(&clients.conns, slot)?;
        let mqtt = mqtt_state(&mut clients.conns, slot);
        let (held, progress) = (core::mem::take(&mut mqtt.partial), mqtt.progress);
        clients.conns.stop_counting_held_bytes(held.bytes());
        (held, progress)
    } else {
        let Spill::Mqtt(held, progress) = clients.conns.take_unprocessed_input(slot)? else {
            // Other spills were used up before the connection switched to MQTT.
            clients.end_as_broken(slot);
            return None;
        };
        (held, progress)
    };
    (!held.is_empty()).then_some((held, progress))
}

/// Bytes needed before there is something to do: those of the first packet; 0 if it is no packet.
fn whole_bytes(ctx: &Context, bytes: &[u8]) -> usize {
    match mqtt::fixed_header(bytes, packet_bytes_most(ctx)) {
        Ok(Some((header, len))) => len + header.body_bytes(),
        Ok(None) => bytes.len() + 1,
        Err(_) => 0,
    }
}

/// Drops the beginning of a packet that came over WebSocket.
pub(crate) fn drop_partial(clients: &mut Clients, slot: u32) {
    if clients.conns.get(slot).has_option(FRAMED) {
        take_held(clients, slot);
    }
}

/// The packet that has come in part, in frames.
pub(crate) fn partial_packet(conns: &Connections, slot: u32) -> PartialInput {
    client::mqtt(conns, slot).map_or_else(PartialInput::default, |mqtt| PartialInput {
        bytes: mqtt.partial.rest().len(),
        bytes_behind: mqtt.progress.behind(),
    })
}

/// Counts a second of such a packet. The received part of the current frame (`came`) belongs to it. Returns whether the packet is too slow.
pub(crate) fn count_packet_second(
    conns: &mut Connections,
    slot: u32,
    came: usize,
    allowance: Allowance,
) -> bool {
    let PartialInput { bytes, .. } = partial_packet(conns, slot);
    if bytes == 0 {
        return false;
    }
    let progress = &mut mqtt_state(conns, slot).progress;
    progress.count_second(bytes + came, allowance)
}

/// Prefetches what the publishes among the next packets need; returns where the first packet begins that was not looked
/// at.
fn prefetch_publishes(
    matching: &Matching,
    ctx: &Context,
    bytes: &[u8],
    mut at: usize,
    most: usize,
    home: &Option<Home>,
) -> usize {
    prefetch_topics(matching, ctx, home, || {
        let (header, len) = mqtt::fixed_header(bytes.get(at..)?, most).ok()??;
        let body = bytes.get(at + len..)?;
        at = (at + len + header.body_bytes()).min(bytes.len());
        let is_publish = header.kind() == PacketType::Publish;
        let topic = body.split_first_chunk().filter(|_| is_publish);
        let name = topic.and_then(|(len, rest)| rest.get(..u16::from_be_bytes(*len).into()));
        Some(name.unwrap_or_default())
    });
    at
}

/// The connection speaks MQTT from now on if this is its first byte. Returns whether it is.
pub(crate) fn begins_with(conns: &mut Connections, slot: u32, first: u8) -> bool {
    let begins = first == CONNECT;
    if begins {
        conns.get_mut(slot).consumer.state = State::Mqtt;
    }
    begins
}

/// The subprotocol of a WebSocket that carries MQTT [MQTT-6.0.0-3].
pub(crate) const SUBPROTOCOL: &str = "mqtt";

/// Whether a client that upgrades wants to speak MQTT.
pub(crate) fn speaks_mqtt(head: &Head<'_>) -> bool {
    choose_subprotocol(head.headers("sec-websocket-protocol"), &[SUBPROTOCOL]).is_some()
}

/// The words about a packet that ends the connection.
fn words_of(ctx: &Context, packet: &Packet<'_>, reason: ReasonCode) -> Cow<'static, str> {
    // A message without QoS has no other answer.
    if reason == ReasonCode::TOPIC_NAME_INVALID
        && let Packet::Publish(publish) = packet
        && let Err(error) = topic::check_name(
            publish.topic.as_bytes(),
            ctx.world.settings.limits.topic_bytes,
        )
    {
        return format!("the topic {error}").into();
    }
    reason.name().into()
}
