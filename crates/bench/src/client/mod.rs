//! The client's side of the protocols that the load tools speak: HTTP requests and answers, WebSocket frames, MQTT packets, TLS.

pub mod link;
pub mod mqtt;
pub mod parse;
pub mod position;
pub mod request;
pub mod subscription;
pub mod tls;
