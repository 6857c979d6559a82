//! Connections with TLS, held against `rustls`' own client over a socket: content, keys, tickets, and what bad peers
//! get.

mod content;
mod handshakes;
mod hostile;
mod pair;
