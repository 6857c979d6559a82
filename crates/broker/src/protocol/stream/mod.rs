//! Subscriptions that begin with a request: event streams, WebSockets, and the part of long-polls that is the same for all.
//!
//! `subscribe` reads the request (by filter: `filtered`), and `refused_attach` handles refusals of homes (the parts of shards that keep topics).
//! `stream_pages` begins streams and sends pages, `live` sends live messages, `gap` reports lost messages, and `catch_up` continues from the log.
//! `format` has the differences between events and frames, `encode` encodes messages. `contract` implements the trait of all protocols. `interest`
//! reports which topics have subscribers, `presence` who subscribes to a topic. Long-polls are in `protocol/longpoll`.

pub(crate) mod catch_up;
pub(crate) mod contract;
mod encode;
pub(crate) mod filtered;
pub(crate) mod format;
pub(crate) mod gap;
pub(crate) mod interest;
pub(crate) mod live;
pub(crate) mod presence;
pub(crate) mod refused_attach;
pub(crate) mod stream_pages;
pub(crate) mod subscribe;
