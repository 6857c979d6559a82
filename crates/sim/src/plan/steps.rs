//! Draws the list of steps of a seed.

use crore_rng::Rng;

use super::{BATCH_LINES_MAX, MqttAction, Op, Plan, PublisherAction, Step};

/// Percentage of a follower's steps, in worlds with followers.
const FOLLOWERS_STEPS_PERCENT: u32 = 12;
/// Percentage of an MQTT client's steps, in worlds with MQTT clients.
const PACKETS_STEPS_PERCENT: u32 = 40;
/// Percentage of its turns that the lazy shard gives to another one.
const LAZY_PERCENT: u32 = 95;

impl Plan {
    /// The first `count` steps of this seed.
    pub fn steps(&self, seed: u64, count: usize) -> Vec<Step> {
        let mut rng = Rng::new(seed);
        let mut own = Rng::new(seed ^ 0xF011_0135);
        let mut packets = Rng::new(seed ^ 0x3477_0311);
        let step = |_| {
            let mut step = self.step(&mut rng);
            if self.followers > 0 && own.chance(FOLLOWERS_STEPS_PERCENT) {
                let follower = own.below(self.followers) as u8;
                step.op = match own.below(10) {
                    0..3 => Op::Follow(follower),
                    3..9 => Op::ReadNews(follower),
                    _ => Op::CutFollower(follower),
                };
            }
            if self.mqtt_clients > 0 && packets.chance(PACKETS_STEPS_PERCENT) {
                let client = packets.below(self.mqtt_clients) as u8;
                step.op = Op::Mqtt(client, mqtt_action(&mut packets));
            }
            step
        };
        (0..count).map(step).collect()
    }

    fn step(&self, rng: &mut Rng) -> Step {
        let sum: u32 = self.weights.iter().sum();
        let mut at = rng.below(sum as usize) as u32;
        let kind = self.weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let subscriber = rng.below(self.subscribers) as u8;
        let publisher = rng.below(self.publishers) as u8;
        let op = match kind.expect("the weights are summed") {
            0 => {
                let shard = rng.below(self.shards);
                let skips = self.lazy == Some(shard) && rng.chance(LAZY_PERCENT);
                Op::Turn(if skips { rng.below(self.shards) } else { shard } as u8)
            }
            1 => Op::Clock(rng.pick(&[1, 1, 1, 1, 2, 5, 25])),
            2 => Op::Ask(subscriber),
            3 => Op::Read(subscriber),
            4 => Op::Cut(subscriber),
            5 => Op::Window(subscriber),
            6 => Op::Publish(publisher, action(rng)),
            7 => Op::ReadAnswer(publisher),
            _ => Op::CutPublisher(publisher),
        };
        Step {
            op,
            dice: rng.draw(),
        }
    }
}

fn mqtt_action(rng: &mut Rng) -> MqttAction {
    match rng.below(100) {
        0..12 => MqttAction::Connect,
        12..15 => MqttAction::TakeOver,
        15..45 => MqttAction::Read,
        45..60 => MqttAction::Acknowledge,
        60..68 => MqttAction::Change,
        68..88 => MqttAction::Publish(rng.pick(&[1, 1, 3])),
        88..92 => MqttAction::Ping,
        92..94 => MqttAction::Leave,
        94..97 => MqttAction::Cut,
        _ => MqttAction::Window,
    }
}

fn action(rng: &mut Rng) -> PublisherAction {
    match rng.below(100) {
        0..50 => PublisherAction::Pipeline(1),
        50..75 => PublisherAction::Pipeline(rng.range(2, 6) as u8),
        75..92 => PublisherAction::Batch(rng.range(1, BATCH_LINES_MAX) as u8),
        92..95 => PublisherAction::Delete,
        95..98 => PublisherAction::Create,
        _ => PublisherAction::Info,
    }
}
