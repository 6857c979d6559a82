//! HTTP/1.1: requests, and the responses to them. `request` reads what comes, `credentials` says who sent it, `judge` decides by the head, with
//! `sites` (where it comes from), `parameters` (what of it is read; `slips`: what was meant instead) and `names` (which topics); `answer` and
//! `turned_away` write responses (`retry`: when to come back), `pipelined` holds what comes behind a request that waits, `close` ends connections.
//!
//! The purposes of requests: `publish`, `subscribe` (with `filtered` and `opening`: by filter), `history`, and `interest`: which topics have
//! subscribers.

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
mod slips;
pub(crate) mod state;
pub(crate) mod subscribe;
pub(crate) mod task;
pub(crate) mod turned_away;
