//! The simulated clients: subscribers of every transport, which resume, and publishers, which retry. A client parses and checks received
//! bytes, and collects the bytes to send in `out`. The simulation moves the bytes.

pub mod centrifugo;
pub mod follower;
pub mod http;
pub mod mqtt;
pub mod publisher;
pub mod sse;
pub mod subscriber;
pub mod track;
pub mod websocket;
