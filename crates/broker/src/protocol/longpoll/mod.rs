//! Long-polls: a request for one message, which waits until there is one. `poll` answers requests for topics, `filtered` those by filter; how a
//! request subscribes is the same as for streams (`protocol/http/subscribe`).

pub(crate) mod filtered;
pub(crate) mod poll;
