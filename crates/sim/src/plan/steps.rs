//! Draws the list of steps of a seed.

use crore_rng::Rng;

use super::{BATCH_LINES_MAX, CentrifugoAction, MqttAction, Op, Plan, PublisherAction, Step};

/// Percentage of steps that are steps of a follower, in plans with followers.
const FOLLOWER_STEPS_PERCENT: u32 = 12;
/// Percentage of steps that are steps of an MQTT client, in plans with MQTT clients.
const MQTT_STEPS_PERCENT: u32 = 40;
/// Percentage of steps that are steps of a client of Centrifugo's protocol, in plans with such clients.
const CENTRIFUGO_STEPS_PERCENT: u32 = 35;
/// Percentage of the starved shard's turns (rounds of its loop) that another shard gets.
const STARVED_PERCENT: u32 = 95;

impl Plan {
    /// The first `count` steps of this seed.
    pub fn steps(&self, seed: u64, count: usize) -> Vec<Step> {
        let mut rng = Rng::new(seed);
        let mut follower_rng = Rng::new(seed ^ 0xF011_0135);
        let mut mqtt_rng = Rng::new(seed ^ 0x3477_0311);
        let mut centrifugo_rng = Rng::new(seed ^ 0xCE27_0311);
        let step = |_| {
            let mut step = self.step(&mut rng);
            if self.followers > 0 && follower_rng.chance(FOLLOWER_STEPS_PERCENT) {
                let follower = follower_rng.below(self.followers) as u8;
                step.op = match follower_rng.below(10) {
                    0..3 => Op::Follow(follower),
                    3..9 => Op::ReadFollower(follower),
                    _ => Op::CutFollower(follower),
                };
            }
            if self.mqtt_clients > 0 && mqtt_rng.chance(MQTT_STEPS_PERCENT) {
                let client = mqtt_rng.below(self.mqtt_clients) as u8;
                step.op = Op::Mqtt(
                    client,
                    match self.settings.mqtt.durable_sessions {
                        true => action_of_lasting_client(&mut mqtt_rng),
                        false => mqtt_action(&mut mqtt_rng),
                    },
                );
            }
            if self.centrifugo_clients > 0 && centrifugo_rng.chance(CENTRIFUGO_STEPS_PERCENT) {
                let client = centrifugo_rng.below(self.centrifugo_clients) as u8;
                step.op = Op::Centrifugo(client, centrifugo_action(&mut centrifugo_rng));
            }
            step
        };
        (0..count).map(step).collect()
    }

    fn step(&self, rng: &mut Rng) -> Step {
        let sum: u32 = self.weights.iter().sum();
        let mut point = rng.below(sum as usize) as u32;
        let kind = self.weights.iter().position(|weight| {
            let is_here = point < *weight;
            point = point.saturating_sub(*weight);
            is_here
        });
        let subscriber = rng.below(self.subscribers) as u8;
        let publisher = rng.below(self.publishers) as u8;
        let op = match kind.expect("the weights are summed") {
            0 => {
                let shard = rng.below(self.shards);
                let skips = self.starved_shard == Some(shard) && rng.chance(STARVED_PERCENT);
                Op::Turn(if skips { rng.below(self.shards) } else { shard } as u8)
            }
            1 => Op::Clock(rng.pick(&[1, 1, 1, 1, 2, 5, 25])),
            2 => Op::Request(subscriber),
            3 => Op::ReadSubscriber(subscriber),
            4 => Op::CutSubscriber(subscriber),
            5 => Op::ResizeWindow(subscriber),
            6 => Op::Publish(publisher, publisher_action(rng)),
            7 => Op::ReadPublisher(publisher),
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
        60..68 => MqttAction::ChangeSubscriptions,
        68..88 => MqttAction::Publish(rng.pick(&[1, 1, 3])),
        88..92 => MqttAction::Ping,
        92..94 => MqttAction::Leave,
        94..97 => MqttAction::Cut,
        _ => MqttAction::ResizeWindow,
    }
}

fn centrifugo_action(rng: &mut Rng) -> CentrifugoAction {
    match rng.below(100) {
        0..15 => CentrifugoAction::Connect,
        15..65 => CentrifugoAction::Read,
        65..85 => CentrifugoAction::ChangeSubscription,
        85..91 => CentrifugoAction::SubscribeMissing,
        91..96 => CentrifugoAction::Cut,
        _ => CentrifugoAction::ResizeWindow,
    }
}

/// An action of a client whose connections last, so that a crash finds it connected.
fn action_of_lasting_client(rng: &mut Rng) -> MqttAction {
    match rng.below(100) {
        0..10 => MqttAction::Connect,
        10..11 => MqttAction::TakeOver,
        11..36 => MqttAction::Read,
        36..50 => MqttAction::Acknowledge,
        50..60 => MqttAction::ChangeSubscriptions,
        60..94 => MqttAction::Publish(rng.pick(&[1, 1, 3])),
        94..96 => MqttAction::Ping,
        96..97 => MqttAction::Leave,
        97..98 => MqttAction::Cut,
        _ => MqttAction::ResizeWindow,
    }
}

fn publisher_action(rng: &mut Rng) -> PublisherAction {
    match rng.below(100) {
        0..50 => PublisherAction::Pipeline(1),
        50..75 => PublisherAction::Pipeline(rng.range(2, 6) as u8),
        75..92 => PublisherAction::Batch(rng.range(1, BATCH_LINES_MAX) as u8),
        92..95 => PublisherAction::Delete,
        95..98 => PublisherAction::Create,
        _ => PublisherAction::Info,
    }
}
