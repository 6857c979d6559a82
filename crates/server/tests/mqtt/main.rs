//! MQTT over raw sockets: what libraries of others cannot send, or hide from their users. Malformed packets,
//! packets out of turn, quotas, retransmission, keep alive, frames of any size.
//!
//! Well-formed packets are written and read by the codec of `wire`, which has an oracle of its own;
//! malformed ones stand here as bytes. With `CRORE_MQTT_REFERENCE=/usr/sbin/mosquitto` in the environment
//! the same tests run against that broker.

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
