//! HTTP/1.1: requests, and the responses to them. `request` reads what comes, `credentials` says who sent it, `judge` decides by the head, with
//! `sites` (where it comes from), `parameters` (what of it is read) and `names` (which topics); `answer` and `turned_away` write responses, `pipelined` holds what comes behind a
//! request that waits, `close` ends connections.
//!
//! What requests are for: `publish`, `subscribe` (with `filtered` and `opening`: by filter), `history`, and `interest`: which topics have subscribers.

pub(in crate::protocol) mod answer;
pub(in crate::protocol) mod body;
mod close;
mod credentials;
pub(in crate::protocol) mod filtered;
mod history;
mod interest;
mod judge;
mod names;
pub(in crate::protocol) mod opening;
pub(in crate::protocol) mod options;
mod parameters;
mod pipelined;
pub(in crate::protocol) mod publish;
mod request;
mod sites;
pub(crate) mod state;
pub(in crate::protocol) mod subscribe;
pub(in crate::protocol) mod task;
pub(in crate::protocol) mod turned_away;
