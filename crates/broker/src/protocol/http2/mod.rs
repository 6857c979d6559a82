//! HTTP/2 (RFC 9113): a link whose streams are connections of their own (`client/links.rs`). The request of a stream is converted to the bytes of an HTTP/1.1
//! request, and its HTTP/1.1 answer is converted to frames. So HTTP/2 serves everything that HTTP/1.1 serves.
//!
//! `contract` implements the trait of all protocols for a link: its begin, end, deadlines and drain. `receive` turns frames into the input of streams, and
//! `waiting` continues with answers that waited for the client's flow control windows.

pub(crate) mod contract;
mod receive;
pub(crate) mod waiting;
