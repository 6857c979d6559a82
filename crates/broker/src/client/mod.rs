//! The clients' side of a shard: the state and the functions of every connection, whatever its protocol. Nothing here names a
//! protocol. Where the protocol decides, the code asks the trait [`protocols::Protocol`] by `protocol_of`.
//!
//! Everywhere here a parameter `slot` is a connection's row number in the table of connections, and `part` is the index of a subscription in
//! the connection's list of subscriptions.
//!
//! * The interface to the protocols: `types` and `protocols`.
//! * The tables: `connections` with rows (`row`) and side rows (`side`), `topics` with the members of each topic, `front` with the
//!   whole state.
//! * Connections that share a link, as streams of HTTP/2: `links`.
//! * Begin and end of connections: `admission` and `gate`, `rights`, `review` (rights after new settings), `deadlines` and `close`.
//! * Subscriptions: `subscriptions` (topics), `joining` and `matches` (filters), `asking` (requests to homes, the parts of shards
//!   that keep topics), `publishing` (the checks of a message).
//! * Messages: `delivery` and `deliveries` (mail from homes), `walk` and `together` (fan-outs that take several turns), `run` (the
//!   messages that are being delivered), `push`, `send`, `outbox`, and `fallback` for slow consumers.
//! * Work and memory: `queues`, `credit`, `work`, `hold` and `progress` (received bytes), `census` and `relief`, `scratch`
//!   (buffers).
//! * For the operator: `journal` (the log of clients).

pub(crate) mod admission;
pub(crate) mod asking;
pub(crate) mod census;
pub(crate) mod close;
pub(crate) mod codec;
pub(crate) mod connections;
pub(crate) mod context;
pub(crate) mod credit;
pub(crate) mod deadlines;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod fallback;
pub(crate) mod front;
mod gate;
pub(crate) mod hold;
pub(crate) mod joining;
mod journal;
pub(crate) mod links;
pub(crate) mod list;
pub(crate) mod matches;
pub(crate) mod outbox;
pub(crate) mod parts;
pub(crate) mod presence;
pub(crate) mod progress;
pub(crate) mod protocols;
pub(crate) mod publishing;
pub(crate) mod push;
pub(crate) mod queues;
pub(crate) mod relief;
pub(crate) mod review;
pub(crate) mod rights;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod scratch;
pub(crate) mod send;
pub(crate) mod side;
pub(crate) mod subscribing;
pub(crate) mod subscriptions;
pub(crate) mod together;
pub(crate) mod topics;
pub(crate) mod types;
pub(crate) mod walk;
mod work;
