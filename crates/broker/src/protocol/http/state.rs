//! The state of an HTTP connection: a partly received request, an answer for which the client waits, and a response that has not
//! begun.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use crore_wire::http::body::ChunkedDecoder;

use crate::base::ids::ShardId;
use crate::base::settings::SlowConsumerPolicy;
use crate::base::verdict::Identity;
use crate::budget::admission::Client;
use crate::client::progress::Progress;
use crate::mail::{Frames, Record};
use crate::store::rope::Rope;

/// A partly received request, or requests that wait for an earlier one.
#[derive(Default)]
pub struct HttpSpill {
    /// The head, then the decoded body, then bytes as received.
    pub data: Vec<u8>,
    /// For a chunked body: the decoder, and the number of decoded bytes.
    pub chunked: Option<(ChunkedDecoder, usize)>,
    /// The head was judged, and the body is awaited.
    pub is_judged: bool,
    /// The progress of the body (see `client/progress.rs`).
    pub progress: Progress,
    /// The bytes wait for the connection's turn or for credit.
    pub is_held: bool,
    /// The verdict (accepted with an identity, or refused) on the credential of the first request. `None` while there is none.
    pub verdict: Option<Identity>,
    /// The verdict is awaited.
    pub awaits_verdict: bool,
    /// The length of the request, as its head announces it. The buffer does not grow beyond it.
    pub request_bytes: usize,
}

/// Buffers below this size are not shrunk, since the allocator would gain nothing.
const SMALL_BYTES: usize = 4 << 10;

impl HttpSpill {
    /// The bytes of its heap.
    pub fn bytes(&self) -> usize {
        self.data.capacity()
    }

    /// Appends received bytes. The capacity doubles, but does not exceed the announced length; a head has at most `head_bytes`.
    /// After a quarter of a request of known length, the capacity becomes that length at once, so that little is copied. Only the
    /// beginning of the next request may follow.
    pub fn append(&mut self, bytes: &[u8], head_bytes: usize) {
        let (len, capacity) = (self.data.len() + bytes.len(), self.data.capacity());
        let bytes_max = self.request_bytes.max(head_bytes);
        if capacity < len {
            // For a chunked body, `whole` is only an upper bound.
            let is_known = len <= self.request_bytes && self.chunked.is_none();
            let new_capacity = match len <= bytes_max {
                true if is_known && len > self.request_bytes / 4 => self.request_bytes,
                true => capacity.saturating_mul(2).min(bytes_max).max(len),
                false => len + len / 8,
            };
            self.data.reserve_exact(new_capacity - self.data.len());
        }
        self.data.extend_from_slice(bytes);
    }

    /// Keeps only this range of the bytes.
    pub fn keep_range(&mut self, rest: Range<usize>) {
        self.data.truncate(rest.end);
        self.data.drain(..rest.start);
        if self.data.capacity() > SMALL_BYTES.max(4 * self.data.len()) {
            self.data.shrink_to_fit();
        }
    }
}

/// A request that waits for another shard's answer.
pub enum PendingAnswer {
    /// A publish.
    Publish,
    /// `PUT`, `GET` or `DELETE` on a topic.
    Verb(crate::mail::TopicRequest),
    /// A topic's info, at a node of a cluster.
    Info(Box<[u8]>),
    /// A topic's info, while other nodes are asked for their number of subscribers.
    Counted(crate::mail::TopicInfo),
    /// `GET /history`: the kept messages of a topic. Contains the tags that the client has.
    History(Box<[u8]>),
    /// `GET /presence`: who subscribes to a topic.
    Presence(Box<PresenceRequest>),
    /// Commands of Centrifugo's protocol, while they are handed to the connection of their session.
    Commands,
    /// A batch that is not finished.
    Batch(Box<Batch>),
}

/// A request for the members of a topic.
pub struct PresenceRequest {
    /// The topic.
    pub name: Box<[u8]>,
    /// The tags that the client has.
    pub tags: Box<[u8]>,
    /// The id of the last member that the client has.
    pub after: u64,
    /// The client asks only for the number of members.
    pub counts_only: bool,
}

/// A batch (many messages in one request) that is not finished.
#[derive(Default)]
pub struct Batch {
    /// The homes (parts of shards that keep topics) whose fence has not returned. A fence returns after all earlier lines.
    pub fences_due: u32,
    /// The lines that were handed to homes and have not failed.
    pub accepted_lines: u32,
    /// The lines that had been published before (retries).
    pub replayed_lines: u32,
    /// The numbers of the refused lines, and the reasons.
    pub failures: Vec<(u32, Cow<'static, str>)>,
    /// The highest status that one of the failed lines would have got alone. It is the batch's status if no line was published.
    pub worst_status: u16,
    /// The number of lines that were read.
    pub line_number: u32,
    /// The homes on other shards that received a line, one bit each.
    pub asked_homes: [u64; 4],
    /// The lines that the first turn did not publish, and the number of bytes of them that later turns have published.
    pub unread: Vec<u8>,
    pub unread_start: usize,
}

/// A response that waits for homes to answer its attaches (subscribe requests).
#[derive(Default)]
pub struct PendingResponse {
    /// The response's head.
    pub head: Vec<u8>,
    /// The first messages, encoded.
    pub body: Rope,
    /// The number of unanswered attaches.
    pub unanswered_attaches: u32,
    /// With several topics: messages to encode when all positions are known. For a long-poll: its first message.
    pub held: Vec<HeldItem>,
    /// The bytes that the held records refer to.
    pub frames: Frames,
    /// A topic that had answered was deleted in the meantime.
    pub is_topic_deleted: bool,
    /// The client sends `no-cache`, as `EventSource` does, so it treats an id without data as the standard demands.
    pub no_cache: bool,
}

/// A message or gap that a connection with several topics holds until all homes have answered.
pub enum HeldItem {
    /// A message for the subscription with this index.
    Message(u32, Record),
    /// Messages for the subscription with this index are lost, up to this offset (exclusive).
    Gap(u32, u64),
}

/// The topic to which the client's frames are published.
pub struct PublishTarget {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The name.
    pub name: Box<[u8]>,
    /// The number of published frames.
    pub frame_count: u32,
}

/// The progress of a follower of interest (which topics have subscribers), or of a watcher of a topic's members. At most one page (bounded part of the
/// snapshot) is in flight. The homes are asked one after the other for interest; a watcher asks the home of its topic alone.
#[derive(Default)]
pub struct FollowProgress {
    /// The filter of topics; the topic of a watcher.
    pub filter: Vec<u8>,
    /// It watches the members of a topic.
    pub watches_members: bool,
    /// The home that is being asked. After the last home, the snapshot is complete.
    pub home: ShardId,
    /// The current home has been sent the first request.
    pub is_home_asked: bool,
    /// A page is in flight.
    pub is_page_in_flight: bool,
    /// The client for which the follower is counted.
    pub client: Client,
    /// The number of reported topics that have subscribers.
    pub reported_topics: u64,
}

/// A gap (lost messages) to report to one subscriber.
pub(crate) struct Gap<'a> {
    /// The topic, or the filter.
    pub name: &'a [u8],
    /// The position after the gap.
    pub id: &'a [u8],
    /// The rule's setting for slow subscribers.
    pub slow: SlowConsumerPolicy,
    /// The stream has begun already.
    pub is_stream_begun: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_request_takes_the_memory_that_it_is_charged_for() {
        let mut spill = HttpSpill {
            request_bytes: 100_000,
            ..HttpSpill::default()
        };
        for _ in 0..1_000 {
            spill.append(&[7; 100], 8_000);
            assert!(spill.bytes() <= 100_000, "{}", spill.bytes());
        }
        let room_for = |len: usize, chunked: bool| {
            let mut spill = HttpSpill {
                request_bytes: 100_000,
                chunked: chunked.then(Default::default),
                ..HttpSpill::default()
            };
            (0..len / 100).for_each(|_| spill.append(&[7; 100], 8_000));
            spill.bytes()
        };
        assert_eq!(room_for(25_700, false), 100_000);
        assert!(room_for(25_000, false) <= 50_000);
        // The length of a chunked body is unknown.
        assert!(room_for(25_700, true) <= 51_200);
        // The next request has begun, and the buffer of the first one is freed.
        spill.keep_range(99_990..100_000);
        assert_eq!(spill.data, [7; 10]);
        assert!(spill.bytes() <= SMALL_BYTES);
    }
}
