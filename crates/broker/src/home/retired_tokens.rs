//! Tokens of MQTT sessions and wills that have ended a short time ago, in a cluster. Homes recognise copies of the messages of such a session or will
//! by keys with its token (`unreleased.rs`). Nodes release the keys a minute after the end, because copies can come until then: a node that was cut
//! off, or a steward that died, may have appended a message that the log stores late. A node that is cut off publishes no will
//! (`shard/session_replicas.rs`).
//!
//! The table is derived from the records of the sessions' partition, so it is the same at all nodes. Snapshots contain it. The steward releases the
//! keys first, and the other nodes half a minute later, when normally no key is left. So no key stays if a node dies.
//!
//! A will that a claim makes due stays here until its token is released. A new steward publishes it again; its key prevents a second message if the
//! last steward has published it. The will is lost only if no steward publishes it within a minute.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Block, Damaged, FieldReader, kind};
use crate::budget::admission::{Counts, Party};
use crate::mail::session::Will;

/// The steward releases a token this many seconds after the end.
const STEWARD_S: u32 = 60;
/// The other nodes release it this many seconds after the end.
const OTHERS_S: u32 = 90;
/// A process that releases no keys, because it reads the log or makes a checkpoint, forgets a token after this many seconds of the log. A node that
/// serves forgets a token when it releases the keys. That may be late, since all nodes may have been cut off for minutes.
const FORGOTTEN_S: u32 = 120;

/// A session or a will that has ended.
struct Retired {
    /// The second of the log in which the session or the will ended.
    end_s: u32,
    token: u64,
    /// The will, if the steward must publish it.
    will: Option<Box<Will>>,
    /// The party of the session, and the bytes that the party is charged. `None` if restored from a snapshot, which does not contain the party.
    charged: Option<(Party, usize)>,
}

/// The work of a node for a token.
pub(crate) enum DueToken {
    /// The steward publishes this will.
    Publish(Box<Will>),
    /// Every node releases the keys with this token.
    Release(u64),
}

impl Retired {
    fn will_bytes(&self) -> usize {
        self.will.as_ref().map_or(0, |will| will.bytes())
    }
}

/// The tokens in the order in which their sessions and wills ended.
#[derive(Default)]
pub(crate) struct RetiredTokens {
    all: VecDeque<Retired>,
    /// As the steward, this node has published the wills of this many tokens, the first ones.
    published: usize,
    /// Whether this process releases keys.
    pub releases: bool,
    will_bytes: usize,
}

impl RetiredTokens {
    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Retired>() + self.will_bytes
    }

    /// Adds the token of a session or a will (0: none) that ended in second `end_s` of the log. The `payer` is charged for the will and for this many
    /// bytes of keys until the token is released.
    pub fn insert(
        &mut self,
        (token, will): (u64, Option<Box<Will>>),
        end_s: u32,
        payer: Option<(Party, usize)>,
        counts: &Counts,
    ) {
        let is_old = |it: &Retired| it.end_s.saturating_add(FORGOTTEN_S) <= end_s;
        while !self.releases && self.all.front().is_some_and(is_old) {
            self.pop(counts);
        }
        if token != 0 || will.is_some() {
            let mut retired = Retired {
                end_s,
                token,
                will,
                charged: None,
            };
            let will_bytes = retired.will_bytes();
            self.will_bytes += will_bytes;
            retired.charged = payer.map(|(party, key_bytes)| (party, will_bytes + key_bytes));
            if let Some((party, bytes)) = retired.charged {
                counts.change_absent(party, 0, bytes);
            }
            self.all.push_back(retired);
        }
    }

    fn pop(&mut self, counts: &Counts) -> Option<Retired> {
        let first = self.all.pop_front()?;
        self.will_bytes -= first.will_bytes();
        if let Some((party, bytes)) = first.charged {
            counts.change_absent(party, bytes, 0);
        }
        self.published = self.published.saturating_sub(1);
        if self.all.is_empty() {
            self.all = VecDeque::new();
        }
        Some(first)
    }

    /// Makes a new steward publish all wills, since the last steward may not have published them.
    pub fn publish_all_again(&mut self) {
        self.published = 0;
    }

    /// The first second in which this node has something to do.
    pub fn next_due_s(&self, is_steward: bool) -> u32 {
        match self.all.front() {
            Some(_) if is_steward && self.published < self.all.len() => 0,
            Some(first) => first.end_s.saturating_add(release_s(is_steward)),
            None => u32::MAX,
        }
    }

    /// The next work of this node; `None` if nothing is due. The steward examines each token once; `Some(None)` if the token has no will to publish.
    pub fn next_due(
        &mut self,
        is_steward: bool,
        now_s: u32,
        counts: &Counts,
    ) -> Option<Option<DueToken>> {
        let first = self.all.front()?;
        if first.end_s.saturating_add(release_s(is_steward)) <= now_s {
            let first = self.pop(counts);
            return Some(first.map(|first| DueToken::Release(first.token)));
        }
        if !is_steward {
            return None;
        }
        let next = self.all.get(self.published)?;
        self.published += 1;
        Some(next.will.clone().map(DueToken::Publish))
    }

    /// Writes the tokens from index `from` on. Returns the index to continue with, if any are left.
    pub fn save(
        &self,
        partition: PartitionId,
        from: usize,
        block: &mut Block<'_>,
    ) -> Option<usize> {
        for (n, retired) in self.all.iter().enumerate().skip(from) {
            if block.is_full() {
                return Some(n);
            }
            let mut out = block.record(kind::RETIRED_TOKEN);
            out.number(partition.into());
            out.number(retired.end_s.into());
            out.word(retired.token);
            out.byte(retired.will.is_some().into());
            if let Some(will) = &retired.will {
                will.write(&mut out);
            }
        }
        None
    }

    /// Reads a token. Returns the second of its end, the token, and its will.
    ///
    /// # Errors
    /// The record is malformed.
    pub fn read(from: &mut FieldReader<'_>) -> Result<(u32, u64, Option<Box<Will>>), Damaged> {
        let (end_s, token) = (from.number32()?, from.word()?);
        let will = match from.byte()? {
            0 => None,
            _ => Some(Box::new(Will::read(from)?)),
        };
        Ok((end_s, token, will))
    }
}

fn release_s(is_steward: bool) -> u32 {
    match is_steward {
        true => STEWARD_S,
        false => OTHERS_S,
    }
}
