//! The command-line tools: `crore pub`, `sub`, `history`, `admin`, `cluster`, `token` and `log`.
//!
//! The clients among them use only public protocols (HTTP/1.1, Server-Sent Events, WebSocket). Data is written to
//! stdout, everything else to stderr. A tool whose stdout is closed by its reader ends without an error.

pub mod admin;
pub mod cluster;
mod flags;
mod history;
pub mod log;
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
pub use publish::{PubArgs, publish};
pub use subscribe::{SubArgs, subscribe};
pub use token::TokenArgs;
pub use values::Usage;
