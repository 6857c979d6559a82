//! Long-polls: requests for one message, which wait until there is one. `poll` answers requests for topics, `filtered` requests for
//! filters. They subscribe in the same way as streams (`protocol/stream`).

pub(crate) mod filtered;
pub(crate) mod poll;
