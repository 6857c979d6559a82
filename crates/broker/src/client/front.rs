//! A shard's side towards clients: the rows of connections, their subscriptions, and the lanes to homes.

use crate::base::work::Steps;
use crate::budget::world::World;
use alloc::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::planted::{self, Fault};
use crate::base::time::{Now, Wall};
use crate::budget::shard_account::ShardAccount;
use crate::budget::stats::Stats;
use crate::client::census::Census;
use crate::client::connections::Connections;
use crate::client::deliveries::Deliveries;
use crate::client::ending::Ending;
use crate::client::gate::Gate;
use crate::client::queues::Queues;
use crate::client::run::{Encodings, Run};
use crate::client::scratch::Scratch;
use crate::client::topics::Topics;
use crate::client::types::ProtocolTypes;
use crate::client::work::Work;
use crate::filters::matching::Matching;
use crate::mail::lanes::Lanes;
use crate::store::shared::Forms;

/// The clients' side of a shard. Generic over [`Io`](crate::Io) in each call, never `dyn`.
pub struct Front<P: ProtocolTypes> {
    pub(crate) world: Arc<World>,
    pub(crate) now: Now,
    pub(crate) wall: Wall,
    pub(crate) conns: Connections<P>,
    pub(crate) topics: Topics,
    pub(crate) matching: Matching,
    pub(crate) lanes: Lanes,
    pub(crate) deliveries: Deliveries,
    /// Connections that wait for their turn, a page or credit.
    pub(crate) queues: Queues,
    /// Which clients hold how much, while the account is near its limit.
    pub(crate) census: Census,
    /// Large messages in the encoded forms that sockets wait for.
    pub(crate) forms: Forms,
    pub(crate) gate: Gate,
    /// The work done and the budget for it.
    pub(crate) work: Work,
    pub(crate) ending: Ending,
    pub(crate) scratch: Scratch,
    pub(crate) run: Run,
    pub(crate) stats: Stats,
    /// Clients are being moved off this server.
    pub(crate) drains: bool,
    /// What only protocols know.
    pub(crate) own: P::Own,
}

impl<P: ProtocolTypes> Front<P> {
    /// A front of this world, which began at `now`. The home of its shard counts its work in `home`.
    pub(crate) fn new(me: ShardId, world: Arc<World>, home: Steps, now: Now) -> Front<P> {
        let lanes = Lanes::new(me, world.shards as usize);
        let work = Work::new(home);
        Front {
            now,
            wall: Wall::default(),
            conns: Connections::new(ShardAccount::new(
                world.admission.clone(),
                world.shards as usize,
            )),
            topics: Topics::default(),
            matching: Matching::new(usize::from(world.partitions), world.seed, &work.steps),
            lanes,
            deliveries: Deliveries::default(),
            queues: Queues::default(),
            census: Census::default(),
            forms: Forms::default(),
            gate: Gate::new(world.settings.limits.connections_per_shard),
            work,
            ending: Ending::default(),
            scratch: Scratch::new(),
            run: Run::new(P::Encoding::COUNT),
            stats: Stats::default(),
            drains: false,
            own: P::own(now),
            world,
        }
    }

    /// An input comes, or a turn ends, at this moment.
    pub(crate) fn set_now(&mut self, now: Now) {
        self.now = now;
        if planted::is(Fault::WallClock) {
            self.now.unix_s = self.wall_s();
        }
    }

    /// Unix seconds as the wall clock shows them.
    pub(crate) fn wall_s(&self) -> u32 {
        self.wall.unix_s(self.now)
    }

    /// The date of a message of this second, for the client to see: never later than the `Date` of the same answer.
    pub(crate) fn date_of(&self, counted_s: u32) -> u64 {
        self.wall.date_of(counted_s, self.now).into()
    }

    /// The keyed hash and the home of a topic.
    pub(crate) fn place_of(&self, name: &[u8]) -> (u32, ShardId) {
        let hash = xxh3_64_with_seed(name, self.world.seed) as u32;
        (hash, self.world.placement().home_of_name(name))
    }

    /// The partition of a topic.
    pub(crate) fn partition_of(&self, name: &[u8]) -> PartitionId {
        self.world.placement().partition_of(name)
    }

    /// Whether clients are being moved off this server.
    pub(crate) fn drains(&self) -> bool {
        self.drains
    }
}
