//! Runs one seed in a simulated world (servers, network, clients, log and clock) and checks the results. A run has three phases: the steps,
//! with faults; a phase without faults; and a phase without clients.
//!
//! A *page* is a bounded run of past messages.

use std::cell::{Cell, RefCell};

use crore_broker::Closed;
use crore_rng::Rng;

use crate::client::mqtt::Client;
use crate::coverage::Coverage;
use crate::log_replay;
use crate::plan::{Plan, Step};
use crate::simulation::{Simulation, limits};
use crate::truth::{MessageSpec, Topic, Violation};

/// The maximum number of rounds until a world without faults is idle. With turns of one visit and pages of one message, thousands are
/// needed.
const ROUNDS_MAX: usize = 20_000;
/// The maximum number of consecutive rounds in which shards wait for credit and nothing else happens. After more rounds, the run fails.
const CREDIT_ROUNDS_MAX: usize = 3;
/// The maximum number of attempts of a refused client to connect or subscribe in the phase without faults.
const ATTEMPTS_MAX: usize = 15;
/// Number of messages that are published to every topic after the steps. All subscribers must receive the last one.
const FINAL_MESSAGES: usize = 2;
/// A number of seconds after which every deadline of a connection has passed. This time passes several times after all clients have left.
const DEADLINES_S: u32 = 100;
/// Seconds within which the other nodes of a cluster declare all lost nodes dead, one after the other.
const DEATHS_S: u32 = 30;
/// Seconds that pass before each of the last ticks of a run, in which the server forgets what has expired.
const FORGET_S: u32 = 10_000;
/// Number of attempts to delete the topics with `keep = "latest"` at the end.
const DELETES: u32 = 3;
/// The number of the last ticks, each `FORGET_S` after the one before. After these ticks, a shard has forgotten everything.
const FORGET_TICKS: usize = 12;

/// A failed run.
#[derive(Debug)]
pub struct Failure {
    /// The broken invariant.
    pub what: Violation,
    /// The number of steps before the failure.
    pub step: usize,
    /// The events before the failure, if the run was traced.
    pub trace: Vec<String>,
}

/// Runs `steps` in the world of `plan`, and returns the counts of the events that happened.
pub fn run(plan: &Plan, seed: u64, steps: &[Step], traced: bool) -> Result<Coverage, Failure> {
    TRACED.set(traced);
    let mut sim = Simulation::new(plan, seed, traced);
    let outcome = catch_panic(|| run_to_end(&mut sim, seed, steps));
    match outcome {
        Ok(()) => {
            for shard in &sim.shards {
                sim.coverage.stats += shard.stats();
            }
            sim.coverage += sim.net.coverage;
            if let Some(engine) = &sim.net.engine {
                sim.coverage += engine.coverage;
            }
            Ok(sim.coverage)
        }
        Err(what) => Err(Failure {
            what,
            step: sim.truth.step as usize,
            trace: sim.truth.trace.take().unwrap_or_default(),
        }),
    }
}

thread_local! {
    static TRACED: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes each panic a failure of the run in which it happens. The text of the panic is kept for the report and not printed. Called once per
/// process.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        let mut text = info.to_string();
        if TRACED.get() {
            let frames = std::backtrace::Backtrace::force_capture().to_string();
            let ours = frames
                .lines()
                .filter(|line| line.contains("crates/broker/src"));
            ours.for_each(|line| text.extend(["\n", line]));
        }
        PANIC.with(|place| *place.borrow_mut() = text);
    }));
}

/// Runs `steps` and returns the events, one per line, and then the failure, if there is one.
pub fn trace(plan: &Plan, seed: u64, steps: &[Step]) -> Vec<String> {
    let mut sim = Simulation::new(plan, seed, true);
    let outcome = catch_panic(|| run_to_end(&mut sim, seed, steps));
    let mut lines = sim.truth.trace.take().unwrap_or_default();
    lines.extend(outcome.err());
    lines
}

/// Turns a panic of the broker into a failure.
fn catch_panic(f: impl FnOnce() -> Result<(), Violation>) -> Result<(), Violation> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f))
        .unwrap_or_else(|_| Err(PANIC.with(|place| place.borrow().clone())))
}

fn run_to_end(sim: &mut Simulation, seed: u64, steps: &[Step]) -> Result<(), Violation> {
    let step_at = |thousandths: &usize| thousandths * steps.len() / 1000;
    let restart = sim.plan.restarts_at.as_ref().map(step_at);
    let crashes: Vec<usize> = sim.plan.crashes_at.iter().map(step_at).collect();
    let node_events: Vec<usize> = sim.plan.node_events_at.iter().map(step_at).collect();
    let purges: Vec<usize> = sim.plan.purges_at.iter().map(step_at).collect();
    let compactions: Vec<usize> = sim.plan.compactions_at.iter().map(step_at).collect();
    sim.write_base(&mut Rng::new(seed ^ 0xF125_7BA5));
    sim.preload(&mut Rng::new(seed ^ 0x40A2D))?;
    for (n, step) in steps.iter().enumerate() {
        if restart == Some(n) {
            sim.restart(&mut Rng::new(seed ^ 0x7E57_A127))?;
        }
        let rng_of_step = |salt: u64| Rng::new(seed ^ salt ^ (n as u64) << 32);
        if compactions.contains(&n) {
            sim.compact_log(&mut rng_of_step(0xC4EC_4901))?;
        }
        if crashes.contains(&n) {
            sim.crash(&mut rng_of_step(0xC4A5_4ED0))?;
        }
        if purges.contains(&n) {
            sim.purge(&mut rng_of_step(0x9026_E001))?;
        }
        if node_events.contains(&n) {
            sim.node_event(&mut rng_of_step(0x0DE5_0001))?;
        }
        sim.step(*step)?;
        if n % (steps.len() / 3 + 1) == steps.len() / 4 {
            sim.make_checkpoint()?;
        }
    }
    let mut rng = Rng::new(seed ^ 0xCA1A);
    run_without_faults(sim, &mut rng)?;
    sim.truth.check_order()?;
    check_log_replay(sim)?;
    sim.check_digests()?;
    sim.check_checkpoints()?;
    let unplaced = sim.truth.unplaced();
    for subscriber in &sim.clients.subscribers {
        subscriber.check(&sim.truth, &unplaced)?;
    }
    for client in &sim.clients.centrifugo {
        client.check(&sim.truth, &unplaced)?;
    }
    for client in &sim.clients.mqtt {
        client.check(&sim.truth)?;
    }
    leave_and_check(sim, &mut rng)
}

/// Checks that another server comes to the same state (the same digest) when it replays the log that the homes have written. Does nothing
/// in worlds in which the two states may differ.
fn check_log_replay(sim: &mut Simulation) -> Result<(), Violation> {
    // If a home has forgotten a topic, a replay still has the topic, because the log does not record that it was forgotten.
    let rules = sim.plan.settings.rules.iter();
    let forgets = rules.map(|rule| rule.position_age_s).min() < Some(sim.truth.now_s);
    let Some(engine) = &sim.net.engine else {
        return Ok(());
    };
    let all_durable = sim.truth.allowed.non_durable_filters.is_empty();
    let is_whole = sim.has_whole_log();
    if forgets || !all_durable || !is_whole || !sim.plan.budgets_are_wide {
        return Ok(());
    }
    let shards = sim.shards.iter();
    let digest = shards.fold(0, |digest, shard| digest ^ shard.digest());
    sim.coverage.log_replays += 1;
    match log_replay::digest(&sim.server, &engine.log)? == digest {
        true => Ok(()),
        false => Err("another server that folds the log comes to another state".into()),
    }
}

/// The phase without faults: every client reads and resumes, and every subscriber must receive the newest message. The clock stands still
/// until nothing is left to do. Otherwise a tick could hide that a shard was not woken up.
fn run_without_faults(sim: &mut Simulation, rng: &mut Rng) -> Result<(), Violation> {
    sim.truth.note(|| "calm".into());
    sim.net.partial_send_percent = 0;
    sim.net.calm_tcp();
    sim.heal();
    sim.settle_engine(rng)?;
    if sim.plan.nodes > 1 {
        // The other nodes declare lost nodes dead, and take over the work of these.
        for _ in 0..DEATHS_S {
            sim.truth.now_s += 1;
            run_until_idle(sim, rng)?;
        }
    }
    read_all_sent(sim, rng)?;
    if sim.plan.stalled_s > 0 {
        sim.truth.now_s += sim.plan.stalled_s;
        sim.truth.allowed.stalled_messages_max = Some(sim.plan.turn_limits.page_messages);
        run_until_idle(sim, rng)?;
    }
    sim.plan.windows = vec![1 << 24];
    for socket in &mut sim.net.sockets {
        socket.window = 1 << 24;
    }
    settle(sim, rng)?;
    sim.check_wills()?;
    for _ in 0..FINAL_MESSAGES {
        sim.truth.step += 1;
        for topic in 0..sim.truth.topics.len() {
            let publisher = sim.ready_publisher(0, rng);
            let last = MessageSpec {
                topic,
                len: 4,
                key: 0,
                ttl_s: None,
            };
            sim.clients.publishers[publisher].publish_one(last, &mut sim.truth, rng);
            sim.flush_publisher(publisher);
            settle(sim, rng)?;
        }
    }
    // This check comes first, because it may publish unanswered messages again, and may end connections for lack of room.
    check_interest(sim, rng)?;
    for subscriber in &mut sim.clients.subscribers {
        subscriber.require_newest(&sim.truth);
    }
    for client in &mut sim.clients.centrifugo {
        client.require_newest();
    }
    for client in &mut sim.clients.mqtt {
        client.check_all_received(&sim.truth)?;
    }
    check_retention(sim)
}

/// Checks that homes keep messages for at least as many MQTT subscriptions as need kept messages. The world must be idle.
fn check_retention(sim: &Simulation) -> Result<(), Violation> {
    let is_subscribed = |client: &Client| client.is_connected() && client.is_subscribed();
    if !sim.clients.mqtt.iter().all(is_subscribed) || !sim.truth.allowed.budgets_are_wide {
        return Ok(());
    }
    let homes = u32::from(sim.server.homes);
    let needed: u32 = sim
        .clients
        .mqtt
        .iter()
        .map(|it| it.subscriptions_with_retention(homes))
        .sum();
    let kept: u32 = sim.shards.iter().map(|it| it.accounts().keepers).sum();
    match needed <= kept {
        true => Ok(()),
        false => Err(format!(
            "messages are kept for {kept} subscriptions, and {needed} need them"
        )),
    }
}

/// Checks followers of interest, which are clients that receive the list of topics with subscribers: the list must agree with the number of
/// subscribers in the info of each topic.
fn check_interest(sim: &mut Simulation, rng: &mut Rng) -> Result<(), Violation> {
    if sim.clients.followers.is_empty() {
        return Ok(());
    }
    sim.truth.step += 1;
    let n = sim.ready_publisher(0, rng);
    // The publisher sends unanswered publishes again. Long-polls end and begin meanwhile, so the infos are requested only afterwards.
    sim.flush_publisher(n);
    settle(sim, rng)?;
    let some_retry = sim.clients.subscribers.iter().any(|s| !s.is_established())
        || sim.clients.mqtt.iter().any(|client| !client.is_connected())
        || sim
            .clients
            .centrifugo
            .iter()
            .any(|client| !client.is_established());
    if some_retry || sim.clients.publishers[n].link.is_none() {
        // A refused client tries again while the infos are read, so subscriptions begin and end meanwhile, and nothing can be compared.
        return Ok(());
    }
    for topic in 0..sim.truth.topics.len() {
        sim.clients.publishers[n].request_info(topic, &sim.truth);
    }
    sim.flush_publisher(n);
    settle(sim, rng)?;
    let linger = sim.plan.settings.interest.debounce_s > 0;
    let infos = sim.clients.publishers[n].subscribers.iter();
    // A deleted topic has no info. Its subscribers over MQTT and Centrifugo's protocol stay, so they are counted at the clients. With
    // narrow budgets there may be no room for the topic, so that a resumed session lacks its subscription. Then the topic is not compared.
    let lasting_subscribers = |topic: usize| {
        let (mqtt, centrifugo) = (sim.clients.mqtt.iter(), sim.clients.centrifugo.iter());
        let mqtt = mqtt.filter(|it| it.subscribes_to(topic)).count();
        (mqtt + centrifugo.filter(|it| it.subscribes_to(topic)).count()) as u64
    };
    let known = infos.filter(|(_, count)| count.is_some() || sim.truth.allowed.budgets_are_wide);
    let subscribers: Vec<(String, u64)> = known
        .map(|(topic, count)| {
            let name = sim.truth.topics[*topic].name.clone();
            (name, count.unwrap_or_else(|| lasting_subscribers(*topic)))
        })
        .collect();
    for follower in sim.clients.followers.iter().filter(|f| f.is_synchronized()) {
        follower.check(&subscribers, linger)?;
        sim.coverage.views += 1;
    }
    Ok(())
}

/// Lets the server handle all sent bytes, and lets the clients read all bytes in the sockets. Stalled sockets stay stalled, so the bytes
/// that clients receive later have waited in the server.
fn read_all_sent(sim: &mut Simulation, rng: &mut Rng) -> Result<(), Violation> {
    run_until_idle(sim, rng)?;
    for n in 0..sim.clients.publishers.len() {
        sim.read_publisher(n, usize::MAX)?;
    }
    for n in 0..sim.clients.subscribers.len() {
        sim.read_subscriber(n, usize::MAX)?;
    }
    for n in 0..sim.clients.centrifugo.len() {
        sim.centrifugo_read(n, usize::MAX)?;
    }
    sim.truth.last_stalled_step = Some(sim.truth.step);
    Ok(())
}

/// How often each client has tried to connect or subscribe.
struct Attempts {
    subscribers: Vec<usize>,
    followers: Vec<usize>,
    centrifugo: Vec<usize>,
    mqtt: Vec<usize>,
}

/// Lets all shards and clients work until nothing is left to do, and checks that no client waits for an answer.
fn settle(sim: &mut Simulation, rng: &mut Rng) -> Result<(), Violation> {
    let mut attempts = Attempts {
        subscribers: vec![0; sim.clients.subscribers.len()],
        followers: vec![0; sim.clients.followers.len()],
        centrifugo: vec![0; sim.clients.centrifugo.len()],
        mqtt: vec![0; sim.clients.mqtt.len()],
    };
    let mut credit_rounds = 0;
    for _ in 0..ROUNDS_MAX {
        sim.truth.step += 1;
        let mut progressed = false;
        for shard in 0..sim.shards.len() {
            let has_work = sim.has_work(shard);
            // A real shard that waits for credit also gets a turn every few milliseconds, whatever the other shards do.
            if has_work || sim.shards[shard].is_waiting() {
                sim.turn(shard, true, rng)?;
            }
            progressed |= has_work;
        }
        for (n, attempts) in attempts.subscribers.iter_mut().enumerate() {
            progressed |= sim.has_unread(sim.clients.subscribers[n].link);
            sim.read_subscriber(n, usize::MAX)?;
            if sim.clients.subscribers[n].may_request() && *attempts < ATTEMPTS_MAX {
                *attempts += 1;
                sim.request(n, rng);
                progressed = true;
            }
        }
        for n in 0..sim.clients.publishers.len() {
            progressed |= sim.has_unread(sim.clients.publishers[n].link);
            sim.read_publisher(n, usize::MAX)?;
        }
        for (n, attempts) in attempts.followers.iter_mut().enumerate() {
            progressed |= sim.has_unread(sim.clients.followers[n].link);
            sim.read_follower(n, usize::MAX)?;
            if sim.clients.followers[n].link.is_none() && *attempts < ATTEMPTS_MAX {
                *attempts += 1;
                sim.follow(n, rng);
                progressed = true;
            }
        }
        for (n, attempts) in attempts.centrifugo.iter_mut().enumerate() {
            progressed |= sim.centrifugo_progress(n, attempts, ATTEMPTS_MAX, rng)?;
        }
        for (n, attempts) in attempts.mqtt.iter_mut().enumerate() {
            progressed |= sim.mqtt_progress(n, attempts, ATTEMPTS_MAX, rng)?;
        }
        if progressed || (0..sim.shards.len()).any(|shard| sim.has_work(shard)) {
            credit_rounds = 0;
            continue;
        }
        let waiting = (0..sim.shards.len()).filter(|n| sim.shards[*n].is_waiting());
        let waiting: Vec<usize> = waiting.collect();
        if waiting.is_empty() {
            return check_settled(sim, &attempts);
        }
        credit_rounds += 1;
        if credit_rounds > CREDIT_ROUNDS_MAX {
            return Err(format!(
                "shards {waiting:?} wait for credit that nobody gives"
            ));
        }
        for shard in waiting {
            sim.turn(shard, true, rng)?;
        }
    }
    Err(format!("no rest after {ROUNDS_MAX} rounds"))
}

/// Checks that no client waits for an answer. A client that gave up after `ATTEMPTS_MAX` attempts is left out.
fn check_settled(sim: &Simulation, attempts: &Attempts) -> Result<(), Violation> {
    for (n, client) in sim.clients.mqtt.iter().enumerate() {
        let is_open = client.link.is_some_and(|link| sim.net.is_open(link));
        if is_open && attempts.mqtt[n] < ATTEMPTS_MAX {
            client.check_nothing_pending()?;
        }
    }
    for (n, client) in sim.clients.centrifugo.iter().enumerate() {
        let is_open = client.link.is_some_and(|link| sim.net.is_open(link));
        if is_open && attempts.centrifugo[n] < ATTEMPTS_MAX && client.is_waiting() {
            return Err(format!("Centrifugo's client {n} was never answered"));
        }
    }
    for (n, follower) in sim.clients.followers.iter().enumerate() {
        let is_open = follower.link.is_some_and(|link| sim.net.is_open(link));
        if is_open && attempts.followers[n] < ATTEMPTS_MAX && !follower.is_synchronized() {
            return Err(format!("follower {n} never got its snapshot"));
        }
    }
    for (n, publisher) in sim.clients.publishers.iter().enumerate() {
        if publisher.link.is_some_and(|link| sim.net.is_open(link)) && publisher.is_busy() {
            return Err(format!("publisher {n} was never answered"));
        }
    }
    for (n, subscriber) in sim.clients.subscribers.iter().enumerate() {
        let is_open = subscriber.link.is_some_and(|link| sim.net.is_open(link));
        if is_open && attempts.subscribers[n] < ATTEMPTS_MAX && !subscriber.is_established() {
            return Err(format!("subscriber {n} was never answered"));
        }
    }
    Ok(())
}

/// The phase without clients: all clients leave and time passes. Then all counts of the shards must be zero again.
fn leave_and_check(sim: &mut Simulation, rng: &mut Rng) -> Result<(), Violation> {
    sim.truth.note(|| "end".into());
    sim.close_clients();
    let sweeper = sim.plan.retains.then(|| sim.clear_retained(rng));
    for wait_s in [1, 1, DEADLINES_S, DEADLINES_S, DEADLINES_S] {
        sim.truth.now_s += wait_s;
        run_until_idle(sim, rng)?;
        for n in 0..sim.clients.followers.len() {
            sim.read_follower(n, usize::MAX)?;
        }
        run_until_idle(sim, rng)?;
    }
    for n in 0..sim.clients.followers.len() {
        sim.read_follower(n, usize::MAX)?;
        if let Some(link) = sim.clients.followers[n].link {
            sim.clients.followers[n].check_empty()?;
            sim.clients.followers[n].connection_ended();
            sim.hang_up(link);
        }
    }
    sweeper.into_iter().for_each(|link| sim.hang_up(link));
    if sim.truth.topics.iter().any(Topic::keeps_latest) {
        // The deletes are final, because no publish is in flight that could create the topics again. They are repeated, because a delete
        // may be refused for lack of room or by a rate limit.
        for _ in 0..DELETES {
            let link = sim.delete_latest_topics(rng);
            run_until_idle(sim, rng)?;
            sim.hang_up(link);
            sim.truth.now_s += FORGET_S;
            run_until_idle(sim, rng)?;
        }
    }
    for _ in 0..FORGET_TICKS {
        sim.truth.now_s += FORGET_S;
        run_until_idle(sim, rng)?;
        if sim.plan.nodes > 1 {
            // A node that has not heard from the log for so long does the work of a steward only after its next heartbeat.
            sim.truth.now_s += 1;
            run_until_idle(sim, rng)?;
        }
    }
    for (n, shard) in sim.shards.iter().enumerate() {
        let accounts = shard.accounts();
        if !accounts.is_empty() {
            return Err(format!("at the end shard {n} still holds {accounts:?}"));
        }
        match shard.stats().closed[Closed::Broken as usize] {
            0 => {}
            count => {
                return Err(format!(
                    "shard {n} contradicted itself about {count} clients"
                ));
            }
        }
    }
    // In a world with a single node, a restart or a crash replaces only `sim.server`, so `sim.nodes.servers` is out of date.
    let nodes = match sim.plan.nodes {
        1 => std::slice::from_ref(&sim.server),
        _ => &sim.nodes.servers[..],
    };
    for node in nodes {
        if !node.admission.keeps_nothing() {
            return Err("at the end messages are still counted for their addresses".into());
        }
        if !node.admission.has_no_absent() {
            return Err("at the end absent sessions are still counted for their parties".into());
        }
        let count = node.admission.connections();
        if count > 0 {
            return Err(format!("at the end {count} connections are still counted"));
        }
    }
    limits::check(sim, 0)
}

/// Takes turns until no shard has work.
fn run_until_idle(sim: &mut Simulation, rng: &mut Rng) -> Result<(), Violation> {
    for _ in 0..ROUNDS_MAX {
        sim.truth.step += 1;
        let shards = 0..sim.shards.len();
        if !shards.clone().any(|shard| sim.has_work(shard)) {
            return Ok(());
        }
        for shard in shards {
            // As in `settle`: a shard that waits for credit also gets turns. The work of another one may wait for it.
            if sim.has_work(shard) || sim.shards[shard].is_waiting() {
                sim.turn(shard, true, rng)?;
            }
        }
    }
    Err(format!("no rest after {ROUNDS_MAX} rounds"))
}
