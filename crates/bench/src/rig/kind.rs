//! The kinds of servers that are measured: Crore, the floor (a minimal reference server) and the peers (other products). Says which
//! protocols each kind speaks.

use crate::subscribe::Protocol;
use strum::IntoStaticStr;

/// A kind of server.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ServerKind {
    /// The reference, which is always there
    Floor,
    /// The product.
    #[value(skip)]
    Crore,
    /// Debian's nginx with its Nchan module
    Nchan,
    /// Debian's Mosquitto, over MQTT
    Mosquitto,
    /// NATS with JetStream. It has its own protocol, so only `durable` measures it.
    #[value(skip)]
    Nats,
    /// Any other server, started by a shell command.
    #[value(skip)]
    Other,
}

impl ServerKind {
    /// The name of the kind in results.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the server's process may have children. Then the server must end them itself.
    pub fn has_children(self) -> bool {
        matches!(self, ServerKind::Nchan | ServerKind::Other)
    }

    /// The protocol of the subscribers: `wanted` if the server speaks it, otherwise the only protocol that the server speaks.
    pub fn protocol(self, wanted: Protocol) -> Protocol {
        match (self, wanted) {
            (ServerKind::Crore, _) | (ServerKind::Nchan, Protocol::Sse | Protocol::Poll) => wanted,
            (ServerKind::Mosquitto | ServerKind::Nats, _) => Protocol::Mqtt,
            (ServerKind::Floor | ServerKind::Nchan | ServerKind::Other, _) => Protocol::Ws,
        }
    }

    /// The flags of `crore-bench publish` for this kind, and a description of these flags for the result. Each server gets its messages in
    /// the way that gave the highest rate in trials. All messages of a topic use one connection. If `wanted` is MQTT, Crore gets its
    /// messages over MQTT, as Mosquitto does.
    pub fn publish_flags(self, wanted: Protocol) -> (&'static [&'static str], &'static str) {
        match (self, wanted) {
            (ServerKind::Floor, _) => {
                (&["--floor"], "ready frames over one connection, no answers")
            }
            // Mosquitto reads only one packet of a connection in each pass of its loop, so several connections are faster.
            (ServerKind::Mosquitto | ServerKind::Nats, _) | (ServerKind::Crore, Protocol::Mqtt) => {
                (
                    &["--protocol", "mqtt", "--connections", "8"],
                    "PUBLISH over 8 connections (1 for 1 topic)",
                )
            }
            (ServerKind::Crore, Protocol::MqttWs) => (
                &["--protocol", "mqtt-ws", "--connections", "8"],
                "PUBLISH over 8 WebSockets (1 for 1 topic)",
            ),
            (ServerKind::Crore, _) => (
                &[],
                "POST /pub, NDJSON of at most 60 kB, over one connection, 16 in flight, all answered",
            ),
            // Nchan has no batches. More connections or more requests in flight do not make it faster.
            (ServerKind::Nchan | ServerKind::Other, _) => (
                &["--single"],
                "POST /pub/TOPIC for each message over one connection, 16 in flight, all answered",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_probed_in_its_own_protocol() {
        let all = [Protocol::Ws, Protocol::Sse, Protocol::Poll, Protocol::Mqtt];
        assert!(
            all.iter()
                .all(|wanted| ServerKind::Crore.protocol(*wanted) == *wanted)
        );
        assert!(
            all.iter()
                .all(|wanted| ServerKind::Floor.protocol(*wanted) == Protocol::Ws)
        );
        assert!(
            all.iter()
                .all(|wanted| ServerKind::Mosquitto.protocol(*wanted) == Protocol::Mqtt)
        );
        assert_eq!(ServerKind::Nchan.protocol(Protocol::Poll), Protocol::Poll);
        assert_eq!(ServerKind::Nchan.protocol(Protocol::Mqtt), Protocol::Ws);
    }
}
