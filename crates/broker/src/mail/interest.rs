//! Interest: whether a topic has subscribers. A home (the part of a shard that keeps topics) reports each change to its followers,
//! clients that want to know the topics with subscribers.

use alloc::vec::Vec;

/// The phase of a follower's stream: the snapshot at the beginning, or the live changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterestPart {
    /// Changes as they happen.
    Live,
    /// A page of the snapshot that is not the last.
    SnapshotPage,
    /// The last page of the snapshot of this home.
    LastSnapshotPage,
}

/// Encoded changes. Each is a byte (1: the topic has subscribers, 0: it has none), the length of the name (2 bytes), and the name.
#[derive(Clone, Debug, Default)]
pub struct InterestChanges(Vec<u8>);

impl InterestChanges {
    /// Adds a topic that has got its first subscriber (`has_subscribers`), or has lost its last.
    pub fn push(&mut self, has_subscribers: bool, name: &[u8]) {
        let len = u16::try_from(name.len()).expect("names are shorter");
        self.0.push(u8::from(has_subscribers));
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(name);
    }

    /// The changes in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (bool, &[u8])> {
        let mut rest = &self.0[..];
        core::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk::<3>()?;
            let len = u16::from_le_bytes([head[1], head[2]]) as usize;
            let (name, after) = after.split_at(len);
            rest = after;
            Some((head[0] == 1, name))
        })
    }

    /// The number of encoded bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
