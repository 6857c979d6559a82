//! The protocols of connections, one folder each. All use the clients' side of a shard (`client/`). `sse` and `websocket` use
//! `http`. `stream` has the subscriptions that begin with a request, over these three, and `longpoll` is over `stream`. `mqtt` runs over
//! TCP or over `websocket`, `centrifugo` and `pusher` over `websocket`. `http2` uses `http`: its links carry streams, each of which is a connection of
//! another protocol. No other of these folders imports another.
//!
//! The files here join the protocols. `contract` names the types that implement the trait of all protocols, `requests` has that of requests, and
//! `replies` hands over the mail of homes (the parts of shards that keep topics). `front` names the clients' side of a shard. `side` and `shard_state` hold
//! the protocols' state of a connection and of a shard. `encode` writes messages in each protocol, and `run` once for all connections that get the
//! same bytes.

pub(crate) mod centrifugo;
pub(crate) mod contract;
mod encode;
pub(crate) mod front;
pub(crate) mod http;
pub(crate) mod http2;
mod longpoll;
pub(crate) mod mqtt;
pub(crate) mod pusher;
pub(crate) mod replies;
mod requests;
mod run;
mod shard_state;
pub(crate) mod side;
mod sse;
pub(crate) mod stream;
mod websocket;

pub use crate::client::publishing::{PublishRefusal, check_message};
pub use crate::client::review::Review;
pub use centrifugo::names::channel_names as centrifugo_channel_names;
pub use centrifugo::reasons::error_of as centrifugo_error_of;
pub use centrifugo::state::{client_id_text, client_named as centrifugo_client_named, epoch_text};
pub use http::headers;
pub use http::parameters::PARAMETERS;
pub use http::turned_away::shed;
pub use pusher::state::origin_of_socket as pusher_origin_of;
