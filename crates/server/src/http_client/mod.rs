//! The HTTP/1.1 client of this process, with TLS for `https` URLs. The tools, the access callback, webhooks, the download of keys and the diagnosis
//! of a port in use need it.
//!
//! The client blocks, and uses one connection at a time.

mod addresses;
pub mod endpoint;
pub mod http;
pub mod port_in_use;
pub mod server;
pub mod servers;
pub mod stream;
pub mod tls;
