//! How the server ends an MQTT connection: by a DISCONNECT that says why, where the client's version has one.

use alloc::vec::Vec;

use crate::base::reason::{Closed, Reason};
use crate::client::row::CLOSING;
use crate::client::words;
use crate::io::{Close, Io};
use crate::protocol::front::Front;
use crate::protocol::mqtt::client::{self, packet_bytes_max, version};
use crate::protocol::mqtt::options::FRAMED;
use crate::store::slab::NONE;
use crore_wire::mqtt::{Disconnect, Properties, PropertyBuf, ReasonCode, Version, encode};

/// Why a WebSocket that carries MQTT is closed when nothing is wrong with its frames (RFC 6455 section 7.4.1).
const CLOSE_NORMAL: u16 = 1000;

/// What is wrong with a topic that MQTT's own rules allow, or that they do not.
const BAD_TOPIC: &str = "Topic Name invalid: it is empty or longer than limits.topic_bytes, or has a wildcard or a control character (U+0000 to U+001F, U+007F to U+009F)";

impl Front {
    /// Ends the connection for this reason; false when it stays.
    pub(crate) fn mqtt_end_for<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) -> bool {
        match (reason, reason.row().mqtt) {
            (Reason::TooSlow, _) => self.mqtt_late(slot, reason, io),
            (Reason::Restart, _) => self.mqtt_move(slot, io),
            // Its subscriptions outlive the topic, and no later one takes their place.
            (_, None) => return false,
            (_, Some(_)) => {
                self.clients.scratch.reply().clear();
                self.mqtt_end_because(slot, reason, io);
            }
        }
        true
    }

    /// Sends the client to another server, or asks it to come back.
    fn mqtt_move<I: Io>(&mut self, slot: u32, io: &mut I) {
        if self.clients.conns.get(slot).own == NONE {
            return self.drop_conn(slot, Close::Now, io);
        }
        self.clients.scratch.reply().clear();
        let reason = match self
            .clients
            .ctx
            .world
            .settings
            .drain
            .server_reference
            .is_empty()
        {
            true => Reason::Restart,
            false => Reason::Moved,
        };
        self.mqtt_end_because(slot, reason, io);
    }

    /// Ends the connection with a DISCONNECT that says why; 3.1.1 has none. The will is published.
    pub(super) fn mqtt_end_because<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) {
        self.clients.scratch.because(reason.row().closed);
        let words = words::of_reason(reason, &self.clients.ctx.world.settings);
        self.mqtt_end_saying(slot, reason.mqtt(), &words, io);
    }

    /// The same for a reason of the standard.
    pub(crate) fn mqtt_end<I: Io>(&mut self, slot: u32, reason: ReasonCode, io: &mut I) {
        self.mqtt_end_saying(slot, reason, words_of(reason), io);
    }

    /// A packet that is wrong: the connection ends.
    pub(super) fn mqtt_end_wrong<I: Io>(
        &mut self,
        slot: u32,
        reason: ReasonCode,
        words: &str,
        io: &mut I,
    ) {
        let told = [ReasonCode::NOT_AUTHORIZED, ReasonCode::TOPIC_NAME_INVALID];
        if ended(reason) == Closed::Refused && !told.contains(&reason) {
            self.gate.refused_packet(&mut self.meter.stats, words, b"");
        }
        self.mqtt_end_saying(slot, reason, words, io);
    }

    /// The same, in these words.
    pub(super) fn mqtt_end_saying<I: Io>(
        &mut self,
        slot: u32,
        reason: ReasonCode,
        words: &str,
        io: &mut I,
    ) {
        self.clients.scratch.because(ended(reason));
        // [MQTT-3.14.0-1]: not before the CONNACK.
        let connecting =
            client::mqtt(&self.clients.conns, slot).is_some_and(|mqtt| mqtt.connecting.is_some());
        let row = self.clients.conns.get(slot);
        if version(&self.clients.conns, slot) == Version::V5 && row.own != NONE && !connecting {
            let mut properties = PropertyBuf::new();
            let _ = properties.reason_string(words);
            if reason == ReasonCode::USE_ANOTHER_SERVER {
                let reference = &self.clients.ctx.world.settings.drain.server_reference;
                let _ = properties.server_reference(reference);
            }
            let most = packet_bytes_max(&self.clients.conns, slot);
            // Without the words where they make it too large [MQTT-3.14.2-3].
            for properties in [properties.properties(), Properties::NONE] {
                let disconnect = Disconnect { reason, properties };
                let mut packet = Vec::new();
                encode::disconnect(&mut packet, Version::V5, &disconnect);
                if packet.len() <= most {
                    self.clients
                        .write_packet(&mut self.meter.stats, slot, |out| {
                            out.extend_from_slice(&packet)
                        });
                    break;
                }
            }
        }
        self.mqtt_shut(slot, io);
    }

    /// Sends what is written and closes.
    pub(super) fn mqtt_shut<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.clients.send_reply(slot, io);
        if self.clients.conns.get(slot).wants(FRAMED) {
            return self.end_stream_by(slot, Closed::Done, CLOSE_NORMAL, "", io);
        }
        self.shut(slot, io);
    }

    /// The deadline has passed: for a CONNECT, or since the last packet of the client.
    pub(crate) fn mqtt_deadline<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.mqtt_late(slot, Reason::Silent, io);
    }

    /// This node of a cluster has no way to the log: the client may find another node that has. Clients of other protocols stay, and catch up.
    pub(crate) fn mqtt_cut_off<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.mqtt_late(slot, Reason::CutOff, io);
    }

    fn mqtt_late<I: Io>(&mut self, slot: u32, reason: Reason, io: &mut I) {
        self.clients.scratch.because(reason.row().closed);
        let row = self.clients.conns.get(slot);
        if row.is(CLOSING) || row.own == NONE {
            return self.drop_conn(slot, Close::Now, io);
        }
        self.clients.scratch.reply().clear();
        self.mqtt_end_because(slot, reason, io);
    }
}

/// Words for a reason string: short, and without a null character.
pub(super) fn words_of(reason: ReasonCode) -> &'static str {
    match reason {
        // A message without QoS has no other answer.
        ReasonCode::TOPIC_NAME_INVALID => BAD_TOPIC,
        reason => reason.name(),
    }
}

/// The reason that an end with this code is counted under.
pub(super) fn ended(reason: ReasonCode) -> Closed {
    match reason {
        // As a rule the client has opened another connection.
        ReasonCode::SESSION_TAKEN_OVER => Closed::Peer,
        ReasonCode::KEEP_ALIVE_TIMEOUT => Closed::Timeout,
        ReasonCode::QUOTA_EXCEEDED | ReasonCode::SERVER_BUSY | ReasonCode::SERVER_UNAVAILABLE => {
            Closed::Full
        }
        ReasonCode::ADMINISTRATIVE_ACTION => Closed::Operator,
        // Not in any rule of MQTT: it is used where our rows contradict each other.
        ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR => Closed::Broken,
        _ => Closed::Refused,
    }
}
