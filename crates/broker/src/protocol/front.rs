//! Type aliases: the clients' side of a shard ([`client::front::Front`]) and its parts, with the protocols of this server.
//! `contract` says which types they are.

use crate::client;
pub(crate) use crate::client::parts::{
    Census, Context, Deliveries, EncodingCache, Feed, Gate, Lanes, Matching, Meter, Queues, Run,
    Stats, Subscriptions, Topics, Work,
};
pub(crate) use crate::protocol::mqtt::state::SubscriptionState;

/// The protocols of this server.
pub(crate) struct AllProtocols;

/// The clients' side of a shard.
pub(crate) type Front = client::front::Front<AllProtocols>;
/// The connections, and what is needed to answer one of them.
pub(crate) type Clients = client::parts::Clients<AllProtocols>;
/// The connections of a shard.
pub(crate) type Connections = client::connections::Connections<AllProtocols>;
/// The side row of a connection.
pub(crate) type Extra = client::side::SideRow<AllProtocols>;

/// State that lasts only until a request is answered is stored behind a pointer, to keep this side row small: a connection with
/// several topics always has one.
const _: () = assert!(size_of::<Extra>() <= 184);
/// One of several topics of a connection.
pub(crate) type Sub = client::side::ListedSubscription<SubscriptionState>;
