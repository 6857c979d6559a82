//! The protocols that connections speak, one folder each, over the clients' side (`client/`): `http`; over it `sse`, `longpoll` and `websocket`;
//! and over `websocket` `mqtt`, which speaks over TCP as well. No other of these folders imports another.
//!
//! Here is what joins them. `contract` is the switchboard: which protocol answers a question about a connection. `front` names the
//! clients' side of a shard, `side` and `own` hold what protocols keep of a connection and of a shard, and `encode` has the form of a message in
//! each of them.

pub(crate) mod contract;
mod encode;
pub(crate) mod front;
pub(crate) mod http;
mod longpoll;
pub(crate) mod mqtt;
mod own;
pub(crate) mod side;
mod sse;
mod websocket;

pub use crate::client::publishing::{Refused, check_message};
pub use crate::client::review::Review;
pub use http::headers;
pub use http::parameters::PARAMETERS;
pub use http::turned_away::shed;
