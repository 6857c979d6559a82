//! The clients of a run, by kind. Each kind that was added later has its own random generator, so that its draws do not change the clients
//! of the earlier kinds.

use crore_rng::Rng;

use crate::client::centrifugo::CentrifugoClient;
use crate::client::follower::Follower;
use crate::client::mqtt::Client;
use crate::client::publisher::Publisher;
use crate::client::subscriber::{Subscriber, TRANSPORTS};
use crate::plan::Plan;
use crate::truth::Truth;

/// The clients.
pub struct Clients {
    /// Subscribers over HTTP and WebSocket.
    pub subscribers: Vec<Subscriber>,
    /// Publishers over HTTP and WebSocket.
    pub publishers: Vec<Publisher>,
    /// The followers, which watch the topics that have subscribers.
    pub followers: Vec<Follower>,
    /// The clients of Centrifugo's protocol.
    pub centrifugo: Vec<CentrifugoClient>,
    /// The MQTT clients.
    pub mqtt: Vec<Client>,
}

impl Clients {
    /// Handles the end of the connections of all clients over HTTP and WebSocket.
    pub fn http_connections_ended(&mut self) {
        self.subscribers
            .iter_mut()
            .for_each(Subscriber::connection_ended);
        self.publishers
            .iter_mut()
            .for_each(Publisher::connection_ended);
        self.centrifugo
            .iter_mut()
            .for_each(CentrifugoClient::connection_ended);
    }

    /// The clients of this plan. Their random properties are drawn from `seed`.
    pub fn new(plan: &Plan, truth: &Truth, seed: u64) -> Clients {
        let mut rng = Rng::new(seed);
        let mut subscribers: Vec<Subscriber> = (0..plan.subscribers)
            .map(|_| subscriber(truth, &mut rng))
            .map(|subscriber| match plan.envelopes {
                true => subscriber.with_envelopes(),
                false => subscriber,
            })
            .collect();
        filter(&mut subscribers, plan, truth, seed);
        // The first publisher uses HTTP, since the end of a run needs such a publisher.
        let publishers = (0..plan.publishers)
            .map(|n| match rng.below(10) {
                0..4 if n > 0 => Publisher::over_websocket(rng.below(plan.topics.len())),
                0..7 => Publisher::idempotent(),
                _ => Publisher::default(),
            })
            .collect();
        Clients {
            subscribers,
            publishers,
            followers: followers(plan, seed),
            centrifugo: centrifugo_clients(plan, seed),
            mqtt: mqtt_clients(plan, seed),
        }
    }

    /// The number of all clients.
    pub fn count(&self) -> usize {
        // A client of Centrifugo's protocol has a request of its own for each topic.
        let centrifugo = self.centrifugo.iter().map(|it| 1 + it.topics_count());
        self.subscribers.len()
            + self.publishers.len()
            + self.followers.len()
            + self.mqtt.len()
            + centrifugo.sum::<usize>()
    }
}

fn subscriber(truth: &Truth, rng: &mut Rng) -> Subscriber {
    let mut topics: Vec<usize> = (0..truth.topics.len()).collect();
    rng.shuffle(&mut topics);
    let several = rng.chance(25);
    topics.truncate(if several { rng.range(1, 3) } else { 1 });
    Subscriber::new(rng.pick(&TRANSPORTS), &topics, rng.chance(30))
}

/// Makes some subscribers subscribe by filter.
fn filter(subscribers: &mut [Subscriber], plan: &Plan, truth: &Truth, seed: u64) {
    let mut rng = Rng::new(seed ^ 0xF117_E250);
    for subscriber in subscribers {
        if !rng.chance(plan.filtered_percent) {
            continue;
        }
        let filters = ["#", "+/+", "+/1", "a/#", "b/+", "a/1", "+/7", "x/+"];
        let filters: Vec<String> = (0..rng.range(1, 3))
            .map(|_| rng.pick(&filters).to_string())
            .collect();
        subscriber.subscribe_by_filter(filters, plan.partitions, truth);
    }
}

fn followers(plan: &Plan, seed: u64) -> Vec<Follower> {
    let mut rng = Rng::new(seed ^ 0xF011_0135);
    let mut filter = || match rng.below(4) {
        0 => "#".to_string(),
        1 => format!("{}/#", rng.pick(&["a", "b", "c"])),
        2 => "+/1".to_string(),
        _ => plan.topics[rng.below(plan.topics.len())].clone(),
    };
    (0..plan.followers)
        .map(|n| Follower::new(filter(), n % 2 == 1))
        .collect()
}

fn centrifugo_clients(plan: &Plan, seed: u64) -> Vec<CentrifugoClient> {
    let mut rng = Rng::new(seed ^ 0xCE27_4511);
    (0..plan.centrifugo_clients)
        .map(|_| {
            // Two topics of a plan may have one name.
            let mut topics: Vec<usize> = (0..plan.topics.len()).collect();
            rng.shuffle(&mut topics);
            topics.truncate(rng.range(1, 4));
            topics.sort_by_key(|topic| &plan.topics[*topic]);
            topics.dedup_by_key(|topic| &plan.topics[*topic]);
            CentrifugoClient::new(&topics)
        })
        .collect()
}

fn mqtt_clients(plan: &Plan, seed: u64) -> Vec<Client> {
    let mut rng = Rng::new(seed ^ 0x3477_0311);
    let mut wildcard_rng = Rng::new(seed ^ 0xC07E_4511);
    (0..plan.mqtt_clients)
        .map(|n| {
            let client = Client::new(n, plan, &mut rng);
            match wildcard_rng.chance(plan.wildcard_percent) {
                true => client.with_wildcard(),
                false => client,
            }
        })
        .collect()
}
