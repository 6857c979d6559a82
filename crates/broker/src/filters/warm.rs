//! Touching ahead what the matches of some topics will read. With a million filters each level of a topic is a bucket, a
//! node and a text that are in no cache, and each leads to the next: topic after topic that is one wait behind the other.
//! Here the topics go down their levels side by side, so that the processor waits for several at once.
//!
//! It finds nothing: of a topic one way is followed, by its texts where there are nodes for them and by `+` elsewhere,
//! and a text is taken for the one that its hash says. What it passes by is read when it is needed.

use super::*;
use crate::deliver::WARMED;

/// A topic on its way down.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// The levels that follow; `None` at its end.
    rest: Option<&'a [u8]>,
    /// Under which node; [`NONE`] at first.
    at: u32,
    hash: u32,
    /// What may be the next node.
    next: u32,
}

impl Filters {
    /// Touches what finding the matches of these topics reads: of so many as are touched together, the first ones.
    pub fn warm<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        if self.is_empty() {
            return;
        }
        let mut ways = [Way {
            rest: None,
            at: NONE,
            hash: 0,
            next: NONE,
        }; WARMED];
        for (way, topic) in ways.iter_mut().zip(topics) {
            way.rest = Some(topic);
        }
        for _ in 0..LEVELS_MAX {
            if ways.iter().all(|way| way.rest.is_none()) {
                break;
            }
            self.warm_level(&mut ways);
        }
    }

    /// One level of each topic: all buckets, then all nodes, then all texts.
    fn warm_level(&self, ways: &mut [Way<'_>]) {
        let mut ended = [false; WARMED];
        for (way, ended) in ways.iter_mut().zip(&mut ended) {
            let Some(rest) = way.rest else { continue };
            let end = rest.iter().position(|b| *b == b'/');
            *ended = end.is_none();
            let end = end.unwrap_or(rest.len());
            if self.has_texts(way.at) {
                way.hash = hash_under(way.at, self.hash_of_level(&rest[..end]));
                way.next = self.index.first(way.hash).unwrap_or(NONE);
            }
            way.rest = Some(rest.get(end + 1..).unwrap_or_default());
        }
        // A chain has one node or two, seldom more.
        for _ in 0..2 {
            for way in ways.iter_mut().filter(|way| way.next != NONE) {
                let node = self.nodes.get(way.next);
                if node.hash != way.hash {
                    way.next = node.next;
                }
            }
        }
        let mut read = 0;
        for (way, ended) in ways.iter_mut().zip(ended) {
            if way.rest.is_none() {
                continue;
            }
            way.at = match core::mem::replace(&mut way.next, NONE) {
                NONE => self.wildcards(way.at).0,
                next => {
                    read ^= self.levels.get(self.nodes.get(next).level).len() as u32;
                    next
                }
            };
            if way.at == NONE || ended {
                way.rest = None;
            }
            if way.at != NONE {
                read ^= self.nodes.get(way.at).value;
            }
        }
        core::hint::black_box(read);
    }
}
