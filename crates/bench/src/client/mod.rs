//! The client's side of the protocols, as far as load tools need it: HTTP requests and answers, WebSocket frames, MQTT packets, TLS.

pub mod link;
pub mod mqtt;
pub mod parse;
pub mod position;
pub mod request;
pub mod subscription;
pub mod tls;
