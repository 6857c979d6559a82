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
struct Descent<'a> {
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
        let mut descents = [Descent {
            rest: None,
            at: NONE,
            hash: 0,
            next: NONE,
        }; WARMED];
        for (descent, topic) in descents.iter_mut().zip(topics) {
            descent.rest = Some(topic);
        }
        for _ in 0..LEVELS_MAX {
            if descents.iter().all(|descent| descent.rest.is_none()) {
                break;
            }
            self.warm_level(&mut descents);
        }
    }

    /// One level of each topic: all buckets, then all nodes, then all texts.
    fn warm_level(&self, descents: &mut [Descent<'_>]) {
        let mut ended = [false; WARMED];
        for (descent, ended) in descents.iter_mut().zip(&mut ended) {
            let Some(rest) = descent.rest else { continue };
            let end = rest.iter().position(|b| *b == b'/');
            *ended = end.is_none();
            let end = end.unwrap_or(rest.len());
            if self.has_texts(descent.at) {
                descent.hash = hash_under(descent.at, self.hash_of_level(&rest[..end]));
                descent.next = self.index.first(descent.hash).unwrap_or(NONE);
            }
            descent.rest = Some(rest.get(end + 1..).unwrap_or_default());
        }
        // A chain has one node or two, seldom more.
        for _ in 0..2 {
            for descent in descents.iter_mut().filter(|descent| descent.next != NONE) {
                let node = self.nodes.get(descent.next);
                if node.hash != descent.hash {
                    descent.next = node.next;
                }
            }
        }
        let mut read = 0;
        for (descent, ended) in descents.iter_mut().zip(ended) {
            if descent.rest.is_none() {
                continue;
            }
            descent.at = match core::mem::replace(&mut descent.next, NONE) {
                NONE => self.wildcards(descent.at).0,
                next => {
                    read ^= self.levels.get(self.nodes.get(next).level).len() as u32;
                    next
                }
            };
            if descent.at == NONE || ended {
                descent.rest = None;
            }
            if descent.at != NONE {
                read ^= self.nodes.get(descent.at).value;
            }
        }
        core::hint::black_box(read);
    }
}
