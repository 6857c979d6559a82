//! Tests messages that arrive before a response to a request by filter begins. Each of them must either be in the response, or lie after the position that
//! the response tells the client, where the next request finds it, but not both.

use proptest::prelude::*;

use crate::budget::admission::Client;
use crate::mail::AttachOutcome;
use crate::mail::message::{Headers, NewMessage};
use crate::protocol::http::filter_response::*;

const PARTITIONS: PartitionId = 2;

#[derive(Clone, Debug)]
enum Step {
    /// The home's page (bounded run of past messages) of a partition, after new messages with these timestamps were published. The page has all messages of the
    /// partition so far. The flag tells whether the log ends there.
    Page(PartitionId, Vec<u32>, bool),
    /// A live message of a partition, after this many messages that the filters do not match, with this timestamp.
    Live(PartitionId, u64, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (
            0..PARTITIONS,
            prop::collection::vec(1..5_u32, 0..2),
            prop::bool::weighted(0.8)
        )
            .prop_map(|(partition, times, at_head)| Step::Page(partition, times, at_head)),
        (0..PARTITIONS, 0..2_u64, 1..5_u32)
            .prop_map(|(partition, skipped, time_s)| Step::Live(partition, skipped, time_s)),
    ];
    prop::collection::vec(step, 0..16)
}

fn push(frames: &mut Frames, offset: u64, time_s: u32) -> Record {
    frames.push(&NewMessage {
        topic: 0,
        offset,
        previous: 0,
        owner: Client::NOBODY,
        time_s,
        latest: false,
        headers: Headers::default(),
        frame: b"frame",
        whole: None,
    })
}

/// A pending response under test, and what its partitions have published.
struct Waiting {
    filter_response: PendingFilterResponse,
    poll: bool,
    /// The last offset of each partition.
    heads: [u64; PARTITIONS as usize],
    /// The partition, offset and timestamp of each message.
    published: Vec<(PartitionId, u64, u32)>,
}

impl Waiting {
    fn publish(&mut self, partition: PartitionId, skipped: u64, time_s: u32) -> (u64, u32) {
        let head = &mut self.heads[usize::from(partition)];
        *head += skipped + 1;
        self.published.push((partition, *head, time_s));
        (*head, time_s)
    }

    fn step(&mut self, step: &Step) {
        let mut frames = Frames::default();
        let name = frames.push_name(b"a/b");
        match step {
            Step::Page(partition, times, at_head) => {
                if self.filter_response.has_answered(*partition) {
                    return;
                }
                for time_s in times {
                    self.publish(*partition, 0, *time_s);
                }
                let all = self.published.iter();
                let records: Vec<Record> = all
                    .filter(|message| message.0 == *partition)
                    .map(|(_, offset, time_s)| push(&mut frames, *offset, *time_s))
                    .collect();
                let page = FilterPage {
                    attached: AttachOutcome::Yes,
                    partition: *partition,
                    first: 0,
                    count: records.len() as u32,
                    first_name: 0,
                    head: self.heads[usize::from(*partition)],
                    snapshot_end: 0,
                    losses_before: 0,
                    epoch: 0,
                    at_head: *at_head,
                    gap: false,
                };
                let most = match self.poll {
                    true => CollectLimit::OneMessage,
                    false => CollectLimit::Bytes(12),
                };
                let records = records.iter().map(|record| (name, record));
                let taken = self
                    .filter_response
                    .take_page(&page, records, &frames, most);
                assert!(taken.is_some(), "a page that was asked for");
            }
            Step::Live(partition, skipped, time_s) => {
                let (offset, time_s) = self.publish(*partition, *skipped, *time_s);
                let record = push(&mut frames, offset, time_s);
                let bounds = Bounds {
                    bytes: usize::MAX,
                    messages: 2,
                };
                let message = (&b"a/b"[..], &record, &frames);
                let held = self
                    .filter_response
                    .hold_live(*partition, message, bounds, self.poll);
                assert_eq!(held, Some(()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_message_is_in_the_response_or_beyond_its_position(steps in steps(), poll: bool) {
        let mut waiting = Waiting {
            filter_response: PendingFilterResponse::new(usize::from(PARTITIONS)),
            poll,
            heads: [0; PARTITIONS as usize],
            published: Vec::new(),
        };
        for step in &steps {
            waiting.step(step);
        }
        let filter_response = &mut waiting.filter_response;
        filter_response.mark_held_sent();
        let held: Vec<(PartitionId, u64)> = filter_response
            .held()
            .0
            .iter()
            .map(|held| (held.partition, held.record.offset))
            .collect();
        prop_assert!(!poll || held.len() <= 1);
        let positions = filter_response.positions(0, true);
        for (partition, offset, _) in waiting.published {
            let at = &positions[usize::from(partition)];
            let is_read_next = !at.is_live && offset > at.offset;
            let is_held = held.contains(&(partition, offset));
            prop_assert!(is_held != is_read_next, "{partition}: {offset}, position {}", at.offset);
        }
    }
}
