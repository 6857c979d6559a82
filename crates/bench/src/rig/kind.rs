//! The kinds of servers that are measured: the product, the floor or a peer, and the protocols of each.

use crate::subscribe::Protocol;

/// Who serves.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The reference, which is always there
    Floor,
    /// The product.
    #[value(skip)]
    Crore,
    /// Debian's nginx with its Nchan module
    Nchan,
    /// Debian's Mosquitto, over MQTT
    Mosquitto,
}

impl Kind {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Floor => "floor",
            Kind::Crore => "crore",
            Kind::Nchan => "nchan",
            Kind::Mosquitto => "mosquitto",
        }
    }

    /// How it is subscribed to when `wanted` is asked for: as asked if it speaks that, else in the
    /// one protocol that it does speak.
    pub fn protocol(self, wanted: Protocol) -> Protocol {
        match (self, wanted) {
            (Kind::Crore, _) | (Kind::Nchan, Protocol::Sse | Protocol::Poll) => wanted,
            (Kind::Mosquitto, _) => Protocol::Mqtt,
            (Kind::Floor | Kind::Nchan, _) => Protocol::Ws,
        }
    }

    /// The publisher's flags, and in words how messages reach the server. Each is fed in the way in
    /// which it was seen to take most over one connection for each topic's messages; ours over MQTT as
    /// Mosquitto is, where that is `wanted`.
    pub fn feed(self, wanted: Protocol) -> (&'static [&'static str], &'static str) {
        match self {
            Kind::Crore if wanted == Protocol::Mqtt => (
                &["--protocol", "mqtt", "--connections", "8"],
                "PUBLISH over 8 connections (1 for 1 topic)",
            ),
            Kind::Crore if wanted == Protocol::MqttWs => (
                &["--protocol", "mqtt-ws", "--connections", "8"],
                "PUBLISH over 8 WebSockets (1 for 1 topic)",
            ),
            Kind::Floor => (&["--floor"], "ready frames over one connection, no answers"),
            Kind::Crore => (
                &[],
                "POST /pub, NDJSON of at most 60 kB, over one connection, 16 in flight, all answered",
            ),
            // It has no batches; more connections or more in flight do not make it faster.
            Kind::Nchan => (
                &["--single"],
                "POST /pub/TOPIC for each message over one connection, 16 in flight, all answered",
            ),
            // It takes one packet of a connection in each turn of its loop.
            Kind::Mosquitto => (
                &["--protocol", "mqtt", "--connections", "8"],
                "PUBLISH over 8 connections (1 for 1 topic)",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_asked_in_a_protocol_that_it_speaks() {
        let all = [Protocol::Ws, Protocol::Sse, Protocol::Poll, Protocol::Mqtt];
        assert!(
            all.iter()
                .all(|wanted| Kind::Crore.protocol(*wanted) == *wanted)
        );
        assert!(
            all.iter()
                .all(|wanted| Kind::Floor.protocol(*wanted) == Protocol::Ws)
        );
        assert!(
            all.iter()
                .all(|wanted| Kind::Mosquitto.protocol(*wanted) == Protocol::Mqtt)
        );
        assert_eq!(Kind::Nchan.protocol(Protocol::Poll), Protocol::Poll);
        assert_eq!(Kind::Nchan.protocol(Protocol::Mqtt), Protocol::Ws);
    }
}
