//! Prefetching for the matches of several topics. With a million filters, each level of a topic needs a bucket, a node and a text that are
//! in no CPU cache, and the address of each is known only after the one before was read. If topics are matched one after another, these
//! cache misses add up. Here several topics descend their levels side by side, so that their cache misses overlap.
//!
//! Prefetching finds no matches. For each topic it follows one path: by the node with the level's text if there is one, otherwise by `+`.
//! It compares texts only by their hashes. The match itself reads what is missing.

use super::*;
use crate::base::turn_limits::PREFETCH_ROWS;

/// A topic on its way down the trie.
#[derive(Clone, Copy)]
struct TrieDescent<'a> {
    /// The remaining levels; `None` when the descent has ended.
    rest: Option<&'a [u8]>,
    /// The current node; [`NONE`] above the first level.
    node: u32,
    hash: u32,
    /// Probably the node of the next level: it has the hash of the level's text.
    candidate: u32,
}

impl Filters {
    /// Prefetches what the matches of the first `PREFETCH_ROWS` topics read.
    pub fn prefetch<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        if self.is_empty() {
            return;
        }
        let mut descents = [TrieDescent {
            rest: None,
            node: NONE,
            hash: 0,
            candidate: NONE,
        }; PREFETCH_ROWS];
        for (descent, topic) in descents.iter_mut().zip(topics) {
            descent.rest = Some(topic);
        }
        for _ in 0..LEVELS_MAX {
            if descents.iter().all(|descent| descent.rest.is_none()) {
                break;
            }
            self.prefetch_level(&mut descents);
        }
    }

    /// Prefetches one level of each topic: first all buckets, then all nodes, then all texts.
    fn prefetch_level(&self, descents: &mut [TrieDescent<'_>]) {
        let mut ended = [false; PREFETCH_ROWS];
        for (descent, ended) in descents.iter_mut().zip(&mut ended) {
            let Some(rest) = descent.rest else { continue };
            let end = rest.iter().position(|b| *b == b'/');
            *ended = end.is_none();
            let end = end.unwrap_or(rest.len());
            if self.has_text_children(descent.node) {
                descent.hash = hash_under(descent.node, self.hash_of_level(&rest[..end]));
                descent.candidate = self.index.first(descent.hash).unwrap_or(NONE);
            }
            descent.rest = Some(rest.get(end + 1..).unwrap_or_default());
        }
        // Two rounds, since hash chains rarely have more than two nodes.
        for _ in 0..2 {
            for descent in descents
                .iter_mut()
                .filter(|descent| descent.candidate != NONE)
            {
                let node = self.nodes.get(descent.candidate);
                if node.hash != descent.hash {
                    descent.candidate = node.next;
                }
            }
        }
        // The results of the reads: so the compiler keeps the reads.
        let mut forced_reads = 0;
        for (descent, ended) in descents.iter_mut().zip(ended) {
            if descent.rest.is_none() {
                continue;
            }
            descent.node = match core::mem::replace(&mut descent.candidate, NONE) {
                NONE => {
                    let (single_level, _) = self.wildcards(descent.node);
                    single_level
                }
                next_node => {
                    forced_reads ^= self.levels.get(self.nodes.get(next_node).level).len() as u32;
                    next_node
                }
            };
            if descent.node == NONE || ended {
                descent.rest = None;
            }
            if descent.node != NONE {
                forced_reads ^= self.nodes.get(descent.node).value;
            }
        }
        core::hint::black_box(forced_reads);
    }
}
