//! Tests connections with TLS against `rustls`' own client over a socket: content, keys, tickets, and bad peers.

mod content;
mod handshakes;
mod hostile;
mod memory;
mod pair;
