//! HTTP/1.1: reads requests and writes responses. `request` reads received bytes, and `credentials` finds the client. `judge`
//! decides by the head. It uses `sites` (the origin), `parameters` (known parameters and headers), `suggestions` (suggestions for
//! misspelt ones) and `names` (topics and filters). `answer` and `turned_away` write responses (`retry`: when to try again).
//! `pipelined` holds bytes after a waiting request. `close` ends connections.
//!
//! The kinds of requests: `publish`, `subscribe` (by filter: `filtered` and `opening`), `history`, and `interest` (which topics
//! have subscribers).

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod close;
pub(crate) mod credentials;
pub(crate) mod filtered;
pub mod headers;
pub(crate) mod history;
pub(crate) mod interest;
mod judge;
mod names;
pub(crate) mod opening;
pub(crate) mod options;
pub(crate) mod parameters;
pub(crate) mod pipelined;
pub(crate) mod publish;
pub(crate) mod request;
pub(crate) mod retry;
mod sites;
pub(crate) mod state;
pub(crate) mod subscribe;
mod suggestions;
pub(crate) mod task;
pub(crate) mod turned_away;
