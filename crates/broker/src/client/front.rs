//! The clients' side of a shard's state: the table of connections, their subscriptions, and the lanes to homes. A *lane* is an ordered
//! queue of mail. A *home* is the part of a shard that keeps topics.

use alloc::sync::Arc;

use crate::base::ids::ShardId;
use crate::base::lives::Lives;
use crate::base::time::{Now, Wall};
use crate::base::work::Steps;
use crate::budget::shard_account::ShardAccount;
use crate::budget::world::World;
use crate::client::parts::{
    Census, Clients, Connections, Context, Deliveries, EncodingCache, Feed, Gate, Lanes, Matching,
    Meter, Notices, Queues, Run, Scratch, Stats, Subscriptions, Topics, Work,
};
use crate::client::run::Encodings;
use crate::client::types::ProtocolTypes;

/// The clients' side of a shard. Generic over [`Io`](crate::Io) in each call, never `dyn`. A function needs a method of `Front`
/// only if it uses nearly all parts (`parts.rs`), or if it ends connections. All other functions take the parts that they use.
pub struct Front<P: ProtocolTypes> {
    pub(crate) clients: Clients<P>,
    pub(crate) subs: Subscriptions,
    pub(crate) feed: Feed,
    /// Connections that wait: for their turn, for room for the next page (a bounded run of past messages), or for credit
    /// (`credit.rs`).
    pub(crate) queues: Queues,
    /// How much memory each client holds, counted while the shard's memory account is near its limit.
    pub(crate) census: Census,
    pub(crate) gate: Gate,
}

/// The parts that nearly every delivery uses.
type Parts<'a, P> = (
    &'a mut Clients<P>,
    &'a mut Subscriptions,
    &'a mut Feed,
    &'a mut Queues,
);

impl<P: ProtocolTypes> Front<P> {
    /// The parts, to be borrowed side by side.
    #[inline]
    pub(crate) fn parts(&mut self) -> Parts<'_, P> {
        let Front {
            clients,
            subs,
            feed,
            queues,
            ..
        } = self;
        (clients, subs, feed, queues)
    }

    /// The state of a shard without connections, at time `now`. `home` counts the steps of the home on the same shard.
    pub(crate) fn new(own_shard: ShardId, world: Arc<World>, home: Steps, now: Now) -> Front<P> {
        let work = Work::new(home);
        let account = ShardAccount::new(world.admission.clone(), world.shards as usize);
        Front {
            subs: Subscriptions {
                topics: Topics::default(),
                matching: Matching::new(usize::from(world.partitions), world.seed, &work.steps),
                lanes: Lanes::new(own_shard, world.shards as usize),
            },
            feed: Feed {
                deliveries: Deliveries::default(),
                run: Run::new(P::Encoding::COUNT),
            },
            queues: Queues::default(),
            census: Census::default(),
            gate: Gate::new(world.settings.limits.connections_per_shard),
            clients: Clients {
                conns: Connections::new(account),
                scratch: Scratch::default(),
                encodings: EncodingCache::default(),
                ctx: Context {
                    lives: Arc::new(Lives::first(world.epoch)),
                    own_shard,
                    world,
                    now,
                    wall: Wall::default(),
                    is_draining: false,
                },
                meter: Meter {
                    work,
                    stats: Stats::default(),
                    notices: Notices::default(),
                    journal: None,
                },
                protocol_state: P::new_shard_state(now),
            },
        }
    }
}
