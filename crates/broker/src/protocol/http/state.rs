//! The state that HTTP keeps of a connection: a request of which a part has come, the answer that is due, the response that is not yet begun.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use crore_wire::http::body::Chunked;

use crate::base::ids::ShardId;
use crate::base::settings::Slow;
use crate::base::verdict::Identity;
use crate::budget::admission::Client;
use crate::client::progress::Progress;
use crate::mail::{Frames, Record};
use crate::store::rope::Rope;

/// Part of a request, or requests that wait for the one before them.
#[derive(Default)]
pub struct HttpSpill {
    /// Head, then the decoded body, then bytes as received.
    pub data: Vec<u8>,
    /// A chunked body: its decoder, how much is decoded.
    pub chunked: Option<(Chunked, usize)>,
    /// Its head was judged, and its body may come.
    pub judged: bool,
    /// The progress of its body.
    pub progress: Progress,
    /// It begins with a publish that waits for credit.
    pub held: bool,
    /// The verdict on the credential of its first request; `None` while there is none.
    pub who: Option<Identity>,
    /// The verdict is being asked for.
    pub asked: bool,
    /// Bytes of the request, as far as its head has said them: the buffer grows to no more.
    pub whole: usize,
}

/// Buffers below this size are not given back: the allocator would not notice.
const SMALL_BYTES: usize = 4 << 10;

impl HttpSpill {
    /// Bytes of heap that it occupies.
    pub fn bytes(&self) -> usize {
        self.data.capacity()
    }

    /// More came. Room grows by doubling, but not past the request; a head has `head_bytes` at most. When a quarter of a request of
    /// known length is there, room is made for all of it at once, so that little of it is copied. Behind the request comes little:
    /// the beginning of the next one.
    pub fn append(&mut self, bytes: &[u8], head_bytes: usize) {
        let (len, now) = (self.data.len() + bytes.len(), self.data.capacity());
        let most = self.whole.max(head_bytes);
        if now < len {
            // Of a body in chunks only the bound is known.
            let is_known = len <= self.whole && self.chunked.is_none();
            let room = match len <= most {
                true if is_known && len > self.whole / 4 => self.whole,
                true => now.saturating_mul(2).min(most).max(len),
                false => len + len / 8,
            };
            self.data.reserve_exact(room - self.data.len());
        }
        self.data.extend_from_slice(bytes);
    }

    /// Holds no more than this range of its bytes.
    pub fn narrow(&mut self, rest: Range<usize>) {
        self.data.truncate(rest.end);
        self.data.drain(..rest.start);
        if self.data.capacity() > SMALL_BYTES.max(4 * self.data.len()) {
            self.data.shrink_to_fit();
        }
    }
}

/// A request that waits for another shard's answer.
pub enum Pending {
    /// A publish.
    Publish,
    /// `PUT`, `GET` or `DELETE` on a topic.
    Verb(crate::mail::TopicRequest),
    /// The info of this topic at a node of a cluster.
    Info(Box<[u8]>),
    /// The same; other nodes are asked for their subscribers.
    Counted(crate::mail::Info),
    /// `GET /history`: the kept messages of a topic, and the tags that the client has.
    History(Box<[u8]>),
    /// A batch: the homes that have not answered, lines, and what failed.
    Batch(Box<Batch>),
}

/// A batch on its way.
#[derive(Default)]
pub struct Batch {
    /// Homes whose fence has not come back.
    pub homes: u32,
    /// Lines that were handed on and did not fail.
    pub lines: u32,
    /// Those of them that had been published before.
    pub replayed: u32,
    /// Line numbers and reasons.
    pub failed: Vec<(u32, Cow<'static, str>)>,
    /// The highest status that a line alone would have got for such a reason: the answer's where no line was published.
    pub status: u16,
    /// Lines that were read.
    pub number: u32,
    /// Homes, except that of this shard, that were handed a line; a bit each.
    pub asked: [u64; 4],
    /// Lines that the turn of the first ones had no time for, and how many bytes of them the turns since have read.
    pub rest: Vec<u8>,
    pub done: usize,
}

/// A response that waits for its attaches.
#[derive(Default)]
pub struct Attaching {
    /// The response's head.
    pub head: Vec<u8>,
    /// The first messages, encoded.
    pub body: Rope,
    /// Attaches without an answer.
    pub waiting: u32,
    /// For a set: messages to encode when all positions are known; a long-poll holds the first message that came.
    pub held: Vec<Held>,
    /// The bytes that the held records refer to.
    pub frames: Frames,
    /// A topic that has answered was deleted meanwhile.
    pub gone: bool,
    /// The client says `no-cache`, as `EventSource` does: it takes an id without data as the standard has it.
    pub no_cache: bool,
}

/// A message or gap that a connection on several topics holds until the last of them has answered.
pub enum Held {
    /// A message of this part.
    Message(u32, Record),
    /// Messages of this part before this offset are lost.
    Gap(u32, u64),
}

/// The topic that the client's frames are published to.
pub struct PublishTo {
    /// Its keyed hash.
    pub hash: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Frames published so far.
    pub published: u32,
}

/// The progress of a follower. The homes are asked one after the other, so that one page at most is under way.
#[derive(Default)]
pub struct Follow {
    /// The topics that it follows.
    pub filter: Vec<u8>,
    /// The home whose part of the snapshot is due; past the last one the snapshot is whole.
    pub home: ShardId,
    /// That home was asked for the beginning.
    pub begun: bool,
    /// A page is under way.
    pub asked: bool,
    /// The client that it counts for.
    pub client: Client,
    /// Topics with subscribers that it was told of.
    pub topics: u64,
}

/// A gap to report to one subscriber.
pub(crate) struct Gap<'a> {
    /// The topic.
    pub name: &'a [u8],
    /// The position behind them.
    pub id: &'a [u8],
    /// The rule's setting for slow subscribers.
    pub slow: Slow,
    /// The stream had begun.
    pub again: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_part_takes_what_it_is_charged_for() {
        let mut spill = HttpSpill {
            whole: 100_000,
            ..HttpSpill::default()
        };
        for _ in 0..1_000 {
            spill.append(&[7; 100], 8_000);
            assert!(spill.bytes() <= 100_000, "{}", spill.bytes());
        }
        let room_for = |len: usize, chunked: bool| {
            let mut spill = HttpSpill {
                whole: 100_000,
                chunked: chunked.then(Default::default),
                ..HttpSpill::default()
            };
            (0..len / 100).for_each(|_| spill.append(&[7; 100], 8_000));
            spill.bytes()
        };
        assert_eq!(room_for(25_700, false), 100_000);
        assert!(room_for(25_000, false) <= 50_000);
        // The length of a body in chunks is not known.
        assert!(room_for(25_700, true) <= 51_200);
        // The next request has begun, and the buffer of the first is given back.
        spill.narrow(99_990..100_000);
        assert_eq!(spill.data, [7; 10]);
        assert!(spill.bytes() <= SMALL_BYTES);
    }
}
