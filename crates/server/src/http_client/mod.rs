//! The client's side of HTTP/1.1, with TLS where the URL says `https`: for the tools, for the access callback, and for a start whose port is taken.
//!
//! Blocking sockets, one connection at a time.

pub mod http;
pub mod port_in_use;
pub mod server;
pub mod servers;
pub mod stream;
pub mod tls;
