//! A trie that finds the filters which match a topic. The cost of a match depends on the levels of the topic and on the number of matches, not on the
//! number of filters.
//!
//! A node is one level under one parent. All nodes with text are in one hash index, by parent and text. A parent links directly to its
//! child `+` (the single-level wildcard) and its child `#` (the multi-level wildcard). The last node of a filter has a value, which the owner of the
//! trie chooses. If several topics are to be matched, call [`Filters::prefetch`] first.
//!
//! Invariants: a node exists while a filter ends at it or it has children. For each level of a topic, a match visits at most one node for each *shape* of
//! the filters up to that level. A shape is the set of levels that are `+`: the text of all other levels must be the topic's. Filters with at most
//! [`FREE_WILDCARDS`] levels `+` have few shapes. The number of other shapes is limited, so that a match cannot visit 2^levels nodes.
//!
//! The work is counted as steps of the shard. Opening, finding and closing a filter counts a step for each node that it visits. A match counts a step for
//! every few nodes, since most nodes that it visits are near the root, and these are in the CPU's cache. The matches of a topic are cached until
//! another topic is matched or a filter is opened or closed, because one publish matches several times, and the messages of a burst often have the same topic.
//!
//! Callers validate filters before they open them ([`crore_wire::topic::check_filter`]).

pub(crate) mod matching;
mod shapes;

use alloc::vec::Vec;
use core::cell::Cell;

use crore_wire::topic;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::reason::Reason;
use crate::base::work::Steps;
use crate::store::blobs::{Blob, BlobOwner};
use crate::store::index::{Index, chained};
use crate::store::names::Names;
use crate::store::slab::{NONE, Slab, SlabRow};
use shapes::Shapes;
pub use shapes::{FREE_WILDCARDS, NO_PARTY, RESTORED, SHAPES_MAX};

/// The maximum number of levels of a filter. Usual topic names have under ten. With the worst filters, the cost of a publish grows with the cube of
/// this number, since two `+` may be anywhere: some 20 us with 16 levels, 1 ms with 64.
pub const LEVELS_MAX: usize = 16;
/// The nodes that a match visits in the time of a step.
const NODES_PER_STEP: usize = 4;
/// The matches of a topic are cached if the topic has at most this many.
const CACHED_MATCHES_MAX: usize = 4096;

/// Free bytes of a trie are charged only above this number.
const UNCHARGED_BYTES_MAX: usize = 1 << 20;

/// A flag in `Node::children`: a filter ends at this node.
const ENDS_FILTER: u32 = 1 << 31;

struct Node {
    hash: u32,
    next: u32,
    parent: u32,
    /// The text of the level; `NONE` for `+` and `#`.
    level: Blob,
    /// The value of the filter that ends at this node.
    value: u32,
    /// The number of children, and the flag [`ENDS_FILTER`].
    children: u32,
    /// The child `+`.
    single_level: u32,
    /// The child `#`.
    multi_level: u32,
}

const _: () = assert!(size_of::<Node>() == 32);

impl SlabRow for Node {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Node {
            hash: 0,
            next,
            parent: NONE,
            level: Blob::NONE,
            value: NONE,
            children: 0,
            single_level: NONE,
            multi_level: NONE,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl BlobOwner for Node {
    fn blob_mut(&mut self) -> Option<&mut Blob> {
        Some(&mut self.level)
    }
}

chained!(Node);

/// The trie: open filters, each with a value that the owner chooses.
pub struct Filters {
    nodes: Slab<Node>,
    index: Index,
    levels: Names,
    /// The nodes `+` and `#` of the first level. They have no parent.
    single_level: u32,
    multi_level: u32,
    filters: u32,
    /// The result of [`Filters::bytes`], which each turn reads.
    bytes: usize,
    shapes: Shapes,
    seed: u64,
    steps: Steps,
    cached_matches: Cell<CachedMatches>,
}

/// The cached matches of a topic.
#[derive(Default)]
struct CachedMatches {
    /// Whether no filter was opened or closed since the match.
    is_valid: bool,
    topic: Vec<u8>,
    ids: Vec<u32>,
}

impl Filters {
    /// An empty trie. `seed` keys the hash of levels, against collision attacks. Matches add their work to `steps`.
    pub fn new(seed: u64, steps: &Steps) -> Self {
        Filters {
            nodes: Slab::default(),
            index: Index::default(),
            levels: Names::default(),
            single_level: NONE,
            multi_level: NONE,
            filters: 0,
            bytes: 0,
            shapes: Shapes::default(),
            seed,
            steps: steps.clone(),
            cached_matches: Cell::default(),
        }
    }

    /// Whether no filter is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filters == 0
    }

    /// The number of open filters.
    pub fn len(&self) -> u32 {
        self.filters
    }

    /// Bytes of the nodes, their buckets and their texts. Includes free capacity above `UNCHARGED_BYTES_MAX`.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn count_bytes(&mut self) {
        let occupied = self.nodes.len() as usize * (size_of::<Node>() + 4) + self.levels.bytes();
        let reserved = self.nodes.bytes() + self.index.bytes() + self.levels.reserved_bytes();
        self.bytes = occupied.max(reserved.saturating_sub(UNCHARGED_BYTES_MAX));
    }

    /// Bytes that a filter needs if it shares no node with another filter.
    pub fn bytes_alone(filter: &[u8]) -> usize {
        levels(filter).count() * (size_of::<Node>() + 8) + filter.len()
    }

    /// Whether any open filter matches the topic.
    #[inline]
    pub fn has_match(&self, topic: &[u8]) -> bool {
        let mut has_match = false;
        if !self.is_empty() {
            self.matches(topic, |_| has_match = true);
        }
        has_match
    }

    /// Returns the id of a filter. If the filter is not open, adds it for this party, with the value `NONE`.
    ///
    /// # Errors
    /// [`Reason::FilterLevels`] or [`Reason::FilterShapes`].
    pub fn open(&mut self, filter: &[u8], party: u64) -> Result<u32, Reason> {
        if let Some(id) = self.find(filter) {
            return Ok(id);
        }
        self.shapes.add(filter, party)?;
        self.cached_matches.get_mut().is_valid = false;
        let mut node = NONE;
        for level in levels(filter) {
            self.steps.add(1);
            node = match self.child(node, level) {
                Some(child) => child,
                None => self.add(node, level),
            };
        }
        self.nodes.get_mut(node).children |= ENDS_FILTER;
        self.filters += 1;
        self.count_bytes();
        Ok(node)
    }

    /// The id of a filter, if it is open.
    pub fn find(&self, filter: &[u8]) -> Option<u32> {
        let mut node = NONE;
        for level in levels(filter) {
            self.steps.add(1);
            node = self.child(node, level)?;
        }
        (self.nodes.get(node).children & ENDS_FILTER != 0).then_some(node)
    }

    /// The value of an open filter.
    pub fn value(&self, id: u32) -> u32 {
        self.nodes.get(id).value
    }

    /// Sets the value of an open filter.
    pub fn set_value(&mut self, id: u32, value: u32) {
        self.nodes.get_mut(id).value = value;
    }

    /// The text of an open filter.
    pub fn name(&self, id: u32) -> Vec<u8> {
        let (mut path, mut node_id) = (Vec::new(), id);
        while node_id != NONE {
            let node = self.nodes.get(node_id);
            path.push(self.level(node_id));
            node_id = node.parent;
        }
        path.reverse();
        path.join(&b'/')
    }

    /// The text of a node's level. It may be `+` or `#`.
    fn level(&self, id: u32) -> &[u8] {
        let node = self.nodes.get(id);
        let (single_level, multi_level) = self.wildcards(node.parent);
        match id {
            _ if id == single_level => b"+",
            _ if id == multi_level => b"#",
            _ => self.levels.get(node.level),
        }
    }

    /// The open filter with the lowest id from `from` on.
    pub fn next_open(&self, from: u32) -> Option<u32> {
        let ends_filter = |id: &u32| {
            let node = self.nodes.try_get(*id);
            node.is_some_and(|node| node.children & ENDS_FILTER != 0)
        };
        (from..self.nodes.end()).find(ends_filter)
    }

    /// Removes an open filter.
    pub fn close(&mut self, id: u32) {
        self.filters -= 1;
        self.cached_matches.get_mut().is_valid = false;
        if !self.shapes.is_empty() {
            self.shapes.remove(&self.name(id));
        }
        let node = self.nodes.get_mut(id);
        node.children &= !ENDS_FILTER;
        node.value = NONE;
        let mut node_id = id;
        while node_id != NONE && self.nodes.get(node_id).children == 0 {
            self.steps.add(1);
            node_id = self.prune(node_id);
        }
        self.count_bytes();
    }

    /// Calls `each` for every open filter that matches the topic.
    pub fn matches(&self, topic: &[u8], each: impl FnMut(u32)) {
        if self.is_empty() {
            return;
        }
        let mut cached = self.cached_matches.take();
        if cached.is_valid && cached.topic == topic {
            self.count_visits(cached.ids.len());
        } else {
            cached.topic.clear();
            cached.topic.extend_from_slice(topic);
            cached.ids.clear();
            self.collect(topic, &mut cached.ids);
        }
        cached.ids.iter().copied().for_each(each);
        cached.is_valid = cached.ids.capacity() <= CACHED_MATCHES_MAX;
        if cached.is_valid {
            self.cached_matches.set(cached);
        }
    }

    /// Adds the ids of all open filters that match the topic to `ids`.
    fn collect(&self, topic: &[u8], ids: &mut Vec<u32>) {
        let mut levels = [Level::default(); LEVELS_MAX + 1];
        let mut count = 0;
        for (level, text) in levels.iter_mut().zip(self::levels(topic)) {
            let hash = self.hash_of_level(text);
            *level = Level { text, hash };
            count += 1;
        }
        // No filter has more levels than these, so further levels of the topic do not matter.
        let allows_wildcards = !topic::is_reserved(topic);
        let visited = self.visit(NONE, &levels[..count], allows_wildcards, ids);
        self.count_visits(visited);
    }

    /// Adds the work of visiting `nodes` nodes or matches to the steps.
    pub fn count_visits(&self, nodes: usize) {
        self.steps.add(nodes / NODES_PER_STEP);
    }

    /// Visits a node and its descendants that match `rest`, the remaining levels of the topic. Adds the ids of the filters that match to `ids`. Returns the
    /// number of visited nodes. `allows_wildcards`: whether wildcards may match the next level.
    fn visit(
        &self,
        node_id: u32,
        rest: &[Level<'_>],
        allows_wildcards: bool,
        ids: &mut Vec<u32>,
    ) -> usize {
        let (single_level, multi_level) = self.wildcards(node_id);
        if allows_wildcards && multi_level != NONE {
            ids.push(multi_level);
        }
        let Some((level, rest)) = rest.split_first() else {
            if self.nodes.get(node_id).children & ENDS_FILTER != 0 {
                ids.push(node_id);
            }
            return 1;
        };
        let mut visited = 1;
        let child = match self.has_text_children(node_id) {
            true => self.text_child(node_id, level),
            false => None,
        };
        if let Some(child) = child {
            visited += self.visit(child, rest, true, ids);
        }
        if allows_wildcards && single_level != NONE {
            visited += self.visit(single_level, rest, true, ids);
        }
        visited
    }

    fn wildcards(&self, node_id: u32) -> (u32, u32) {
        if node_id == NONE {
            return (self.single_level, self.multi_level);
        }
        let node = self.nodes.get(node_id);
        (node.single_level, node.multi_level)
    }

    /// Whether a node has children other than `+` and `#`. Many nodes have none, and this check saves the cache misses of a look-up in the index.
    #[inline]
    fn has_text_children(&self, node_id: u32) -> bool {
        if node_id == NONE {
            return true;
        }
        let node = self.nodes.get(node_id);
        let wildcards = u32::from(node.single_level != NONE) + u32::from(node.multi_level != NONE);
        node.children & !ENDS_FILTER > wildcards
    }

    fn child(&self, parent: u32, level: &[u8]) -> Option<u32> {
        let (single_level, multi_level) = self.wildcards(parent);
        match level {
            b"+" => (single_level != NONE).then_some(single_level),
            b"#" => (multi_level != NONE).then_some(multi_level),
            text => {
                let hash = self.hash_of_level(text);
                self.text_child(parent, &Level { text, hash })
            }
        }
    }

    #[inline]
    fn text_child(&self, parent: u32, level: &Level<'_>) -> Option<u32> {
        let is_match =
            |node: &Node| node.parent == parent && self.levels.get(node.level) == level.text;
        self.index
            .find(&self.nodes, hash_under(parent, level.hash), is_match)
    }

    fn hash_of_level(&self, text: &[u8]) -> u64 {
        xxh3_64_with_seed(text, self.seed)
    }

    fn add(&mut self, parent: u32, level: &[u8]) -> u32 {
        let mut node = Node::vacant(NONE);
        node.parent = parent;
        let is_wildcard = self.wildcard_link(parent, level).is_some();
        if !is_wildcard {
            self.steps.add(self.levels.compact(&mut self.nodes));
            node.level = self.levels.insert(level);
            node.hash = hash_under(parent, self.hash_of_level(level));
        }
        let id = self.nodes.insert(node);
        match self.wildcard_link(parent, level) {
            Some(link) => *link = id,
            None => self.index.insert(&mut self.nodes, id),
        }
        if parent != NONE {
            self.nodes.get_mut(parent).children += 1;
        }
        id
    }

    /// Removes a node without children. Returns its parent.
    fn prune(&mut self, id: u32) -> u32 {
        let (parent, level) = (self.nodes.get(id).parent, self.nodes.get(id).level);
        if level != Blob::NONE {
            self.index.remove(&mut self.nodes, id);
            self.levels.remove(level);
        } else {
            let wildcard = match self.wildcards(parent).0 == id {
                true => b"+",
                false => b"#",
            };
            let link = self.wildcard_link(parent, wildcard);
            *link.expect("it is one of both") = NONE;
        }
        self.nodes.remove(id);
        if parent != NONE {
            self.nodes.get_mut(parent).children -= 1;
        }
        parent
    }

    fn wildcard_link(&mut self, parent: u32, level: &[u8]) -> Option<&mut u32> {
        let (single_level, multi_level) = match parent {
            NONE => (&mut self.single_level, &mut self.multi_level),
            _ => {
                let node = self.nodes.get_mut(parent);
                (&mut node.single_level, &mut node.multi_level)
            }
        };
        match level {
            b"+" => Some(single_level),
            b"#" => Some(multi_level),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Level<'a> {
    text: &'a [u8],
    hash: u64,
}

/// The hash of a level under a parent. The upper half of the product depends on all bits of the parent and of the level's hash.
#[inline]
fn hash_under(parent: u32, level: u64) -> u32 {
    let mixed = level ^ u64::from(parent).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32) as u32
}

fn levels(filter: &[u8]) -> impl Iterator<Item = &[u8]> {
    filter.split(|b| *b == b'/')
}

/// Whether both filters match some topic. Each may also be a topic.
pub fn overlap(one: &[u8], other: &[u8]) -> bool {
    let begins_with_wildcard = |filter: &[u8]| matches!(filter.first(), Some(b'+' | b'#'));
    if topic::is_reserved(one) && begins_with_wildcard(other)
        || topic::is_reserved(other) && begins_with_wildcard(one)
    {
        return false;
    }
    let (mut levels_of_one, mut levels_of_other) = (levels(one), levels(other));
    loop {
        match (levels_of_one.next(), levels_of_other.next()) {
            (Some(b"#"), _) | (_, Some(b"#")) | (None, None) => return true,
            (Some(b"+"), Some(_)) | (Some(_), Some(b"+")) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

mod prefetch;

#[cfg(test)]
mod tests;
