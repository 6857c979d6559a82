//! The protocols of connections. Each file is a part of the shard's turn: `http` reads
//! requests, `judge` decides by their heads, `sites` by where they come from, `publish` and `subscribe` carry them out, `answer` writes the
//! responses, `access` checks credentials and rights, `filtered` serves subscribers by filter, `admission` turns clients away,
//! `interest` serves followers of interest, `history` tells what a log keeps, `websocket` reads frames, `deadlines` watches the clock, `hold` ends inputs that
//! are too slow or have no room, `review` ends connections that new settings grant less to. `push` and `send` write to the sockets.
//!
//! `contract` is what a shard asks of a connection's protocol; other files do not ask which one it is. `base::reason` has the reasons to
//! end a connection, `http_close` how requests and streams end for them, `live` gives streams their live messages.
//!
//! Owners of what the shard has, with fields of their own: `connections` the rows and side rows, `queues` who waits for a turn, `gate`
//! who may come in, `close` how connections end, `work` the budget of a turn, `scratch` buffers, `opening` a response that waits for homes,
//! `census` who holds most.

pub(crate) mod asking;
pub(crate) mod close;
pub(crate) mod deliveries;
pub(crate) mod delivery;
pub(crate) mod encode;
mod ending;
mod fallback;
pub(crate) mod front;
pub(crate) mod joining;
pub(crate) mod matches;
pub(crate) mod outbox;
pub(crate) mod relief;

pub(crate) mod access;
pub(crate) mod admission;
pub(crate) mod answer;
mod census;
pub(crate) mod connections;
pub(crate) mod contract;
pub(crate) mod credit;
pub(crate) mod deadlines;
pub(crate) mod filtered;
pub(crate) mod gate;
mod history;
pub(crate) mod hold;
pub(crate) mod http;
mod http_close;
pub(crate) mod interest;
pub(crate) mod judge;
mod live;
pub(crate) mod mqtt;
pub(crate) mod names;
mod opening;
mod progress;
pub(crate) mod publish;
pub(crate) mod push;
pub(crate) mod queues;
pub(crate) mod review;
pub(crate) mod run;
mod scratch;
pub(crate) mod send;
pub(crate) mod side;
mod sites;
pub(crate) mod subscribe;
mod task;
pub(crate) mod websocket;
pub(crate) mod work;

pub use admission::shed;

pub use publish::check_fields;
pub use review::Review;
