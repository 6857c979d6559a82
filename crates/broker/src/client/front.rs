//! A shard's side towards clients: the rows of connections, their subscriptions, and the lanes to homes.

use alloc::sync::Arc;

use crate::base::ids::ShardId;
use crate::base::lives::Lives;
use crate::base::time::{Now, Wall};
use crate::base::work::Steps;
use crate::budget::shard_account::ShardAccount;
use crate::budget::world::World;
use crate::client::parts::{
    Census, Clients, Connections, Context, Deliveries, Feed, Forms, Gate, Lanes, Matching, Meter,
    Notices, Queues, Run, Scratch, Stats, Subscriptions, Topics, Work,
};
use crate::client::run::Encodings;
use crate::client::types::ProtocolTypes;

/// The clients' side of a shard. Generic over [`Io`](crate::Io) in each call, never `dyn`. Its methods are entries that need nearly all parts, and the
/// place where ends of connections are carried out; all other functions take the parts.
pub struct Front<P: ProtocolTypes> {
    pub(crate) clients: Clients<P>,
    pub(crate) subs: Subscriptions,
    pub(crate) feed: Feed,
    /// Connections that wait for their turn, a page or credit.
    pub(crate) queues: Queues,
    /// Which clients hold how much, while the account is near its limit.
    pub(crate) census: Census,
    pub(crate) gate: Gate,
}

impl<P: ProtocolTypes> Front<P> {
    /// A front of this world, which began at `now`. The home of its shard counts its work in `home`.
    pub(crate) fn new(me: ShardId, world: Arc<World>, home: Steps, now: Now) -> Front<P> {
        let work = Work::new(home);
        let account = ShardAccount::new(world.admission.clone(), world.shards as usize);
        Front {
            subs: Subscriptions {
                topics: Topics::default(),
                matching: Matching::new(usize::from(world.partitions), world.seed, &work.steps),
                lanes: Lanes::new(me, world.shards as usize),
            },
            feed: Feed {
                deliveries: Deliveries::default(),
                run: Run::new(P::Encoding::COUNT),
                forms: Forms::default(),
            },
            queues: Queues::default(),
            census: Census::default(),
            gate: Gate::new(world.settings.limits.connections_per_shard),
            clients: Clients {
                conns: Connections::new(account),
                scratch: Scratch::default(),
                ctx: Context {
                    lives: Arc::new(Lives::first(world.epoch)),
                    me,
                    world,
                    now,
                    wall: Wall::default(),
                    drains: false,
                },
                meter: Meter {
                    work,
                    stats: Stats::default(),
                    notices: Notices::default(),
                    journal: None,
                },
                own: P::own(now),
            },
        }
    }
}
