//! Reads the packets of a client, over TCP or within frames, and calls the function that handles each packet. Ends the connection if a packet is invalid.

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
    self, PACKET_OVERHEAD_BYTES, has_session_to_open, mqtt_state_mut, restart_keep_alive,
    server_packet_bytes_max,
};
use crate::protocol::mqtt::close::mqtt_end_wrong_packet;
use crate::protocol::mqtt::codec::mqtt_catch_up;
use crate::protocol::mqtt::connect::{
    handle_connect, handle_disconnect, open_session, refuse_unreadable_connect,
};
use crate::protocol::mqtt::deliver::{handle_acknowledgement, handle_pubrec};
use crate::protocol::mqtt::options::IN_FRAMES;
use crate::protocol::mqtt::publish::{handle_publish, handle_pubrel};
use crate::protocol::mqtt::subscribe::handle_subscribe;
use crate::protocol::mqtt::unsubscribe::handle_unsubscribe;
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// The first byte of an MQTT connection (MQTT 5.0 section 3.1.1). No HTTP request begins with it.
const CONNECT: u8 = 0x10;

/// How a connection continues after a packet.
enum AfterPacket {
    /// It handles the next packet.
    NextPacket,
    /// It handles the same packet again, later.
    SamePacketLater,
    /// It has ended, or no longer uses MQTT.
    Stop,
}

impl Front {
    /// Handles received bytes of an MQTT connection: from TCP, or the payload of a frame. A packet may extend over several frames [MQTT-6.0.0-2]. Held bytes
    /// are parsed only when a packet is complete.
    pub(crate) fn receive_mqtt<I: Io>(
        &mut self,
        slot: u32,
        input: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let (input_left, mut progress, held_bytes) = match take_held_input(&mut self.clients, slot)
        {
            Some((mut input_left, progress)) => {
                let held_bytes = input_left.rest().len();
                input_left.append(input, whole_bytes(&self.clients.ctx, input_left.rest()));
                if input_left.rest().len() >= whole_bytes(&self.clients.ctx, input_left.rest()) {
                    let Some(consumed) = self.handle_packets(slot, input_left.rest(), home, io)
                    else {
                        return;
                    };
                    input_left.consume(consumed);
                }
                (input_left, progress, held_bytes)
            }
            None => match self.handle_packets(slot, input, home, io) {
                Some(consumed) if consumed < input.len() => {
                    (SpillBuffer::new(&input[consumed..]), Progress::default(), 0)
                }
                _ => return,
            },
        };
        if input_left.is_empty() {
            return;
        }
        if !has_receive_room(
            &mut self.clients,
            &self.queues,
            &self.census,
            slot,
            input_left.bytes(),
            io,
        ) {
            return end_for_room(&mut self.clients, slot, io);
        }
        if input_left.rest().len() < held_bytes + input.len() {
            // Another packet has begun.
            progress = Progress::default();
        }
        if self.clients.conns.get(slot).has_option(IN_FRAMES) {
            self.clients.conns.count_held_bytes(input_left.bytes());
            let mqtt = mqtt_state_mut(&mut self.clients.conns, slot);
            (mqtt.partial_packet, mqtt.packet_progress) = (input_left, progress);
        } else {
            self.clients
                .conns
                .set_unprocessed_input(slot, Spill::Mqtt(input_left, progress));
        }
    }

    /// Continues with held packets, and with subscriptions that fell behind.
    pub(crate) fn mqtt_resume<I: Io>(&mut self, slot: u32, home: &mut Option<Home>, io: &mut I) {
        let conn = self.clients.conns.id_of(slot);
        if has_session_to_open(&self.clients.conns, slot) {
            open_session(&mut self.clients, &mut self.subs, slot, io);
            if self.clients.conns.get(slot).consumer.state != State::Mqtt {
                return;
            }
        }
        self.queues
            .resume_reading(&mut self.clients.conns, conn, io);
        self.receive_mqtt(slot, &[], home, io);
        let row = self.clients.conns.get(slot);
        if row.consumer.state == State::Mqtt
            && row.has_option(IN_FRAMES)
            && row.link.unprocessed_input != NONE
        {
            self.receive_frames(slot, &mut [], home, io);
        }
        // Before its CONNECT a client has no subscriptions.
        let has_session =
            |row: &Row| row.consumer.state == State::Mqtt && row.consumer.protocol_row != NONE;
        if has_session(self.clients.conns.get(slot)) {
            mqtt_catch_up(self, slot, io);
        }
    }

    /// Handles all complete packets. Returns how many bytes they have; `None` if the connection ends.
    fn handle_packets<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<usize> {
        let packet_bytes_max = server_packet_bytes_max(&self.clients.ctx);
        let (mut offset, mut prefetched_to) = (0, 0);
        loop {
            let row = self.clients.conns.get(slot);
            if offset == bytes.len() || row.link.outbox != NONE {
                break;
            }
            if self.clients.mqtt_must_wait(slot) {
                // The answers and pages that it waits for resume it.
                stop_reading(&mut self.clients.conns, slot, io);
                break;
            }
            if self.clients.meter.work.is_spent() {
                self.queues
                    .pause_until_next_turn(&mut self.clients, slot, io);
                break;
            }
            let row = self.clients.conns.get(slot);
            let (is_connected, version) = (
                row.consumer.protocol_row != NONE,
                client::version_of(&self.clients.conns, slot),
            );
            let (header, header_bytes) =
                match mqtt::fixed_header(&bytes[offset..], packet_bytes_max) {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(error) => {
                        refuse_unreadable_packet(
                            &mut self.clients,
                            slot,
                            &bytes[offset..],
                            error,
                            io,
                        );
                        return None;
                    }
                };
            if !is_connected && header.kind() != PacketType::Connect {
                // [MQTT-3.1.0-1]: the first packet must be a CONNECT. Before it there is no client to tell.
                self.clients.scratch.set_close_reason(Closed::Refused);
                self.clients.drop_connection(slot, CloseMode::Now);
                return None;
            }
            let packet_end = offset + header_bytes + header.body_bytes();
            if packet_end > bytes.len() {
                break;
            }
            // Prefetching helps only if another packet follows.
            if offset >= prefetched_to && packet_end < bytes.len() {
                prefetched_to = prefetch_publishes(
                    &self.subs.matching,
                    &self.clients.ctx,
                    bytes,
                    offset,
                    packet_bytes_max,
                    home,
                );
            }
            if self.must_wait_for_homes(header.kind(), slot) {
                self.clients.send_reply(slot, io);
                self.queues.stall(
                    &mut self.clients.conns,
                    &mut self.clients.meter.stats,
                    slot,
                    io,
                );
                return Some(offset);
            }
            self.clients.meter.work.steps.add(1);
            self.clients.meter.work.steps.add_bytes(packet_end - offset);
            let header_and_body = (header, &bytes[offset + header_bytes..packet_end]);
            match self.handle_packet(slot, version, header_and_body, &bytes[offset..], home, io) {
                AfterPacket::NextPacket => offset = packet_end,
                AfterPacket::SamePacketLater => break,
                AfterPacket::Stop => return None,
            }
        }
        self.clients.send_reply(slot, io);
        Some(offset)
    }

    /// Whether a packet that makes work for homes and carriers must wait, because they have enough of it.
    fn must_wait_for_homes(&self, kind: PacketType, slot: u32) -> bool {
        match kind {
            PacketType::Publish => must_stall(&self.clients, &self.subs.lanes, slot),
            PacketType::Subscribe | PacketType::Unsubscribe => {
                waits_for_carriers(&self.clients, slot)
            }
            _ => false,
        }
    }

    /// Decodes a complete packet with this header and body, and handles it. `input` begins with the packet.
    fn handle_packet<I: Io>(
        &mut self,
        slot: u32,
        version: Version,
        (header, body): (Header, &[u8]),
        input: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> AfterPacket {
        let packet = mqtt::decode(version, header, body);
        let packet = match &packet {
            Ok(packet) => packet.check_from_client().map(|()| packet),
            Err(error) => Err(*error),
        };
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => {
                refuse_unreadable_packet(&mut self.clients, slot, input, error, io);
                return AfterPacket::Stop;
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
            return AfterPacket::SamePacketLater;
        }
        if let Err(reason) = self.handle_decoded(slot, packet, home, io) {
            let text = refusal_text(&self.clients.ctx, packet, reason);
            mqtt_end_wrong_packet(&mut self.clients, slot, reason, &text, io);
            return AfterPacket::Stop;
        }
        if self.clients.conns.get(slot).consumer.state != State::Mqtt {
            return AfterPacket::Stop;
        }
        if client::mqtt_state(&self.clients.conns, slot).is_some_and(|mqtt| mqtt.filters_done > 0) {
            // The other filters of the packet are handled in a later turn, or when pages have come.
            if !self.clients.mqtt_must_wait(slot) {
                self.queues
                    .pause_until_next_turn(&mut self.clients, slot, io);
            }
            return AfterPacket::SamePacketLater;
        }
        AfterPacket::NextPacket
    }

    /// Handles one decoded packet.
    ///
    /// # Errors
    /// The reason for which the connection must end.
    fn handle_decoded<I: Io>(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Result<(), ReasonCode> {
        restart_keep_alive(&mut self.clients, slot);
        // Publishes are counted where they are published, and a SUBSCRIBE of several turns only once.
        let is_counted = !matches!(packet, Packet::Publish(_)) && {
            let mqtt = client::mqtt_state(&self.clients.conns, slot);
            mqtt.is_none_or(|mqtt| mqtt.filters_done == 0)
        };
        self.clients.meter.stats.packets_received += u64::from(is_counted);
        let Front {
            clients,
            subs,
            queues,
            census,
            ..
        } = self;
        match packet {
            Packet::Connect(connect) => handle_connect(clients, &mut subs.lanes, slot, connect, io),
            Packet::Publish(publish) => handle_publish(clients, subs, slot, publish, home),
            Packet::PubAck(ack) | Packet::PubComp(ack) => handle_acknowledgement(
                clients,
                &mut subs.lanes,
                queues,
                slot,
                (packet.kind(), ack.packet_id),
            ),
            Packet::PubRec(ack) => handle_pubrec(clients, &mut subs.lanes, queues, slot, ack),
            Packet::PubRel(ack) => handle_pubrel(clients, &mut subs.lanes, slot, ack.packet_id),
            Packet::Subscribe(subscribe) => {
                handle_subscribe(clients, subs, census, slot, subscribe)
            }
            Packet::Unsubscribe(unsubscribe) => {
                handle_unsubscribe(clients, subs, queues, slot, unsubscribe)
            }
            Packet::PingReq => {
                clients.write_packet(slot, encode::pingresp);
                Ok(())
            }
            Packet::Disconnect(disconnect) => handle_disconnect(clients, slot, disconnect, io),
            // No method was agreed upon [MQTT-4.12.0-1].
            _ => Err(ReasonCode::PROTOCOL_ERROR),
        }
    }

    /// Handles a WebSocket frame: binary data with packets, and no text [MQTT-6.0.0-1]. Returns false if the connection has ended.
    pub(crate) fn handle_mqtt_frame<I: Io>(
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
        self.receive_mqtt(slot, data, home, io);
        self.clients.conns.get(slot).consumer.state == State::Mqtt
    }
}

/// Ends the connection for a packet that cannot be decoded. Tells the client why if its MQTT version can.
fn refuse_unreadable_packet<I: Io>(
    clients: &mut Clients,
    slot: u32,
    bytes: &[u8],
    error: Error,
    io: &mut I,
) {
    if clients.conns.get(slot).consumer.protocol_row == NONE {
        return refuse_unreadable_connect(clients, slot, bytes, error, io);
    }
    let text: Cow<'_, str> = match error {
        Error::TooLarge { .. } => {
            format!("{error} (limits.message_bytes, and {PACKET_OVERHEAD_BYTES} for its head)")
                .into()
        }
        error => error.words().into(),
    };
    mqtt_end_wrong_packet(clients, slot, error.reason(), &text, io);
}

/// Switches a connection to MQTT in the frames of a WebSocket [MQTT-6.0.0-3].
pub(crate) fn begin_mqtt_in_frames(clients: &mut Clients, slot: u32) {
    let head_s = clients.ctx.world.settings.timeouts.head_s;
    let row = clients.conns.get_mut(slot);
    // The options of the request have no meaning any more.
    row.consumer.options = row.consumer.options & !PROTOCOL_OPTIONS | IN_FRAMES;
    row.consumer.state = State::Mqtt;
    row.link.deadline_s = clients.ctx.now.s + head_s;
}

/// Takes the held bytes of packets. The caller puts them back or drops them.
fn take_held_input(clients: &mut Clients, slot: u32) -> Option<(SpillBuffer, Progress)> {
    let (input, progress) = if clients.conns.get(slot).has_option(IN_FRAMES) {
        client::mqtt_state(&clients.conns, slot)?;
        let mqtt = mqtt_state_mut(&mut clients.conns, slot);
        let (input, progress) = (
            core::mem::take(&mut mqtt.partial_packet),
            mqtt.packet_progress,
        );
        clients.conns.stop_counting_held_bytes(input.bytes());
        (input, progress)
    } else {
        let Spill::Mqtt(input, progress) = clients.conns.take_unprocessed_input(slot)? else {
            // Other spills were used up before the connection switched to MQTT.
            clients.end_as_broken(slot);
            return None;
        };
        (input, progress)
    };
    (!input.is_empty()).then_some((input, progress))
}

/// The number of bytes needed before the first packet can be handled; 0 if the bytes are no packet.
fn whole_bytes(ctx: &Context, bytes: &[u8]) -> usize {
    match mqtt::fixed_header(bytes, server_packet_bytes_max(ctx)) {
        Ok(Some((header, header_bytes))) => header_bytes + header.body_bytes(),
        Ok(None) => bytes.len() + 1,
        Err(_) => 0,
    }
}

/// Drops the received part of an incomplete packet that came over WebSocket.
pub(crate) fn drop_partial_packet(clients: &mut Clients, slot: u32) {
    if clients.conns.get(slot).has_option(IN_FRAMES) {
        take_held_input(clients, slot);
    }
}

/// The received part of an incomplete packet that came over WebSocket.
pub(crate) fn partial_packet(conns: &Connections, slot: u32) -> PartialInput {
    client::mqtt_state(conns, slot).map_or_else(PartialInput::default, |mqtt| PartialInput {
        bytes: mqtt.partial_packet.rest().len(),
        bytes_behind: mqtt.packet_progress.bytes_behind(),
    })
}

/// Counts a second of an incomplete packet that comes over WebSocket. The `frame_bytes` received of the current frame belong to it. Returns whether the
/// packet is too slow.
pub(crate) fn count_packet_second(
    conns: &mut Connections,
    slot: u32,
    frame_bytes: usize,
    allowance: Allowance,
) -> bool {
    let PartialInput { bytes, .. } = partial_packet(conns, slot);
    if bytes == 0 {
        return false;
    }
    let progress = &mut mqtt_state_mut(conns, slot).packet_progress;
    progress.count_second(bytes + frame_bytes, allowance)
}

/// Prefetches the rows of the topics of the next publishes. Returns the offset of the first packet that was not examined.
fn prefetch_publishes(
    matching: &Matching,
    ctx: &Context,
    bytes: &[u8],
    mut offset: usize,
    packet_bytes_max: usize,
    home: &Option<Home>,
) -> usize {
    prefetch_topics(matching, ctx, home, || {
        let (header, header_bytes) =
            mqtt::fixed_header(bytes.get(offset..)?, packet_bytes_max).ok()??;
        let body = bytes.get(offset + header_bytes..)?;
        offset = (offset + header_bytes + header.body_bytes()).min(bytes.len());
        let is_publish = header.kind() == PacketType::Publish;
        let topic = body.split_first_chunk().filter(|_| is_publish);
        let name = topic
            .and_then(|(header_bytes, rest)| rest.get(..u16::from_be_bytes(*header_bytes).into()));
        Some(name.unwrap_or_default())
    });
    offset
}

/// Switches a connection to MQTT if its first byte is that of a CONNECT. Returns whether it did.
pub(crate) fn switch_if_connect(conns: &mut Connections, slot: u32, first_byte: u8) -> bool {
    let is_connect = first_byte == CONNECT;
    if is_connect {
        conns.get_mut(slot).consumer.state = State::Mqtt;
    }
    is_connect
}

/// The subprotocol of a WebSocket that carries MQTT [MQTT-6.0.0-3].
pub(crate) const SUBPROTOCOL: &str = "mqtt";

/// Whether a client that upgrades wants to speak MQTT.
pub(crate) fn offers_mqtt(head: &Head<'_>) -> bool {
    choose_subprotocol(head.headers("sec-websocket-protocol"), &[SUBPROTOCOL]).is_some()
}

/// The text about a packet that ends the connection.
fn refusal_text(ctx: &Context, packet: &Packet<'_>, reason: ReasonCode) -> Cow<'static, str> {
    // A QoS 0 message has no answer that could name the fault.
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
