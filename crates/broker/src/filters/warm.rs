//! Reading ahead for the matches of several topics. With a million filters, each level of a topic is a bucket, a node
//! and a text that are in no cache, and each leads to the next: topic by topic, these waits add up. Here the topics go
//! down their levels side by side, so that the processor waits for several at once.
//!
//! It finds nothing: for each topic it follows one way, by text nodes where there are some and by `+` elsewhere, and
//! compares texts by their hash only. The match reads what this has missed.

use super::*;
use crate::base::pace::WARMED;

/// A topic on its way down the trie.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// The following levels; `None` at its end.
    rest: Option<&'a [u8]>,
    /// The present node; [`NONE`] at first.
    at: u32,
    hash: u32,
    /// The probable next node.
    next: u32,
}

impl Filters {
    /// Reads ahead for the matches of these topics, as many of them as are read together.
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
