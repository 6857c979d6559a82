//! The clients' side of a shard with the protocols of this server: [`client::front::Front`] and its parts, by the names
//! that protocols use. `contract` joins the two.

use crate::client;
pub(crate) use crate::client::parts::{
    Census, Context, Deliveries, Feed, Forms, Gate, Lanes, Matching, Meter, Queues, Run, Stats,
    Subscriptions, Topics, Work,
};
use crate::protocol::mqtt::state::Subscribed;

/// The protocols of this server.
pub(crate) struct AllProtocols;

/// The clients' side of a shard.
pub(crate) type Front = client::front::Front<AllProtocols>;
/// The connections, and what is at hand to answer one of them.
pub(crate) type Clients = client::parts::Clients<AllProtocols>;
/// The connections of a shard.
pub(crate) type Connections = client::connections::Connections<AllProtocols>;
/// The side row of a connection.
pub(crate) type Extra = client::side::Extra<AllProtocols>;

/// What lasts only until a request is answered lies behind a pointer: a connection with several topics keeps its side row.
const _: () = assert!(size_of::<Extra>() <= 176);
/// One of several topics of a connection.
pub(crate) type Sub = client::side::Sub<Subscribed>;
