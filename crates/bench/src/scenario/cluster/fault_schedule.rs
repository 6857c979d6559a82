//! Plans and causes the faults of a `cluster` run: faults of each kind in random order, with waits between them.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
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
const PAUSE_MS: (u32, u32) = (1_000, 3_000);
/// The mean time after which a client moves to the other node while there is no fault, in seconds. So each node also gets clients with
/// positions that the other node sent.
const STAY_MEAN_S: u32 = 10;
/// Timeout for the recovery after a fault.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Timeout for the answer to the publish that probes a node.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The cluster has recovered when at most one in this many clients is disconnected. Some clients are always disconnected, because they read
/// large messages too slowly.
const DISCONNECTED_CLIENT_EVERY: u32 = 100;
/// Polling interval during recovery.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A planned fault: its kind, the index of the affected process, and its duration.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    fault: Fault,
    process: usize,
    duration_ms: u32,
}

/// A fault that happened. All times are of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct FaultRecord {
    /// The kind of the fault.
    pub fault: Fault,
    /// When the fault began.
    pub start_ns: u64,
    /// When the fault was repaired: the process was started again, or the cut was removed.
    pub repaired_ns: u64,
    /// When all nodes answered publishes and nearly all clients were connected again.
    pub recovered_ns: u64,
}

/// Duration of a fault in milliseconds: minimum and maximum. Some faults are shorter and some are longer than the nodes' timeouts: a node
/// that is silent for 5 s counts as dead, and a publish waits at most 10 s.
fn duration_ms(fault: Fault) -> (u32, u32) {
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
    let mut planned_faults: Vec<PlannedFault> = Vec::new();
    for &fault in Fault::ALL {
        for _ in 0..times(fault) {
            let (min, max) = duration_ms(fault);
            let planned_fault = PlannedFault {
                fault,
                process: random.below(fault.process_count() as u32) as usize,
                duration_ms: min + random.below(max - min),
            };
            // All orders are equally likely (Fisher-Yates).
            let position = random.below(planned_faults.len() as u32 + 1) as usize;
            planned_faults.push(planned_fault);
            let last = planned_faults.len() - 1;
            planned_faults.swap(position, last);
        }
    }
    planned_faults
}

/// Causes all faults while clients publish and subscribe, then waits until all clients have all messages. `fault_changes` counts the beginning
/// and the end of each fault.
pub fn run(
    shared: &SharedState,
    testbed: &mut Testbed,
    planned_faults: &[PlannedFault],
    seed: u64,
    connections: u32,
    fault_changes: &AtomicU32,
) -> Result<Vec<FaultRecord>> {
    wait_until_open(shared, connections)?;
    report::note(&format!("{connections} subscribers are connected"));
    shared.may_publish.store(true, Relaxed);
    let mut random = Random::new(seed ^ 0xca11);
    let mut wait_without_fault = || {
        let (min, max) = PAUSE_MS;
        shared.stay_mean_s.store(STAY_MEAN_S, Relaxed);
        pause(f64::from(min + random.below(max - min)) / 1e3);
        shared.stay_mean_s.store(0, Relaxed);
    };
    let mut fault_records = Vec::new();
    for (number, planned_fault) in planned_faults.iter().enumerate() {
        wait_without_fault();
        testbed.check()?;
        fault_changes.fetch_add(1, Relaxed);
        let record = run_fault(shared, testbed, planned_fault, connections);
        fault_changes.fetch_add(1, Relaxed);
        let record = record.with_context(|| format!("fault {number}, {planned_fault:?}"))?;
        let seconds = |from: u64, to: u64| (to - from) as f64 / 1e9;
        report::note(&format!(
            "fault {} of the run: {} for {:.1} s, all is well {:.1} s later",
            number + 1,
            planned_fault.fault.name(),
            seconds(record.start_ns, record.repaired_ns),
            seconds(record.repaired_ns, record.recovered_ns),
        ));
        fault_records.push(record);
    }
    wait_without_fault();
    shared.may_publish.store(false, Relaxed);
    wait_until_recovered(shared, "the last answers and clients", || {
        Ok(Publishers::are_all_idle(shared) && shared.open_clients.load(Relaxed) == connections)
    })?;
    deliver_last_messages(shared, connections)?;
    testbed.check()?;
    Ok(fault_records)
}

/// Causes a fault, repairs it after its duration, and waits until all nodes answer and nearly all clients are connected.
fn run_fault(
    shared: &SharedState,
    testbed: &mut Testbed,
    planned_fault: &PlannedFault,
    connections: u32,
) -> Result<FaultRecord> {
    let PlannedFault {
        fault,
        process,
        duration_ms,
    } = *planned_fault;
    let start_ns = sys::now_ns();
    testbed.inject(fault, process)?;
    pause(f64::from(duration_ms) / 1e3);
    testbed.repair(fault, process)?;
    let repaired_ns = sys::now_ns();
    let addresses = testbed.addresses();
    wait_until_recovered(shared, "answers of all nodes, and the clients", || {
        testbed.check()?;
        Ok(addresses.iter().all(|address| probe(*address).is_some())
            && shared.open_clients.load(Relaxed)
                >= connections - connections / DISCONNECTED_CLIENT_EVERY)
    })?;
    Ok(FaultRecord {
        fault,
        start_ns,
        repaired_ns,
        recovered_ns: sys::now_ns(),
    })
}

/// Waits until `condition` is true. If that takes longer than [`TIMEOUT`], returns an error that names what was `expected`.
fn wait_until_recovered(
    shared: &SharedState,
    expected: &str,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        ensure!(!shared.must_stop.load(Relaxed), "a thread ended");
        ensure!(
            start.elapsed() < TIMEOUT,
            "{expected} did not come in {TIMEOUT:?}; {} clients are connected",
            shared.open_clients.load(Relaxed)
        );
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Whether a node answers a publish.
fn probe(address: SocketAddr) -> Option<()> {
    let request = "POST /pub/probe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
    let mut link = Link::open(address, ANSWER_TIMEOUT).ok()?;
    let (status, _) = link.request(request.as_bytes()).ok()?;
    (200..210).contains(&status).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_planned_the_given_number_of_times_in_an_order_that_depends_on_the_seed() {
        let order = |seed| -> Vec<Fault> {
            let planned_faults = plan(|_| 10, seed);
            planned_faults
                .iter()
                .map(|planned_fault| planned_fault.fault)
                .collect()
        };
        for &fault in Fault::ALL {
            let times = order(1).iter().filter(|planned| **planned == fault).count();
            assert_eq!(times, 10);
        }
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
