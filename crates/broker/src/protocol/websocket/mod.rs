//! WebSockets: `handshake` accepts an upgrade, `frames` reads received bytes, `publish` publishes frames, `heartbeat` sends pings,
//! `gap` reports lost messages and the first position. Frames may carry another protocol, which gets their data.

mod frames;
pub(crate) mod gap;
pub(crate) mod handshake;
pub(crate) mod heartbeat;
pub(crate) mod publish;
