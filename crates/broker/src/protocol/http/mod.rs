//! HTTP/1.1: reads requests and writes responses. `request` reads received bytes, and `credentials` finds the client. `judge`
//! decides by the head. It uses `origins` (the host and the origin), `parameters` (known parameters and headers), `suggestions` (suggestions for
//! misspelt ones) and `names` (topics and filters). `answer` and `turned_away` write responses (`retry`: when to try again).
//! `pipelined` holds bytes after a waiting request. `close` ends connections, and
//! `stream_end` streams.
//!
//! Requests that need no stream are here: `publish` and `history`. `task` has the trait by which requests of other protocols are
//! carried out.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod close;
pub(crate) mod credentials;
pub(crate) mod filter_response;
pub mod headers;
pub(crate) mod history;
pub(crate) mod judge;
pub(crate) mod names;
pub(crate) mod options;
mod origins;
pub(crate) mod parameters;
pub(crate) mod pipelined;
pub(crate) mod presence;
pub(crate) mod publish;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod state;
pub(crate) mod stream_end;
mod suggestions;
pub(crate) mod task;
pub(crate) mod turned_away;
