//! The clients: subscribers of every transport that resume, and publishers that retry. Each reads received bytes and
//! returns the bytes to send; the world moves them.

pub mod follower;
pub mod http;
pub mod mqtt;
pub mod publisher;
pub mod sse;
pub mod subscriber;
pub mod track;
pub mod websocket;
