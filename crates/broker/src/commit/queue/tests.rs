//! Tests of the queues: the order in which requests take effect, and the batches that are appended.

use proptest::prelude::*;

use super::*;
use crate::base::ids::PartitionId;
use crate::commit::batch::Header;
use crate::commit::batches::{
    BATCH_BYTES, BATCH_RECORDS_MAX, IN_FLIGHT_MAX, IN_FLIGHT_REPLICATED_MAX,
    OPEN_BUFFER_KEPT_BYTES, RESEND_S,
};

const PLACEMENT: Placement = Placement::new(3, 1);
const WRITER: u64 = 9;

fn at(s: u32) -> Now {
    Now {
        s,
        unix_s: 1000 + s,
    }
}

fn commits() -> CommitQueues<u32> {
    CommitQueues::new(PLACEMENT, 0, WRITER, false)
}

fn write(commits: &mut CommitQueues<u32>, place: usize, request: u32) {
    write_bytes(commits, place, request, &request.to_le_bytes());
}

fn write_bytes(commits: &mut CommitQueues<u32>, place: usize, request: u32, record: &[u8]) {
    let encode = |out: &mut Vec<u8>, _| out.extend_from_slice(record);
    commits.push_write(place, request, at(0), 100, encode);
}

/// Ends a turn. Returns the batches that are appended: for each, the partition, its number and the number of its records.
fn sent(commits: &mut CommitQueues<u32>, s: u32) -> Vec<(PartitionId, u64, u32)> {
    let mut all = Vec::new();
    commits.append_batches(
        at(s),
        |_| 100,
        |batch| {
            let header = Header::read(&batch.bytes).expect("a batch");
            assert_eq!((header.writer, header), (WRITER, batch.header));
            all.push((header.partition, header.number, header.record_count));
        },
    );
    all
}

fn committed(partition: PartitionId, number: u64) -> Committed {
    let header = Header {
        partition,
        writer: WRITER,
        number,
        first_offset: 1000 * number,
        unix_s: 1000,
        record_count: 1,
    };
    Committed {
        header,
        batch: None,
    }
}

/// The next request, for a log with one writer.
fn next(commits: &mut CommitQueues<u32>) -> Option<(u32, Option<Record>)> {
    next_at(commits, 0)
}

fn next_at(commits: &mut CommitQueues<u32>, s: u32) -> Option<(u32, Option<Record>)> {
    match commits.take_next(at(s), |_, _, _| false)? {
        Next::Request(request, record) => Some((request, record)),
        Next::Record { .. } => panic!("there is no other writer"),
    }
}

fn due(commits: &mut CommitQueues<u32>) -> Vec<u32> {
    let all = core::iter::from_fn(|| next(commits));
    all.map(|(request, _)| request).collect()
}

#[test]
fn batch_begins_after_unlogged_facts_that_wait() {
    let mut commits = commits();
    let first = |commits: &mut CommitQueues<u32>, sequence| {
        let mut first = None;
        let take = |batch: Batch| first = Some(batch.header.first_offset);
        commits.append_batches(at(0), |_| sequence, take);
        first
    };
    write(&mut commits, 1, 1);
    for request in 2..=3 {
        commits.push_unlogged(1, request, 0, at(0), 100);
    }
    assert_eq!(first(&mut commits, 100), Some(101));
    commits.push_committed(1, committed(1, 1));
    // The first turn ends here.
    assert_eq!(next(&mut commits).map(|(request, _)| request), Some(1));
    write(&mut commits, 1, 4);
    assert_eq!(first(&mut commits, 101), Some(105));
    assert_eq!(due(&mut commits), [2, 3]);
}

#[test]
fn several_batches_of_a_partition_are_in_flight_and_commit_in_order() {
    let mut commits = commits();
    for request in 1..=3 {
        write(&mut commits, 1, request);
        assert_eq!(sent(&mut commits, 0), [(1, u64::from(request), 1)]);
    }
    let one = size_of::<Entry<u32>>() + 4;
    assert_eq!((commits.len(), commits.bytes), (3, 3 * one));
    assert!(due(&mut commits).is_empty());
    commits.push_committed(1, committed(1, 1));
    commits.push_committed(1, committed(1, 2));
    let (request, record) = next(&mut commits).expect("the first");
    let record = record.expect("it writes");
    assert_eq!(request, 1);
    assert_eq!(record.bytes(), 1u32.to_le_bytes());
    assert_eq!(
        (
            record.stored.header.first_offset,
            record.stored.header.unix_s
        ),
        (1000, 1000)
    );
    assert_eq!(due(&mut commits), [2]);
    commits.push_committed(1, committed(1, 3));
    assert_eq!(due(&mut commits), [3]);
    assert_eq!((commits.len(), commits.bytes), (0, 0));
}

#[test]
fn duplicates_gaps_and_other_writers_do_not_count() {
    let mut commits = commits();
    for request in 1..=3 {
        write(&mut commits, 0, request);
        sent(&mut commits, 0);
    }
    let mut other = committed(0, 1);
    other.header.writer = 8;
    commits.push_committed(0, other);
    assert!(due(&mut commits).is_empty());
    commits.push_committed(0, committed(0, 1));
    commits.push_committed(0, committed(0, 1));
    assert_eq!(due(&mut commits), [1]);
    // The log has the third batch, but not the second: the second is appended again at once, with all batches after it.
    commits.push_committed(0, committed(0, 3));
    assert!(due(&mut commits).is_empty());
    assert_eq!(sent(&mut commits, 0), [(0, 2, 1), (0, 3, 1)]);
    for number in 2..=3 {
        commits.push_committed(0, committed(0, number));
    }
    assert_eq!(due(&mut commits), [2, 3]);
}

#[test]
fn batches_that_are_not_committed_are_appended_again_as_they_were() {
    let mut commits = commits();
    write(&mut commits, 0, 1);
    assert_eq!(sent(&mut commits, 0), [(0, 1, 1)]);
    assert!(sent(&mut commits, RESEND_S - 1).is_empty());
    assert_eq!(sent(&mut commits, RESEND_S), [(0, 1, 1)]);
    write(&mut commits, 0, 2);
    assert_eq!(sent(&mut commits, RESEND_S + 1), [(0, 2, 1)]);
    assert_eq!(sent(&mut commits, 2 * RESEND_S), [(0, 1, 1), (0, 2, 1)]);
    commits.push_committed(0, committed(0, 1));
    assert!(next_at(&mut commits, 3 * RESEND_S).is_some_and(|next| next.0 == 1));
    assert!(sent(&mut commits, 4 * RESEND_S - 1).is_empty());
    commits.push_committed(0, committed(0, 2));
    assert!(next_at(&mut commits, 4 * RESEND_S).is_some_and(|next| next.0 == 2));
    assert!(sent(&mut commits, 9 * RESEND_S).is_empty());
}

#[test]
fn late_write_is_reported_once_and_still_takes_effect() {
    let mut commits = commits();
    let late = |commits: &mut CommitQueues<u32>, s| {
        let mut all = Vec::new();
        commits.begin_overdue_search(s);
        while commits.is_overdue_search_unfinished() {
            all.extend(commits.next_overdue().copied());
        }
        all
    };
    write(&mut commits, 0, 1);
    commits.push(Scope::Partition(0), 2, 0, at(1));
    commits.push(Scope::All, 5, 0, at(1));
    write(&mut commits, 0, 3);
    assert!(late(&mut commits, OVERDUE_S - 1).is_empty());
    // The last write is old enough to be late, but the requests before it must be reported first.
    assert_eq!(late(&mut commits, OVERDUE_S), [1]);
    assert_eq!(late(&mut commits, OVERDUE_S + 1), [2, 3, 5]);
    assert!(late(&mut commits, 3 * OVERDUE_S).is_empty());
    sent(&mut commits, 0);
    commits.push_committed(0, committed(0, 1));
    assert_eq!(due(&mut commits), [1, 2, 5, 3]);
    write(&mut commits, 0, 4);
    assert_eq!(late(&mut commits, OVERDUE_S), [4]);
}

#[test]
fn a_batch_ends_at_its_limits() {
    let mut commits = commits();
    for request in 0..=BATCH_RECORDS_MAX {
        write(&mut commits, 0, request);
    }
    assert_eq!(
        sent(&mut commits, 0),
        [(0, 1, BATCH_RECORDS_MAX), (0, 2, 1)]
    );
    let large = alloc::vec![0; BATCH_BYTES];
    for request in 0..2 {
        write_bytes(&mut commits, 1, request, &large);
    }
    assert_eq!(sent(&mut commits, 0), [(1, 1, 1), (1, 2, 1)]);
}

/// Tests that the time of a record is the time of its admission, however long the engine takes.
#[test]
fn a_batch_has_records_of_one_second() {
    let mut commits = commits();
    let mut seconds = Vec::new();
    for s in 0..40 {
        let encode = |out: &mut Vec<u8>, _| out.push(1);
        commits.push_write(0, s, at(s), 100, encode);
        commits.push_write(0, s, at(s), 100, encode);
        commits.append_batches(at(s / 2), |_| 100, drop);
        assert_eq!(commits.oldest_unix_s(at(s)), 1000);
    }
    for number in 1..=40 {
        let mut of = committed(0, number);
        of.header.unix_s = 999 + number as u32;
        commits.push_committed(0, of);
        commits.append_batches(at(40), |_| 100, |_| {});
        while let Some((_, record)) = next(&mut commits) {
            seconds.push(record.expect("it writes").stored.header.unix_s);
        }
    }
    let each = (0..40).flat_map(|s| [1000 + s, 1000 + s]);
    assert_eq!(seconds, each.collect::<Vec<_>>());
    assert_eq!(commits.oldest_unix_s(at(77)), 1077);
}

#[test]
fn buffers_of_open_batches_are_counted() {
    let mut commits = commits();
    let large = alloc::vec![0; BATCH_BYTES - 100];
    for place in 0..3 {
        write_bytes(&mut commits, place, 1, &large);
    }
    let open = |commits: &CommitQueues<u32>| {
        let all = commits
            .queues
            .iter()
            .map(|queue| queue.batches.open_bytes());
        all.sum::<usize>()
    };
    assert!(open(&commits) >= 3 * large.len());
    assert_eq!(commits.bytes(), commits.bytes + open(&commits));
    sent(&mut commits, 0);
    assert!(open(&commits) <= 3 * OPEN_BUFFER_KEPT_BYTES);
    assert_eq!(commits.bytes(), commits.bytes + open(&commits));
}

#[test]
fn few_batches_are_in_flight_however_long_the_engine_takes() {
    for (is_replicated, most) in [(false, IN_FLIGHT_MAX), (true, IN_FLIGHT_REPLICATED_MAX)] {
        let mut commits = CommitQueues::new(PLACEMENT, 0, WRITER, is_replicated);
        for request in 0..40 {
            write(&mut commits, 0, request);
            sent(&mut commits, 0);
        }
        let newest = most as u64;
        for number in 1..=newest {
            commits.push_committed(0, committed(0, number));
        }
        assert_eq!(due(&mut commits).len(), most);
        // The facts that waited form one batch.
        let rest = 40 - most as u32;
        assert_eq!(sent(&mut commits, 0), [(0, newest + 1, rest)]);
    }
}

#[test]
fn offsets_go_on_through_all_batches_in_flight() {
    let mut commits = commits();
    let mut firsts = Vec::new();
    for request in 0..5 {
        write(&mut commits, 0, request);
        if request != 1 {
            commits.append_batches(
                at(0),
                |_| 100,
                |batch| {
                    firsts.push(batch.header.first_offset);
                },
            );
        }
    }
    assert_eq!(firsts, [101, 102, 104, 105]);
}

#[derive(Clone, Debug)]
enum Step {
    Push { place: Option<usize>, writes: bool },
    Send,
    Commit { at: usize, lost: bool },
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::option::weighted(0.8, 0usize..3), any::<bool>())
            .prop_map(|(place, writes)| Step::Push { place, writes }),
        3 => Just(Step::Send),
        4 => (0usize..3, prop::bool::weighted(0.3)).prop_map(|(at, lost)| Step::Commit { at, lost }),
        3 => (0usize..5).prop_map(Step::Take),
    ]
}

proptest! {
    /// Tests that each request takes effect once, and after all earlier requests to the same partitions, although the engine loses batches.
    #[test]
    fn entries_take_effect_in_the_order_in_which_they_were_asked(steps in prop::collection::vec(step(), 1..120)) {
        let mut commits = commits();
        let mut asked: Vec<Option<usize>> = Vec::new();
        let mut done: Vec<u32> = Vec::new();
        let mut batches: [VecDeque<u64>; 3] = [const { VecDeque::new() }; 3];
        let mut s = 0;
        let calm = (0..900).map(|n| match n % 3 {
            0 => Step::Send,
            1 => Step::Take(99),
            _ => Step::Commit { at: n / 3 % 3, lost: false },
        });
        for step in steps.into_iter().chain(calm) {
            let now = at(s);
            match step {
                Step::Push { place, writes } => {
                    let n = asked.len() as u32;
                    match place {
                        Some(at) if writes => write(&mut commits, at, n),
                        _ => {
                            let at = place.map_or(Scope::All, Scope::Partition);
                            match commits.can_take_effect(at) {
                                true => done.push(n),
                                false => commits.push(at, n, 0, now),
                            }
                        }
                    }
                    asked.push(place);
                }
                Step::Send => {
                    s += 1;
                    commits.append_batches(at(s), |_| 0, |batch| batches[usize::from(batch.header.partition)].push_back(batch.header.number));
                }
                Step::Commit { at: place, lost } => {
                    if let Some(number) = batches[place].pop_front() && !lost {
                        commits.push_committed(place, committed(place as u16, number));
                    }
                }
                Step::Take(most) => {
                    let taken = core::iter::from_fn(|| next(&mut commits)).take(most);
                    done.extend(taken.map(|(request, _)| request));
                }
            }
        }
        prop_assert_eq!((commits.len(), commits.bytes, done.len()), (0, 0, asked.len()));
        let shares = |one: u32, other: u32| {
            let (one, other) = (asked[one as usize], asked[other as usize]);
            one == other || one.is_none() || other.is_none()
        };
        for (place, request) in done.iter().enumerate() {
            for earlier in &done[..place] {
                prop_assert!(earlier < request || !shares(*earlier, *request));
            }
        }
    }
}
