//! Which topics have subscribers, as a home tells it to those who follow that.

use alloc::vec::Vec;

/// The part of a follower's stream that some news belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterestPart {
    /// Changes as they happen.
    Live,
    /// A page of the snapshot; there are more.
    More,
    /// The last page of the snapshot of this home.
    Last,
}

/// Topics with and without subscribers, one behind the other: 1 or 0, the length of the name, the name.
#[derive(Clone, Debug, Default)]
pub struct InterestChanges(Vec<u8>);

impl InterestChanges {
    /// Adds a topic whose interest begins or ends.
    pub fn push(&mut self, begins: bool, name: &[u8]) {
        let len = u16::try_from(name.len()).expect("names are shorter");
        self.0.push(u8::from(begins));
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(name);
    }

    /// In the order in which they were added.
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

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
