//! The command-line tools: `crore pub`, `sub`, `history`, `presence`, `admin`, `cluster`, `token` and `log`.
//!
//! Tools that connect to a server use only public protocols (HTTP/1.1, Server-Sent Events, WebSocket). Tools write data to stdout and
//! everything else to stderr. If the reader of a tool's stdout closes it, the tool ends without an error.

pub mod admin;
pub mod cluster;
mod flags;
mod history;
pub mod log;
mod presence;
mod profile;
mod publish;
mod refusals;
mod subscribe;
mod tables;
pub mod token;
mod values;

pub use admin::{AdminArgs, admin};
pub use cluster::ClusterArgs;
pub use history::{HistoryArgs, history};
pub use log::LogArgs;
pub use presence::{PresenceArgs, presence};
pub use publish::{PubArgs, publish};
pub use subscribe::{SubArgs, subscribe};
pub use token::TokenArgs;
pub use values::Usage;
