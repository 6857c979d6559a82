//! Plans and causes the faults of a `cluster` run: faults of each kind in random order, with waits between them.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::testbed::{Fault, Testbed};
use crate::client::link::Link;
use crate::measure::payload::Random;
use crate::rig::pause;
use crate::scenario::chaos::{Publishers, SharedState, deliver_last_messages, wait_until_open};
use crate::{report, sys};

/// Milliseconds between two faults: minimum and maximum.
const CALM_MS: (u32, u32) = (1_000, 3_000);
/// The mean time after which a client moves to the other node, in seconds, while there is no fault. So each node gets clients again, with
/// positions that the other node sent.
const STAYS_S: u32 = 10;
/// Timeout for the recovery after a fault.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Timeout for the answer to the publish that probes a node.
const ANSWER: Duration = Duration::from_secs(2);
/// The cluster has recovered when at most one in this many clients is disconnected. Some clients are always disconnected because they read
/// large messages too slowly.
const AWAY: u32 = 100;
/// Polling interval during recovery.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A planned fault: its kind, the index of the affected process, and its duration.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    fault: Fault,
    process: usize,
    lasts_ms: u32,
}

/// A fault that happened. All times are of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct FaultRecord {
    /// The kind of the fault.
    pub fault: Fault,
    /// When the fault began.
    pub begun_ns: u64,
    /// When the fault was repaired: the process was started again, or the cut was removed.
    pub repaired_ns: u64,
    /// When all nodes answered publishes and nearly all clients were connected.
    pub back_ns: u64,
}

/// Duration of a fault in milliseconds: minimum and maximum. Some faults are shorter and some are longer than the nodes' timeouts: a node
/// that is silent for 5 s counts as dead, and a publish waits at most 10 s.
fn lasts_ms(fault: Fault) -> (u32, u32) {
    match fault {
        Fault::NodeKilled => (100, 8_000),
        Fault::NatsKilled => (500, 8_000),
        Fault::CutOff => (500, 15_000),
        Fault::LongCutOff => (20_000, 60_000),
        Fault::AllKilled => (0, 1_000),
    }
}

/// Plans each fault `times(fault)` times, in random order.
pub fn plan(times: impl Fn(Fault) -> usize, seed: u64) -> Vec<PlannedFault> {
    let mut random = Random::new(seed ^ 0xc105);
    let mut all: Vec<PlannedFault> = Vec::new();
    for &fault in Fault::ALL {
        for _ in 0..times(fault) {
            let (least, most) = lasts_ms(fault);
            let planned = PlannedFault {
                fault,
                process: random.below(fault.process_count() as u32) as usize,
                lasts_ms: least + random.below(most - least),
            };
            // All orders are equally likely (Fisher-Yates).
            let at = random.below(all.len() as u32 + 1) as usize;
            all.push(planned);
            let last = all.len() - 1;
            all.swap(at, last);
        }
    }
    all
}

/// Causes all faults while clients publish and subscribe, then waits until all clients have all messages.
pub fn run(
    shared: &SharedState,
    testbed: &mut Testbed,
    planned: &[PlannedFault],
    seed: u64,
    connections: u32,
) -> Result<Vec<FaultRecord>> {
    wait_until_open(shared, connections)?;
    report::note(&format!("{connections} subscribers are connected"));
    shared.publishing.store(true, Relaxed);
    let mut random = Random::new(seed ^ 0xca11);
    let mut wait_calmly = || {
        let (least, most) = CALM_MS;
        shared.stays_s.store(STAYS_S, Relaxed);
        pause(f64::from(least + random.below(most - least)) / 1e3);
        shared.stays_s.store(0, Relaxed);
    };
    let mut happened = Vec::new();
    for (number, planned) in planned.iter().enumerate() {
        wait_calmly();
        testbed.check()?;
        let record = run_fault(shared, testbed, planned, connections);
        let record = record.with_context(|| format!("fault {number}, {planned:?}"))?;
        let seconds = |from: u64, to: u64| (to - from) as f64 / 1e9;
        report::note(&format!(
            "fault {} of the run: {} for {:.1} s, all is well {:.1} s later",
            number + 1,
            planned.fault.name(),
            seconds(record.begun_ns, record.repaired_ns),
            seconds(record.repaired_ns, record.back_ns),
        ));
        happened.push(record);
    }
    wait_calmly();
    shared.publishing.store(false, Relaxed);
    await_all(shared, "the last answers and clients", || {
        Ok(Publishers::all_idle(shared) && shared.live.load(Relaxed) == connections)
    })?;
    deliver_last_messages(shared, connections)?;
    testbed.check()?;
    Ok(happened)
}

/// Causes a fault, repairs it after its duration, and waits until all nodes answer and nearly all clients are connected.
fn run_fault(
    shared: &SharedState,
    testbed: &mut Testbed,
    planned: &PlannedFault,
    connections: u32,
) -> Result<FaultRecord> {
    let PlannedFault {
        fault,
        process,
        lasts_ms,
    } = *planned;
    let begun_ns = sys::now_ns();
    testbed.inject(fault, process)?;
    pause(f64::from(lasts_ms) / 1e3);
    testbed.repair(fault, process)?;
    let repaired_ns = sys::now_ns();
    let addresses = testbed.addresses();
    await_all(shared, "answers of all nodes, and the clients", || {
        testbed.check()?;
        Ok(addresses.iter().all(|at| answers(*at).is_some())
            && shared.live.load(Relaxed) >= connections - connections / AWAY)
    })?;
    Ok(FaultRecord {
        fault,
        begun_ns,
        repaired_ns,
        back_ns: sys::now_ns(),
    })
}

/// Waits until `condition` is true. If that takes longer than [`TIMEOUT`], returns an error that names `what`.
fn await_all(
    shared: &SharedState,
    what: &str,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let begin = Instant::now();
    while !condition()? {
        ensure!(!shared.stop.load(Relaxed), "a thread ended");
        ensure!(
            begin.elapsed() < TIMEOUT,
            "{what} did not come in {TIMEOUT:?}; {} clients are connected",
            shared.live.load(Relaxed)
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Whether a node answers a publish.
fn answers(address: SocketAddr) -> Option<()> {
    let request = "POST /pub/probe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
    let mut link = Link::open(address, ANSWER).ok()?;
    let (status, _) = link.ask(request.as_bytes()).ok()?;
    (200..210).contains(&status).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_planned_as_often_as_was_asked_in_another_order_for_each_seed() {
        let order = |seed| -> Vec<Fault> {
            let planned = plan(|_| 10, seed);
            planned.iter().map(|planned| planned.fault).collect()
        };
        for &fault in Fault::ALL {
            let times = order(1).iter().filter(|one| **one == fault).count();
            assert_eq!(times, 10);
        }
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
