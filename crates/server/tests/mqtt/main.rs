//! Tests MQTT over raw sockets, for packets that client libraries cannot send, or hide from their users: malformed packets, packets out of
//! order, quotas, retransmission, keep alive, and WebSocket frames of any size.
//!
//! Valid packets are written and read by the codec of `wire`, which is tested against another implementation. Malformed packets are given
//! as bytes. If the environment has `CRORE_MQTT_REFERENCE=/usr/sbin/mosquitto`, the same tests run against that broker.

#[path = "../support/mod.rs"]
mod support;

mod acknowledge;
mod bridge;
mod conformance;
mod connect;
mod corners;
mod crash;
mod disorder;
mod doors;
mod drain;
mod durable_limits;
mod exactly_once;
mod flow;
mod hostile;
mod keep_alive;
mod kills;
mod malformed;
mod overlap;
mod refusals;
mod restart;
mod room;
mod shapes;
mod state_format;
mod sys;
mod turns;
mod unaltered;
mod websocket;
