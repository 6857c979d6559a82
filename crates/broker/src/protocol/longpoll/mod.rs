//! Long-polls: requests for one message, which wait until there is one. `poll` answers requests for topics, `filtered` requests for
//! filters, `contract` the questions that every protocol answers. They subscribe in the same way as streams (`protocol/stream`).

pub(crate) mod contract;
pub(crate) mod filtered;
pub(crate) mod poll;
