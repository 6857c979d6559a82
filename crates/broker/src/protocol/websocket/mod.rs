//! WebSockets: `handshake` accepts an upgrade, `frames` reads what comes, `publish` takes frames that publish, `heartbeat` sends pings, `gap` says
//! what is lost, and where a stream begins. The data of frames may be another protocol's: `protocol/contract` asks that.

mod frames;
pub(crate) mod gap;
pub(crate) mod handshake;
pub(crate) mod heartbeat;
pub(crate) mod publish;
