//! The world of one run: shards that take turns, clients, the clock. It does what the steps say and
//! looks at the limits after every turn.

use std::net::IpAddr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::{Input, Link, Now, Shard, ShardId};

use crate::client::publisher::Publisher;
use crate::client::subscriber::{KINDS, Subscriber};
use crate::limits;
use crate::met::Met;
use crate::net::Net;
use crate::plan::{Op, Plan, Step};
use crate::rng::Rng;
use crate::truth::{Topic, Truth, Wrong};

/// Unix seconds in which every world begins.
const EPOCH_S: u32 = 1_700_000_000;
/// The life of the logs; any number does.
const LOG_EPOCH: u32 = 0x5EED;
/// Bytes that a shard reads from a socket at once.
const RECEIVE_BYTES: usize = 2048;
/// A client does not send its next requests before so many answers came.
const PENDING_MAX: usize = 12;

/// The world.
pub struct World {
    /// What its seed means.
    pub plan: Plan,
    /// The shards.
    pub shards: Vec<Shard>,
    /// The network.
    pub net: Net,
    /// What the harness knows.
    pub truth: Truth,
    /// What it met.
    pub met: Met,
    /// The subscribers.
    pub subscribers: Vec<Subscriber>,
    /// The publishers.
    pub publishers: Vec<Publisher>,
    /// Links of each shard that are not closed.
    live: Vec<Vec<u32>>,
    /// What the shards share.
    pub shared: Arc<crore_broker::World>,
    ticked_s: Vec<u32>,
    busy: Vec<bool>,
}

impl World {
    /// The world of this plan; `dice` makes the clients.
    pub fn new(plan: &Plan, dice: u64, traced: bool) -> World {
        let mut rng = Rng::new(dice);
        let rules = Rules::new(&plan.settings.rules);
        let topic = |name: &String| Topic {
            rule: rules.get(rules.number_for(name.as_bytes())).clone(),
            name: name.clone(),
            deletes: Vec::new(),
            by_offset: Default::default(),
            by_key: Default::default(),
        };
        let truth = Truth {
            messages: Vec::new(),
            topics: plan.topics.iter().map(topic).collect(),
            step: 0,
            now_s: 1,
            rest: None,
            budgets_are_wide: plan.budgets_are_wide,
            trace: traced.then(Vec::new),
        };
        let world = Arc::new(crore_broker::World {
            settings: plan.settings.clone(),
            rules,
            shards: plan.shards as ShardId,
            homes: plan.homes as ShardId,
            epoch: LOG_EPOCH,
            seed: dice,
            admission: Admission::new(&plan.settings, dice),
        });
        let now = now(1);
        let shard = |n: usize| {
            let mut shard = Shard::new(n as ShardId, world.clone(), now);
            shard.set_pace(plan.pace);
            shard
        };
        let subscribers = (0..plan.subscribers)
            .map(|_| Self::subscriber(&truth, &mut rng))
            .collect();
        // The first is the one that the end of a run publishes with.
        let publishers = (0..plan.publishers)
            .map(|n| match rng.below(10) {
                0..4 if n > 0 => Publisher::over_socket(rng.below(plan.topics.len())),
                0..7 => Publisher::careful(),
                _ => Publisher::default(),
            })
            .collect();
        World {
            shards: (0..plan.shards).map(shard).collect(),
            net: Net::new(plan.shards, plan.tear_percent),
            truth,
            met: Met::default(),
            subscribers,
            publishers,
            live: vec![Vec::new(); plan.shards],
            ticked_s: vec![0; plan.shards],
            busy: vec![false; plan.shards],
            plan: plan.clone(),
            shared: world,
        }
    }

    fn subscriber(truth: &Truth, rng: &mut Rng) -> Subscriber {
        let mut topics: Vec<usize> = (0..truth.topics.len()).collect();
        rng.shuffle(&mut topics);
        let several = rng.chance(25);
        topics.truncate(if several { rng.range(1, 3) } else { 1 });
        Subscriber::new(rng.pick(&KINDS), &topics, rng.chance(30), truth)
    }

    /// Does one step.
    pub fn step(&mut self, step: Step) -> Result<(), Wrong> {
        self.truth.step += 1;
        let mut rng = Rng::new(step.dice);
        let rng = &mut rng;
        match step.op {
            Op::Turn(shard) => self.turn(usize::from(shard), false, rng),
            Op::Clock(seconds) => {
                self.truth.now_s += u32::from(seconds);
                Ok(())
            }
            Op::Ask(n) => {
                self.ask(usize::from(n), rng);
                Ok(())
            }
            Op::Read(n) => self.read(usize::from(n), rng.pick(&[1, 20, 300, usize::MAX])),
            Op::Cut(n) => {
                if let Some(link) = self.subscribers[usize::from(n)].link
                    && self.cut(link, rng)
                {
                    self.subscribers[usize::from(n)].ended();
                }
                Ok(())
            }
            Op::Window(n) => {
                if let Some(link) = self.subscribers[usize::from(n)].link {
                    self.net.sockets[link as usize].window = rng.pick(&self.plan.windows);
                }
                Ok(())
            }
            Op::Publish(n, deed) => {
                let publisher = self.ready_publisher(usize::from(n), rng);
                if self.publishers[publisher].waiting() < PENDING_MAX {
                    let publisher = &mut self.publishers[publisher];
                    publisher.act(deed, &self.plan, &mut self.truth, rng);
                }
                self.send_of_publisher(usize::from(n));
                Ok(())
            }
            Op::ReadAnswer(n) => {
                self.read_answer(usize::from(n), rng.pick(&[1, 20, 300, usize::MAX]))
            }
            Op::CutPublisher(n) => {
                if let Some(link) = self.publishers[usize::from(n)].link {
                    self.cut(link, rng);
                    self.hang_up(link);
                    self.publishers[usize::from(n)].ended();
                }
                Ok(())
            }
        }
    }

    fn connect(&mut self, rng: &mut Rng) -> u32 {
        let shard = rng.below(self.plan.shards);
        let window = rng.pick(&self.plan.windows);
        let link = self.net.connect(shard as ShardId, window);
        self.live[shard].push(link);
        link
    }

    /// A subscriber connects, or sends its next request.
    pub fn ask(&mut self, n: usize, rng: &mut Rng) {
        if !self.subscribers[n].is_idle() {
            return;
        }
        match self.subscribers[n].link {
            Some(link) if self.net.sockets[link as usize].client_fin => return,
            Some(_) => self.subscribers[n].request(&mut self.truth, rng),
            None => {
                let link = self.connect(rng);
                self.subscribers[n].connect(link, &mut self.truth, rng);
            }
        }
        self.send_of_subscriber(n);
    }

    fn send_of_subscriber(&mut self, n: usize) {
        let subscriber = &mut self.subscribers[n];
        if let Some(link) = subscriber.link {
            send(&mut self.net, link, &mut subscriber.out);
        }
    }

    fn send_of_publisher(&mut self, n: usize) {
        let publisher = &mut self.publishers[n];
        if let Some(link) = publisher.link {
            send(&mut self.net, link, &mut publisher.out);
        }
    }

    /// A publisher with a connection.
    pub fn ready_publisher(&mut self, n: usize, rng: &mut Rng) -> usize {
        if self.publishers[n].link.is_none() {
            let link = self.connect(rng);
            self.publishers[n].connect(link, &self.truth);
            if rng.chance(80) {
                self.publishers[n].retry(&mut self.truth, rng, &mut self.met);
            }
        }
        n
    }

    /// A subscriber reads at most so many bytes.
    pub fn read(&mut self, n: usize, bytes_max: usize) -> Result<(), Wrong> {
        let Some(link) = self.subscribers[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let subscriber = &mut self.subscribers[n];
        subscriber.read(&bytes, end, &mut self.truth, &mut self.met)?;
        if subscriber.closes || end {
            subscriber.ended();
            self.hang_up(link);
            return Ok(());
        }
        self.send_of_subscriber(n);
        Ok(())
    }

    /// A publisher reads at most so many bytes.
    pub fn read_answer(&mut self, n: usize, bytes_max: usize) -> Result<(), Wrong> {
        let Some(link) = self.publishers[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let publisher = &mut self.publishers[n];
        publisher.read(&bytes, &mut self.truth, &mut self.met)?;
        if publisher.closes || end {
            publisher.ended();
            self.hang_up(link);
            return Ok(());
        }
        self.send_of_publisher(n);
        Ok(())
    }

    /// The client closes its end.
    pub fn hang_up(&mut self, link: u32) {
        let socket = &mut self.net.sockets[link as usize];
        (socket.client_fin, socket.client_gone) = (true, true);
        socket.to_client.clear();
    }

    /// Something happens to a connection; true when the client has lost it.
    fn cut(&mut self, link: u32, rng: &mut Rng) -> bool {
        self.met.cuts += 1;
        let socket = &mut self.net.sockets[link as usize];
        let lost = rng.below(socket.to_server.len() + 1);
        let how = rng.below(3);
        self.truth.note(|| {
            format!(
                "link {link} is cut, {}",
                ["reset", "closed", "half closed"][how]
            )
        });
        match how {
            0 => {
                socket.reset = true;
                socket.to_server.clear();
                socket.to_client.clear();
                true
            }
            1 => {
                socket.to_server.truncate(lost);
                self.hang_up(link);
                true
            }
            _ => {
                socket.client_fin = true;
                false
            }
        }
    }

    /// Whether something waits for this shard that it would be woken for.
    pub fn has_work(&self, shard: usize) -> bool {
        self.busy[shard]
            || self.net.has_mail(shard)
            || self.shards[shard].tick_in_ms().is_some()
            || self.ticked_s[shard] != self.truth.now_s
            || self.live[shard].iter().any(|link| {
                let socket = &self.net.sockets[*link as usize];
                let (read, write, hangup) = socket.readiness();
                !socket.accepted || read || write || hangup
            })
    }

    /// One turn of a shard: `whole` takes all that waits, else some of it.
    pub fn turn(&mut self, shard: usize, whole: bool, rng: &mut Rng) -> Result<(), Wrong> {
        self.net.turn_of = shard as ShardId;
        self.net.rng = Rng::new(rng.next());
        let now = now(self.truth.now_s);
        self.tick(shard, now);
        let sockets = &self.net.sockets;
        self.live[shard].retain(|link| !sockets[*link as usize].server_closed);
        let mut links = self.live[shard].clone();
        rng.shuffle(&mut links);
        for link in links {
            if whole || rng.chance(70) {
                self.event(shard, link, whole, now, rng);
            }
        }
        let mut from: Vec<usize> = (0..self.plan.shards).collect();
        rng.shuffle(&mut from);
        for from in from {
            while !self.net.mails(from, shard).is_empty()
                && (whole || rng.chance(self.plan.mail_percent))
            {
                let mail = self.net.mails(from, shard).pop_front();
                let mail = mail.expect("it was just seen");
                self.shards[shard].handle(Input::Mail(mail), now, &mut self.net);
            }
        }
        self.busy[shard] = self.shards[shard].flush(now, &mut self.net);
        self.met.cursors += u64::from(self.busy[shard]);
        limits::check(self, shard)
    }

    /// A sweep begins as a second does, and is over before the next; each turn is one step of it.
    fn tick(&mut self, shard: usize, now: Now) {
        let (state, begins) = (
            &mut self.shards[shard],
            self.ticked_s[shard] != self.truth.now_s,
        );
        while begins && state.tick_in_ms().is_some() {
            state.handle(Input::Tick, now, &mut self.net);
        }
        if begins || state.tick_in_ms().is_some() {
            self.ticked_s[shard] = self.truth.now_s;
            state.handle(Input::Tick, now, &mut self.net);
        }
    }

    /// What a poller says of one socket, and what the loop does then.
    fn event(&mut self, shard: usize, link: u32, whole: bool, now: Now, rng: &mut Rng) {
        let (net, shard) = (&mut self.net, &mut self.shards[shard]);
        let socket = &mut net.sockets[link as usize];
        if !socket.accepted {
            socket.accepted = true;
            let from = IpAddr::from([127, 0, 0, 1 + (link % 3) as u8]);
            shard.handle(Input::Accepted(Link(link), from), now, net);
            return;
        }
        let (readable, writable, hangup) = socket.readiness();
        let Some(conn) = socket.conn else { return };
        if writable {
            shard.handle(Input::Writable(conn), now, net);
        }
        if !(readable || hangup) || shard.link_of(conn).is_none() {
            return;
        }
        if !readable {
            shard.handle(Input::Closed(conn), now, net);
            return;
        }
        let socket = &mut net.sockets[link as usize];
        if socket.reset {
            shard.handle(Input::Closed(conn), now, net);
        } else if socket.to_server.is_empty() {
            shard.handle(Input::End(conn), now, net);
        } else {
            let waiting = socket.to_server.len();
            let most = if whole {
                RECEIVE_BYTES
            } else {
                rng.range(1, RECEIVE_BYTES)
            };
            let len = waiting.min(most);
            let mut bytes: Vec<u8> = socket.to_server.drain(..len).collect();
            shard.handle(Input::Received(conn, &mut bytes), now, net);
        }
    }

    /// Sends what a publisher has written.
    pub fn send(&mut self, publisher: usize) {
        self.send_of_publisher(publisher);
    }

    /// Whether a client would read something from this link, bytes or its end.
    pub fn has_bytes(&self, link: Option<u32>) -> bool {
        link.is_some_and(|link| {
            let socket = &self.net.sockets[link as usize];
            !socket.to_client.is_empty() || socket.server_fin || socket.reset
        })
    }

    /// Subscribers and publishers.
    pub fn clients(&self) -> usize {
        self.subscribers.len() + self.publishers.len()
    }

    /// Whether both ends of this link are open.
    pub fn is_whole(&self, link: u32) -> bool {
        let socket = &self.net.sockets[link as usize];
        !(socket.client_fin || socket.server_fin || socket.reset)
    }

    /// All clients go.
    pub fn leave(&mut self) {
        for link in 0..self.net.sockets.len() as u32 {
            // Who had closed half before cannot say more: the system's keep-alive ends such a link.
            let socket = &mut self.net.sockets[link as usize];
            socket.reset |= socket.client_fin;
            self.hang_up(link);
        }
        self.subscribers.iter_mut().for_each(Subscriber::ended);
        self.publishers.iter_mut().for_each(Publisher::ended);
    }
}

fn send(net: &mut Net, link: u32, out: &mut Vec<u8>) {
    let socket = &mut net.sockets[link as usize];
    if !(socket.client_fin || socket.server_closed || socket.reset) {
        socket.to_server.extend(out.iter());
    }
    out.clear();
}

/// Bytes for a client, and whether nothing follows them.
fn take(net: &mut Net, link: u32, bytes_max: usize) -> (Vec<u8>, bool) {
    let socket = &mut net.sockets[link as usize];
    let len = bytes_max.min(socket.to_client.len());
    let bytes = socket.to_client.drain(..len).collect();
    let over = socket.server_fin || socket.server_closed || socket.reset;
    (bytes, over && socket.to_client.is_empty())
}

fn now(s: u32) -> Now {
    Now {
        s,
        unix_s: EPOCH_S + s,
    }
}
