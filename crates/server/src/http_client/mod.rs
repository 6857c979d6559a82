//! The HTTP/1.1 client of this process, with TLS for `https` URLs: for the tools, the access callback, keys by URL, and a start whose port is in use.
//!
//! It blocks, and uses one connection at a time.

pub mod http;
pub mod port_in_use;
pub mod server;
pub mod servers;
pub mod stream;
pub mod tls;
