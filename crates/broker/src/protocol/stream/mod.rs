//! Subscriptions that begin with a request: event streams, WebSockets, and the part of long-polls that is the same for all.
//!
//! `subscribe` reads the request (by filter: `filtered`), `page` handles refusals of homes (the parts of shards that keep topics),
//! `course` gives pages to streams of events or frames, `live` gives live messages to streams, `gap` reports lost messages, `leave`
//! continues from the log. `format` has the differences between events and frames, `topics` encodes messages. `contract` implements the trait of all protocols. `interest` reports which
//! topics have subscribers, `presence` who subscribes to a topic. Long-polls are in `protocol/longpoll`.

pub(crate) mod contract;
pub(crate) mod course;
pub(crate) mod filtered;
pub(crate) mod format;
pub(crate) mod gap;
pub(crate) mod interest;
pub(crate) mod leave;
pub(crate) mod live;
pub(crate) mod page;
pub(crate) mod presence;
pub(crate) mod subscribe;
mod topics;
