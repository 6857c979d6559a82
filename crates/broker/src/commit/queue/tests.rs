//! The queues: the order in which entries take effect, and what an engine is given.

use proptest::prelude::*;

use super::*;

const PLACEMENT: Placement = Placement::new(3, 1);

fn record(text: &str) -> Option<Arc<[u8]>> {
    Some(text.as_bytes().into())
}

fn sent(commits: &mut Commits<u32>) -> Vec<(PartitionId, u64, usize)> {
    sent_at(commits, 0)
}

fn sent_at(commits: &mut Commits<u32>, now_s: u32) -> Vec<(PartitionId, u64, usize)> {
    let mut all = Vec::new();
    commits.send(now_s, |batch| {
        all.push((batch.partition, batch.number, batch.records.len()));
    });
    all
}

fn due(commits: &mut Commits<u32>) -> Vec<(u32, bool)> {
    core::iter::from_fn(|| commits.next())
        .map(decided)
        .collect()
}

/// What is done with, and whether it took effect.
fn decided(due: Due<u32>) -> (u32, bool) {
    match due {
        Due::Turn(what, _) => (what, true),
        Due::Failed(what) => (what, false),
    }
}

#[test]
fn one_batch_of_a_partition_is_under_way_and_the_next_is_filled_meanwhile() {
    let mut commits = Commits::new(PLACEMENT, 0);
    commits.push(Place::One(1), record("a"), false, 1, 0);
    assert_eq!(sent(&mut commits), [(1, 1, 1)]);
    let one = size_of::<Entry<u32>>() + 1;
    assert_eq!((commits.len(), commits.bytes()), (1, one));
    commits.push(Place::One(1), record("b"), false, 2, 0);
    commits.push(Place::One(1), record("c"), false, 3, 0);
    assert_eq!((commits.len(), commits.bytes()), (3, 3 * one));
    assert_eq!(sent(&mut commits), []);
    assert_eq!(due(&mut commits), []);
    commits.decided(1, 1, true, 0);
    assert_eq!(due(&mut commits), [(1, true)]);
    assert_eq!(sent(&mut commits), [(1, 2, 2)]);
    // What is told of another batch than the one under way is ignored.
    for number in [1, 3] {
        commits.decided(1, number, true, 0);
        commits.decided(0, 2, true, 0);
    }
    assert_eq!(due(&mut commits), []);
    commits.decided(1, 2, true, 0);
    assert_eq!(due(&mut commits), [(2, true), (3, true)]);
    assert_eq!((commits.len(), commits.bytes()), (0, 0));
}

#[test]
fn what_insists_is_appended_again_before_all_that_is_newer() {
    let mut commits = Commits::new(PLACEMENT, 0);
    for (what, insists) in [(1, false), (2, true), (3, false), (4, true)] {
        commits.push(Place::One(0), record("x"), insists, what, 0);
    }
    sent(&mut commits);
    commits.push(Place::One(0), None, false, 5, 0);
    commits.push(Place::One(0), record("y"), false, 6, 0);
    commits.decided(0, 1, false, 0);
    assert_eq!(commits.len(), 6, "two of them are to be told");
    let (entry, failed) = (size_of::<Entry<u32>>(), size_of::<u32>());
    assert_eq!(commits.bytes(), 4 * entry + 3 + 2 * failed);
    // What failed does not wait for what insists.
    assert_eq!(due(&mut commits), [(1, false), (3, false)]);
    // The engine has failed: it gets a moment.
    assert_eq!(sent(&mut commits), []);
    assert_eq!(sent_at(&mut commits, REST_S), [(0, 2, 3)]);
    commits.decided(0, 2, true, 0);
    let expected = [(2, true), (4, true), (5, true), (6, true)];
    assert_eq!(due(&mut commits), expected);
}

#[test]
fn what_concerns_all_partitions_waits_for_what_was_asked_before_of_any() {
    let mut commits = Commits::new(PLACEMENT, 0);
    assert!(commits.is_free(Place::All) && commits.is_free(Place::One(2)));
    commits.push(Place::One(2), record("x"), false, 1, 0);
    commits.push(Place::All, None, false, 2, 0);
    commits.push(Place::All, record("wide"), true, 3, 0);
    commits.push(Place::One(0), None, false, 4, 0);
    assert!(!commits.is_free(Place::All) && !commits.is_free(Place::One(1)));
    assert_eq!(sent(&mut commits), [(0, 1, 1), (1, 1, 1), (2, 1, 2)]);
    commits.decided(0, 1, true, 0);
    commits.decided(1, 1, false, 0);
    assert_eq!(due(&mut commits), []);
    commits.decided(2, 1, true, 0);
    // What was asked last concerns one partition, and stands there behind what concerns all.
    assert_eq!(due(&mut commits), [(1, true), (2, true)]);
    assert_eq!(sent_at(&mut commits, 0), []);
    assert_eq!(sent_at(&mut commits, REST_S), [(1, 2, 1)]);
    commits.decided(1, 2, true, 0);
    assert_eq!(due(&mut commits), [(3, true), (4, true)]);
    assert_eq!(commits.len(), 0);
}

#[test]
fn a_batch_without_an_answer_is_appended_again_as_it_was() {
    let mut commits = Commits::new(PLACEMENT, 0);
    commits.push(Place::One(0), record("a"), false, 1, 0);
    sent(&mut commits);
    commits.push(Place::One(0), record("b"), false, 2, 0);
    let again = |commits: &mut Commits<u32>, now_s| {
        let mut all = Vec::new();
        commits.send_again(now_s, |batch| all.push((batch.number, batch.records.len())));
        all
    };
    assert_eq!(again(&mut commits, AGAIN_S - 1), []);
    assert_eq!(again(&mut commits, AGAIN_S), [(1, 1)]);
    assert_eq!(again(&mut commits, AGAIN_S + 1), []);
    assert_eq!(again(&mut commits, 2 * AGAIN_S), [(1, 1)]);
    commits.decided(0, 1, true, 0);
    assert_eq!(again(&mut commits, 9 * AGAIN_S), []);
    assert_eq!(due(&mut commits), [(1, true)]);
}

#[test]
fn a_batch_ends_at_its_limits() {
    let mut commits = Commits::new(PLACEMENT, 0);
    for n in 0..=BATCH_RECORDS as u32 {
        commits.push(Place::One(0), record("x"), false, n, 0);
    }
    assert_eq!(sent(&mut commits), [(0, 1, BATCH_RECORDS)]);
    commits.decided(0, 1, true, 0);
    assert_eq!(sent(&mut commits), [(0, 2, 1)]);
    let large: Arc<[u8]> = alloc::vec![0; BATCH_BYTES].into();
    for n in 0..2 {
        commits.push(Place::One(1), Some(large.clone()), false, n, 0);
    }
    assert_eq!(sent(&mut commits), [(1, 1, 1)]);
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        place: Option<usize>,
        writes: bool,
        insists: bool,
    },
    Send,
    Decide {
        at: usize,
        kept: bool,
    },
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::option::weighted(0.8, 0usize..3), any::<bool>(), any::<bool>())
            .prop_map(|(place, writes, insists)| Step::Push { place, writes, insists }),
        3 => Just(Step::Send),
        4 => (0usize..3, prop::bool::weighted(0.7)).prop_map(|(at, kept)| Step::Decide { at, kept }),
        3 => (0usize..5).prop_map(Step::Take),
    ]
}

proptest! {
    /// Each entry takes effect once, in the order in which it was asked, as far as it shares a partition with another; the writes that are
    /// kept stand in that order in the logs.
    #[test]
    fn entries_take_effect_in_the_order_of_the_log(steps in prop::collection::vec(step(), 1..120)) {
        let mut commits = Commits::new(PLACEMENT, 0);
        let mut asked = Vec::new();
        let mut logs = [const { Vec::new() }; 3];
        let mut done: Vec<(u32, bool)> = Vec::new();
        let mut batches: [Option<Batch>; 3] = [const { None }; 3];
        let mut now_s = 0;
        let calm = (0..400).map(|n| match n % 3 {
            0 => Step::Send,
            1 => Step::Take(9),
            _ => Step::Decide { at: n / 3 % 3, kept: true },
        });
        for step in steps.into_iter().chain(calm) {
            match step {
                Step::Push { place, writes, insists } => {
                    let n = asked.len() as u32;
                    let record = writes.then(|| Arc::from(n.to_le_bytes().as_slice()));
                    let at = place.map_or(Place::All, Place::One);
                    if writes || !commits.is_free(at) {
                        commits.push(at, record, insists, n, 0);
                    } else {
                        done.push((n, true));
                    }
                    asked.push((place, writes, insists));
                }
                Step::Send => {
                    now_s += 1;
                    commits.send(now_s, |batch| {
                        let under_way = &mut batches[usize::from(batch.partition)];
                        assert!(under_way.is_none(), "one of each partition");
                        *under_way = Some(batch);
                    });
                }
                Step::Decide { at, kept } => {
                    if let Some(batch) = batches[at].take() {
                        if kept {
                            logs[at].extend(batch.records);
                        }
                        commits.decided(at, batch.number, kept, now_s);
                    }
                }
                Step::Take(most) => {
                    let taken = core::iter::from_fn(|| commits.next()).take(most);
                    done.extend(taken.map(decided));
                }
            }
        }
        prop_assert_eq!((commits.len(), commits.bytes(), done.len()), (0, 0, asked.len()));
        let shares = |one: u32, other: u32| {
            let (one, other) = (asked[one as usize].0, asked[other as usize].0);
            one == other || one.is_none() || other.is_none()
        };
        for (place, (what, kept)) in done.iter().enumerate() {
            for (earlier, _) in done[..place].iter().filter(|(_, kept)| *kept) {
                prop_assert!(earlier < what || !*kept || !shares(*earlier, *what));
            }
            let (at, writes, insists) = asked[*what as usize];
            prop_assert!(*kept || writes && !insists && at.is_some());
        }
        for (at, log) in logs.iter().enumerate() {
            let log = log.iter().map(|record| u32::from_le_bytes(record[..].try_into().expect("four bytes")));
            let is_in = |what: &u32| asked[*what as usize].0.is_none_or(|place| place == at);
            let kept = (0..asked.len() as u32).filter(|what| {
                asked[*what as usize].1 && is_in(what) && done.contains(&(*what, true))
            });
            prop_assert!(log.eq(kept));
        }
    }
}
