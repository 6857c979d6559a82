//! The packets of a client: how they come, over TCP or within frames, which part carries each of them out, and how the server ends
//! the connection.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::mqtt::{self, Error, Header, Packet, PacketType, ReasonCode, Version, encode};
use crore_wire::websocket::frame::Opcode;
use crore_wire::websocket::handshake::choose_subprotocol;

use super::close::words_of;
use super::state::Mqtt;
use crate::base::ids::{ConnId, ShardId};
use crate::base::reason::{Closed, Reason};
use crate::client::progress::{Allowance, Progress};
use crate::client::row::{OWN, Row, State};
use crate::home::Home;
use crate::io::{Close, Io};
use crate::mail::inbox::Inbox;
use crate::mail::session::SessionId;
use crate::protocol::encode::frame_from;
use crate::protocol::front::Front;
use crate::protocol::mqtt::options::{FRAMED, SMALL, V5};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// Bytes that a packet may have in addition to the largest message: a topic, a content type, properties.
pub(in crate::protocol) const PACKET_BESIDE_BYTES: usize = 80 << 10;
/// The first byte of an MQTT connection, which no request begins with (MQTT 5.0 section 3.1.1).
const CONNECT: u8 = 0x10;
/// Pages that a client may have asked homes for: with more, its packets wait until some have come, so that the pages
/// under way are bounded.
const PAGES_MAX: u32 = 64;

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
    /// The connection speaks MQTT from now on, in the frames of a WebSocket [MQTT-6.0.0-3].
    pub(in crate::protocol) fn begin_framed(&mut self, slot: u32) {
        let head_s = self.world.settings.timeouts.head_s;
        let row = self.conns.get_mut(slot);
        // What the request had there has no meaning any more.
        row.options = row.options & !OWN | FRAMED;
        row.state = State::Mqtt;
        row.deadline_s = self.now.s + head_s;
    }

    /// Bytes of an MQTT connection, over TCP or the payload of a frame, in which packets need not end [MQTT-6.0.0-2].
    /// Held bytes are parsed only when a packet is whole.
    pub(crate) fn mqtt_received<I: Io>(
        &mut self,
        slot: u32,
        input: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let (held, mut progress, before) = match self.take_held(slot) {
            Some((mut held, progress)) => {
                let before = held.rest().len();
                held.append(input, self.whole_bytes(held.rest()));
                if held.rest().len() >= self.whole_bytes(held.rest()) {
                    let Some(used) = self.packets(slot, held.rest(), home, io) else {
                        return;
                    };
                    held.took(used);
                }
                (held, progress, before)
            }
            None => match self.packets(slot, input, home, io) {
                Some(used) if used < input.len() => {
                    (Inbox::new(&input[used..]), Progress::default(), 0)
                }
                _ => return,
            },
        };
        if held.is_empty() {
            return;
        }
        if !self.has_receive_room(slot, held.bytes(), io) {
            return self.end_for_room(slot, io);
        }
        if held.rest().len() < before + input.len() {
            // Another packet has begun.
            progress = Progress::default();
        }
        if self.conns.get(slot).wants(FRAMED) {
            self.conns.hold_bytes(held.bytes());
            let mqtt = self.mqtt_state(slot);
            (mqtt.partial, mqtt.progress) = (held, progress);
        } else {
            self.conns.set_spill(slot, Spill::Mqtt(held, progress));
        }
    }

    /// Takes the held bytes of packets; the caller puts them back or drops them.
    fn take_held(&mut self, slot: u32) -> Option<(Inbox, Progress)> {
        let (held, progress) = if self.conns.get(slot).wants(FRAMED) {
            self.mqtt(slot)?;
            let mqtt = self.mqtt_state(slot);
            let (held, progress) = (core::mem::take(&mut mqtt.partial), mqtt.progress);
            self.conns.let_go_bytes(held.bytes());
            (held, progress)
        } else {
            let Spill::Mqtt(held, progress) = self.conns.take_spill(slot)? else {
                // Other spills were used up before the connection switched to MQTT.
                self.broken(slot);
                return None;
            };
            (held, progress)
        };
        (!held.is_empty()).then_some((held, progress))
    }

    fn packet_bytes_most(&self) -> usize {
        self.world.settings.limits.message_bytes + PACKET_BESIDE_BYTES
    }

    /// Bytes needed before there is something to do: those of the first packet; 0 if it is no packet.
    fn whole_bytes(&self, bytes: &[u8]) -> usize {
        match mqtt::fixed_header(bytes, self.packet_bytes_most()) {
            Ok(Some((header, len))) => len + header.body_bytes(),
            Ok(None) => bytes.len() + 1,
            Err(_) => 0,
        }
    }

    /// Drops the beginning of a packet that came over WebSocket.
    pub(crate) fn drop_partial(&mut self, slot: u32) {
        if self.conns.get(slot).wants(FRAMED) {
            self.take_held(slot);
        }
    }

    /// Goes on with held packets, and with subscriptions that fell behind.
    pub(in crate::protocol) fn mqtt_resume<I: Io>(
        &mut self,
        slot: u32,
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let conn = self.conns.id_of(slot);
        if self.opens_session(slot) {
            self.open_session(slot, io);
            if !self.conns.is_current(conn) || self.conns.get(slot).state != State::Mqtt {
                return;
            }
        }
        self.read_again(conn, io);
        self.mqtt_received(slot, &[], home, io);
        let held = self.conns.is_current(conn) && {
            let row = self.conns.get(slot);
            row.state == State::Mqtt && row.wants(FRAMED) && row.spill != NONE
        };
        if held {
            self.frames_received(slot, &mut [], home, io);
        }
        // A client that has not sent its CONNECT yet has no subscriptions.
        let opens = |row: &Row| row.state == State::Mqtt && row.own != NONE;
        if self.conns.is_current(conn) && opens(self.conns.get(slot)) {
            self.mqtt_go_on(slot, io);
        }
    }

    /// Carries out all whole packets; returns how many bytes they have, if the connection still exists.
    fn packets<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Option<usize> {
        let conn = self.conns.id_of(slot);
        let most = self.packet_bytes_most();
        let (mut at, mut warmed) = (0, 0);
        loop {
            if at >= warmed && at < bytes.len() {
                warmed = self.warm_publishes(bytes, at, most, home);
            }
            let row = self.conns.get(slot);
            if at == bytes.len() || row.outbox != NONE {
                break;
            }
            if self.mqtt_must_wait(slot) {
                // The answers and pages that it waits for resume it.
                self.stop_reading(slot, io);
                break;
            }
            if self.work.is_spent() {
                self.pause(slot, io);
                break;
            }
            let row = self.conns.get(slot);
            let (connected, version) = (row.own != NONE, self.version(slot));
            let (header, len) = match mqtt::fixed_header(&bytes[at..], most) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => {
                    self.mqtt_refuse(slot, &bytes[at..], error, io);
                    return None;
                }
            };
            if !connected && header.kind() != PacketType::Connect {
                // [MQTT-3.1.0-1]: no client to tell.
                self.because(Closed::Refused);
                self.drop_conn(slot, Close::Now, io);
                return None;
            }
            let end = at + len + header.body_bytes();
            if end > bytes.len() {
                break;
            }
            if header.kind() == PacketType::Publish && self.must_stall() {
                self.send_reply(slot, io);
                self.stall(slot, io);
                return Some(at);
            }
            self.work.steps.add(1);
            self.work.steps.add_bytes(end - at);
            let came = (header, &bytes[at + len..end]);
            match self.packet_came(conn, version, came, &bytes[at..], home, io) {
                After::Next => at = end,
                After::Later => break,
                After::End => return None,
            }
        }
        self.send_reply(slot, io);
        Some(at)
    }

    /// Decodes a whole packet, of which the header and the rest are given, and carries it out. `bytes` begin with the packet.
    fn packet_came<I: Io>(
        &mut self,
        conn: ConnId,
        version: Version,
        (header, body): (Header, &[u8]),
        bytes: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> After {
        let slot = conn.slot;
        let packet = mqtt::decode(version, header, body)
            .and_then(|packet| packet.check_from_client().map(|()| packet));
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => {
                self.mqtt_refuse(slot, bytes, error, io);
                return After::End;
            }
        };
        if let Packet::Connect(connect) = &packet
            && self.conns.get(slot).own == NONE
            && self.waits_for_verdict(slot, connect, io)
        {
            return After::Later;
        }
        if let Err(reason) = self.packet(slot, &packet, home, io) {
            self.mqtt_end_wrong(slot, reason, words_of(reason), io);
            return After::End;
        }
        let is_open = self.conns.is_current(conn);
        if is_open && self.mqtt(slot).is_some_and(|mqtt| mqtt.filters_done > 0) {
            // The rest of the packet has its turn when there is time, or when pages have come.
            if !self.mqtt_must_wait(slot) {
                self.pause(slot, io);
            }
            return After::Later;
        }
        match is_open && self.conns.get(slot).state == State::Mqtt {
            true => After::Next,
            false => After::End,
        }
    }

    /// Whether packets must wait for the home of the session, for homes that owe answers, or for a verdict.
    pub(in crate::protocol) fn mqtt_must_wait(&self, slot: u32) -> bool {
        let receive_max = self.world.settings.mqtt.receive_max as usize;
        self.mqtt(slot).is_some_and(|mqtt| {
            mqtt.connecting.is_some() || mqtt.answers.len() > receive_max || mqtt.pages > PAGES_MAX
        }) || self.is_asked_for(slot)
    }

    /// One packet; an error ends the connection.
    fn packet<I: Io>(
        &mut self,
        slot: u32,
        packet: &Packet<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Result<(), ReasonCode> {
        self.touch(slot);
        // Messages are counted where they are published.
        let begun = self.mqtt(slot).is_some_and(|mqtt| mqtt.filters_done > 0);
        let counts = !matches!(packet, Packet::Publish(_)) && !begun;
        self.stats.packets_received += u64::from(counts);
        match packet {
            Packet::Connect(connect) => self.connect(slot, connect, io),
            Packet::Publish(publish) => self.client_published(slot, publish, home),
            Packet::PubAck(ack) => self.acknowledged(slot, ack.packet_id),
            Packet::PubRec(ack) => self.was_received(slot, ack),
            Packet::PubRel(ack) => self.client_released(slot, ack.packet_id),
            Packet::PubComp(ack) => self.completed(slot, ack.packet_id),
            Packet::Subscribe(subscribe) => self.client_subscribed(slot, subscribe),
            Packet::Unsubscribe(unsubscribe) => self.client_unsubscribed(slot, unsubscribe),
            Packet::PingReq => {
                self.write(slot, encode::pingresp);
                Ok(())
            }
            Packet::Disconnect(disconnect) => self.client_leaves(slot, disconnect, io),
            // No method was agreed upon [MQTT-4.12.0-1].
            _ => Err(ReasonCode::PROTOCOL_ERROR),
        }
    }

    /// So many pages were asked for.
    pub(crate) fn asked_pages(&mut self, slot: u32, count: u32) {
        if let Some(extra) = self.conns.find_extra_mut(slot)
            && let Some(mqtt) = &mut extra.own.mqtt
        {
            mqtt.pages += count;
        }
    }

    /// A page has come, for a connection that is still there: its packets may go on.
    pub(crate) fn took_page_of(&mut self, slot: u32) {
        if let Some(extra) = self.conns.find_extra_mut(slot)
            && let Some(mqtt) = &mut extra.own.mqtt
            && mqtt.pages > 0
        {
            mqtt.pages -= 1;
            if mqtt.pages == PAGES_MAX {
                self.resume_later(self.conns.id_of(slot));
            }
        }
    }

    /// The client was heard: its keep alive begins anew [MQTT-3.1.2-22].
    fn touch(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if row.own == NONE || row.outbox != NONE {
            return;
        }
        let deadline_s = self.keep_alive_end_s(slot);
        self.conns.get_mut(slot).deadline_s = deadline_s;
    }

    /// When a silent client's connection ends: one and a half times its keep alive. The second that runs has begun.
    pub(crate) fn keep_alive_end_s(&self, slot: u32) -> u32 {
        let row = self.conns.get(slot);
        if row.own == NONE {
            return self.now.s + self.world.settings.timeouts.head_s;
        }
        match u32::from(self.conns.own_row(slot).keep_alive_s) {
            0 => 0,
            keep_alive_s => self.now.s + keep_alive_s + keep_alive_s.div_ceil(2) + 1,
        }
    }

    /// Whether the client is a bridge of another broker, by 3.1.1.
    pub(super) fn is_bridge(&self, slot: u32) -> bool {
        self.mqtt(slot).is_some_and(|mqtt| mqtt.bridge)
    }

    pub(super) fn version(&self, slot: u32) -> Version {
        match self.conns.get(slot).wants(V5) {
            true => Version::V5,
            false => Version::V311,
        }
    }

    /// The connection's MQTT state, if it has more than its rows.
    pub(in crate::protocol) fn mqtt(&self, slot: u32) -> Option<&Mqtt> {
        self.conns.find_extra(slot)?.own.mqtt.as_deref()
    }

    /// The connection's MQTT state, made if there is none yet.
    pub(in crate::protocol) fn mqtt_state(&mut self, slot: u32) -> &mut Mqtt {
        self.conns.extra(slot).own.mqtt.get_or_insert_default()
    }

    /// Appends a packet to `reply`, in a frame of its own where there are frames.
    pub(super) fn write(&mut self, slot: u32, packet: impl FnOnce(&mut Vec<u8>)) {
        let start = self.scratch.reply().len();
        packet(self.scratch.reply());
        self.stats.packets_sent += 1;
        if self.conns.get(slot).wants(FRAMED) && self.scratch.reply().len() > start {
            frame_from(self.scratch.reply(), start, Opcode::Binary);
        }
    }

    /// A packet that cannot be read: the client is told why if its MQTT version can.
    fn mqtt_refuse<I: Io>(&mut self, slot: u32, bytes: &[u8], error: Error, io: &mut I) {
        if self.conns.get(slot).own == NONE {
            return self.refuse_connect(slot, bytes, error, io);
        }
        let words: Cow<'_, str> = match error {
            Error::TooLarge { .. } => {
                format!("{error} (limits.message_bytes, and {PACKET_BESIDE_BYTES} for its head)")
                    .into()
            }
            error => error.words().into(),
        };
        self.mqtt_end_wrong(slot, error.reason(), &words, io);
    }

    /// The largest packet that the client takes.
    pub(super) fn packet_bytes_max(&self, slot: u32) -> usize {
        let row = self.conns.get(slot);
        match row.wants(SMALL) {
            true => self.conns.own_row(slot).packet_bytes_max as usize,
            false => mqtt::PACKET_BYTES_MAX,
        }
    }

    /// A frame: packets in binary data, and no text [MQTT-6.0.0-1]. False when it was the last one.
    pub(in crate::protocol) fn mqtt_frame<I: Io>(
        &mut self,
        slot: u32,
        data: &[u8],
        binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        if !binary {
            self.send_reply(slot, io);
            self.end_stream(slot, Reason::NotBinary, io);
            return false;
        }
        let conn = self.conns.id_of(slot);
        self.mqtt_received(slot, data, home, io);
        self.conns.is_current(conn) && self.conns.get(slot).state == State::Mqtt
    }

    /// Bytes of a packet that has come in part, in frames, and how many more should have come.
    pub(in crate::protocol) fn mqtt_part(&self, slot: u32) -> (usize, u64) {
        let mqtt = self.mqtt(slot);
        mqtt.map_or((0, 0), |it| (it.partial.rest().len(), it.progress.behind()))
    }

    /// Counts a second of such a packet. The received part of the current frame (`came`) belongs to it. Whether it is too slow.
    pub(in crate::protocol) fn mqtt_part_is_slow(
        &mut self,
        slot: u32,
        came: usize,
        allowance: Allowance,
    ) -> bool {
        let (partial, _) = self.mqtt_part(slot);
        if partial == 0 {
            return false;
        }
        let progress = &mut self.mqtt_state(slot).progress;
        progress.second(partial + came, allowance)
    }

    /// The session, once the home has given it.
    pub(in crate::protocol) fn mqtt_session(&self, slot: u32) -> Option<(ShardId, SessionId)> {
        if self.conns.get(slot).own == NONE {
            return None;
        }
        let mqtt = self.conns.own_row(slot);
        let home = self.home_of_session(mqtt.session);
        mqtt.is_open().then_some((home, mqtt.session))
    }
}

/// Whether a connection with this first byte speaks MQTT.
pub(in crate::protocol) fn begins_with(first: u8) -> bool {
    first == CONNECT
}

/// The subprotocol of a WebSocket that carries MQTT [MQTT-6.0.0-3].
pub(in crate::protocol) const SUBPROTOCOL: &str = "mqtt";

/// Whether a client that upgrades wants to speak MQTT.
pub(in crate::protocol) fn speaks_mqtt(head: &Head<'_>) -> bool {
    choose_subprotocol(head.headers("sec-websocket-protocol"), &[SUBPROTOCOL]).is_some()
}
