//! HTTP/2 (RFC 9113): a link whose streams are connections of their own (`client/links.rs`). A request of a stream is given to HTTP as
//! the bytes of a request of HTTP/1.1, and the answer is taken as such, so everything that HTTP/1.1 serves is served alike.
//!
//! `contract` has the link as a connection: its begin, end, deadlines and drain. `receive` turns frames into the input of streams, and
//! `waiting` goes on with answers that the client's windows held up.

pub(crate) mod contract;
mod receive;
pub(crate) mod waiting;
