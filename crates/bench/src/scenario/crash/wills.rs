//! Checks the wills of durable sessions: a will that is due is published once, and any other will is not published. This module uses no
//! sockets.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::checker::{Fault, Faults};
use super::outage::Outage;
use super::session::{Connection, Ending};
use super::session_check::SessionCounts;

/// The server confirms a will to no client. So it may lose what happens less than this time before a crash.
const CRASH_WINDOW: Duration = Duration::from_secs(2);
/// The server counts delays in whole seconds.
const DELAY_RESOLUTION: Duration = Duration::from_secs(1);

/// Whether a will must be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Yes,
    No,
    Perhaps,
}

/// Whether the will of `connection` must be published. `next` is the client's next connection.
fn will_due(connection: &Connection, next: Option<&Connection>) -> Due {
    let (Some(_), Some((ending, ended))) = (connection.connected_at, connection.end) else {
        return Due::Perhaps;
    };
    match ending {
        Ending::Disconnected => return Due::No,
        Ending::Unknown => return Due::Perhaps,
        Ending::Broken => {}
    }
    if connection.delay_s == 0 {
        return Due::Yes;
    }
    match connection.session_ended {
        // The end of the session is the end of the delay.
        Some(true) => return Due::Yes,
        None => return Due::Perhaps,
        Some(false) => {}
    }
    let Some(next) = next else {
        return Due::Yes;
    };
    let delay = Duration::from_secs(connection.delay_s.into());
    match next.connected_at {
        Some(again) if again.duration_since(ended) + DELAY_RESOLUTION < delay => Due::No,
        _ => Due::Perhaps,
    }
}

/// The numbers of all wills that are due.
pub fn all_due(connections: &[Connection]) -> impl Iterator<Item = u32> {
    let next = connections.iter().skip(1).map(Some).chain([None]);
    let each = (1..).zip(connections.iter().zip(next));
    each.filter(|(_, (connection, next))| will_due(connection, *next) == Due::Yes)
        .map(|(number, _)| number)
}

/// The time from `at` to the next outage, if it is shorter than [`CRASH_WINDOW`].
fn time_to_outage(at: Instant, outages: &[Outage]) -> Option<Duration> {
    let times = outages.iter().filter_map(|outage| outage.time_after(at));
    times.min().filter(|time| *time < CRASH_WINDOW)
}

/// Checks the wills of one client. `copies_by_number` has the number of copies of each will in the log.
pub fn check(
    name: &str,
    connections: &[Connection],
    copies_by_number: &HashMap<u32, u64>,
    outages: &[Outage],
    faults: &mut Faults,
    counts: &mut SessionCounts,
) {
    for (number, connection) in (1..).zip(connections) {
        let copies = copies_by_number.get(&number).copied().unwrap_or(0);
        counts.wills += u64::from(copies > 0);
        let (Some(connected_at), Some((ending, end))) = (connection.connected_at, connection.end)
        else {
            continue;
        };
        let crash_after = time_to_outage(connected_at, outages).or(time_to_outage(end, outages));
        let describe = || {
            let (lived, delay_s) = (end.duration_since(connected_at), connection.delay_s);
            let crashed = outages
                .iter()
                .filter_map(|outage| outage.time_after(end))
                .min();
            format!(
                "{name}: the will of connection {number}, which was {ending:?} after {lived:?}, {crashed:?} before a crash; delay {delay_s} s"
            )
        };
        if copies > 1 {
            counts.wills_twice += 1;
            counts.add_note("wills_twice", || format!("{copies} times: {}", describe()));
        }
        match will_due(connection, connections.get(number as usize)) {
            Due::Yes if copies == 0 && crash_after.is_some() => {
                counts.wills_lost_at_crash += 1;
                counts.add_note("wills_lost_at_crash", describe);
            }
            Due::Yes if copies == 0 => faults.add(Fault::WillLost, describe),
            Due::No if copies > 0 && crash_after.is_some() => {
                counts.wills_after_disconnect += 1;
                counts.add_note("wills_after_disconnect", describe);
            }
            Due::No if copies > 0 => faults.add(Fault::WillNotDue, describe),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LATER: Duration = Duration::from_secs(100);

    fn connection(delay_s: u32, connected_at: Instant, ending: Ending) -> Connection {
        Connection {
            delay_s,
            connected_at: Some(connected_at),
            end: Some((ending, connected_at + SECOND)),
            session_ended: Some(false),
        }
    }

    /// The faults and counts of a connection whose will is in the log `copies` times. The client connected again `pause`
    /// after the end of that connection.
    fn check_one(
        first: Connection,
        pause: Duration,
        copies: u64,
        crash: Instant,
    ) -> (Faults, SessionCounts) {
        let (mut faults, mut counts) = (Faults::default(), SessionCounts::default());
        let end = first.end.map(|(_, at)| at).expect("it has ended");
        let next = connection(0, end + pause, Ending::Disconnected);
        let copies_by_number = HashMap::from([(1, copies)]);
        check(
            "it",
            &[first, next],
            &copies_by_number,
            &[Outage {
                begin: crash,
                end: crash,
            }],
            &mut faults,
            &mut counts,
        );
        (faults, counts)
    }

    #[test]
    fn wills_are_due_unless_the_client_disconnects_or_comes_back_in_time() {
        let connected_at = Instant::now();
        let crash = connected_at + LATER;
        for (delay_s, ending, pause, copies, fault) in [
            (0, Ending::Broken, Duration::ZERO, 0, Some(Fault::WillLost)),
            (0, Ending::Broken, Duration::ZERO, 1, None),
            (
                0,
                Ending::Disconnected,
                Duration::ZERO,
                1,
                Some(Fault::WillNotDue),
            ),
            (3, Ending::Broken, SECOND, 1, Some(Fault::WillNotDue)),
            (3, Ending::Broken, SECOND, 0, None),
            (3, Ending::Broken, SECOND * 4, 0, None),
            (0, Ending::Unknown, Duration::ZERO, 0, None),
            (0, Ending::Unknown, Duration::ZERO, 1, None),
        ] {
            let (faults, _) = check_one(
                connection(delay_s, connected_at, ending),
                pause,
                copies,
                crash,
            );
            let kinds: Vec<Fault> = faults.counts.into_keys().collect();
            assert_eq!(
                kinds,
                fault.as_slice(),
                "{delay_s} {ending:?} {pause:?} {copies}"
            );
        }
    }

    #[test]
    fn will_that_a_crash_may_lose_or_repeat_is_counted_and_is_no_fault() {
        let connected_at = Instant::now();
        let soon = connected_at + SECOND + CRASH_WINDOW / 2;
        let (faults, counts) =
            check_one(connection(0, connected_at, Ending::Broken), SECOND, 0, soon);
        assert_eq!((faults.counts.len(), counts.wills_lost_at_crash), (0, 1));
        let (faults, counts) = check_one(
            connection(0, connected_at, Ending::Disconnected),
            SECOND,
            1,
            soon,
        );
        assert_eq!((faults.counts.len(), counts.wills_after_disconnect), (0, 1));
        let (faults, counts) =
            check_one(connection(0, connected_at, Ending::Broken), SECOND, 2, soon);
        assert_eq!((faults.counts.len(), counts.wills_twice), (0, 1));
    }
}
