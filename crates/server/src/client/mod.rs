//! The client's side of HTTP/1.1, with TLS where the URL says `https`: for the tools and for the access callback.
//!
//! Blocking sockets, one connection at a time.

pub mod http;
pub mod server;
pub mod stream;
pub mod tls;
