//! The clients: subscribers of every transport that resume, and publishers that retry. Each reads
//! the bytes that came and says which it sends; the world moves them.

pub mod follower;
pub mod http;
pub mod mqtt;
pub mod publisher;
pub mod sse;
pub mod subscriber;
pub mod track;
