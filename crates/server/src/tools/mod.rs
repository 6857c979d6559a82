//! `crore pub`, `crore sub`, `crore history`, `crore admin`, `crore cluster`, `crore token` and `crore log`: the toolbox.
//!
//! The clients use public protocols only (HTTP/1.1, Server-Sent Events, WebSocket), and nothing that is only ours. Data goes to
//! stdout; everything else goes to stderr. A reader of stdout that went away ends them quietly.

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
