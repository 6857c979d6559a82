//! The client's side of what a server speaks, as far as load tools need it: requests, answers, frames, packets, TLS.

pub mod mqtt;
pub mod parse;
pub mod place;
pub mod request;
pub mod tls;
