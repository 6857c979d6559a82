//! Types of the table of sessions: delayed wills and, in a cluster, the holders of sessions, the effects of a record of the log, and the work that is
//! due.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::base::ids::{ConnId, ShardId};
use crate::base::time::Now;
use crate::home::retired_tokens::{DueToken, RetiredTokens};
use crate::mail::session::Will;

/// In a cluster: the state of a partition's sessions besides their stored forms.
pub(crate) struct Replicas {
    /// Whether this node is the steward of the partition.
    pub is_steward: bool,
    /// How many times this node has become the steward, or has begun its work as the steward again. Each time it starts over with all work that is due.
    pub stewardship: u32,
    /// Sessions whose will or end this node has begun to record as the steward.
    pub begun_work: BTreeSet<BegunWork>,
    /// Each dead node, until all rows were visited to release the sessions of its connections.
    pub dead_holders: Vec<DeadHolder>,
    /// The sessions, by row.
    pub by_row: BTreeMap<u32, Replica>,
    /// The number of sessions that a connection holds, at any node.
    pub held_count: u32,
    /// Sessions whose will a limit has refused, in the order in which the steward publishes these wills again.
    pub refused_wills: VecDeque<WillRetry>,
    /// Tokens of sessions, and of published wills, that have ended a short time ago.
    pub retired: RetiredTokens,
    /// Tokens of wills that became due a short time ago because their session was claimed or ended.
    pub claimed_wills: RetiredTokens,
}

/// A session whose will or end this node has begun to record as the steward. If the node has become the steward again since then, the record may have
/// been lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BegunWork {
    /// The value of [`Replicas::stewardship`] at that time.
    pub stewardship: u32,
    pub row: u32,
}

/// A session whose will the steward publishes again, because a limit has refused it.
#[derive(Clone, Copy)]
pub(crate) struct WillRetry {
    /// The second in which the steward publishes the will again.
    pub again_s: u32,
    pub row: u32,
}

impl Default for Replicas {
    fn default() -> Replicas {
        Replicas {
            is_steward: false,
            stewardship: 0,
            begun_work: BTreeSet::new(),
            dead_holders: Vec::new(),
            by_row: BTreeMap::new(),
            held_count: 0,
            refused_wills: VecDeque::new(),
            retired: RetiredTokens::default(),
            claimed_wills: RetiredTokens::for_wills(),
        }
    }
}

impl Replicas {
    /// The table for a token that has a will to publish (`has_will`), or has none.
    pub fn tokens_for(&mut self, has_will: bool) -> &mut RetiredTokens {
        match has_will {
            true => &mut self.claimed_wills,
            false => &mut self.retired,
        }
    }

    /// Heap bytes of the retired tokens, and of the list of refused wills.
    pub fn retired_bytes(&self) -> usize {
        let refused = self.refused_wills.capacity() * size_of::<WillRetry>();
        self.retired.bytes() + self.claimed_wills.bytes() + refused
    }

    /// The first second in which this node has something to do for a retired token, or for a refused will.
    pub fn next_due_s(&self) -> u32 {
        let (retired, wills) = (&self.retired, &self.claimed_wills);
        let retired = [retired, wills].map(|it| it.next_due_s(self.is_steward));
        let refused = self.refused_wills.front().filter(|_| self.is_steward);
        let refused = refused.map_or(u32::MAX, |retry| retry.again_s);
        retired[0].min(retired[1]).min(refused)
    }
}

/// A session whose connection has ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeftSession {
    /// The session's token.
    pub token: u64,
    /// Whether the session has ended together with the connection.
    pub has_ended: bool,
}

/// A node that has died. Its connections hold no sessions any more.
#[derive(Clone, Copy)]
pub(crate) struct DeadHolder {
    pub writer: u64,
    /// The second of the log in which the node died. The delays of its sessions' wills and ends begin then.
    pub since_s: u32,
    /// The next row to visit.
    pub next_row: u32,
}

/// The state of a session that all nodes of a cluster know.
pub(crate) struct Replica {
    /// The offset of the last claim.
    pub claim: u64,
    /// The holder of the session; `None` while the client is away.
    pub holder_terms: Option<HolderTerms>,
    /// The connection of this node that holds the session.
    pub local_holder: Option<(ShardId, ConnId)>,
}

/// The node and the terms of the connection that holds a session.
#[derive(Clone, Copy)]
pub(crate) struct HolderTerms {
    /// The writer of the claim.
    pub writer: u64,
    /// The seconds for which the session outlives the connection.
    pub expiry_s: u32,
}

/// The place of a record in the log.
#[derive(Clone, Copy)]
pub struct LogPlace {
    /// The offset of the record.
    pub offset: u64,
    /// The process that wrote the record.
    pub writer: u64,
    /// The time of the log at this record.
    pub now: Now,
}

/// The effects of a record besides the change of the table.
#[derive(Default)]
pub struct Consequences {
    /// Whether the record was void: the condition of its [`Fence`](crate::mail::session::record::Fence) was not met.
    pub is_void: bool,
    /// Whether a connection of any node has taken over the session from another connection of any node.
    pub is_takeover: bool,
    /// The connection of this node that has lost the session.
    pub fenced_holder: Option<(ShardId, ConnId)>,
    /// The stored form of a session for which homes must keep messages from now on.
    pub newly_needed: Option<Box<[u8]>>,
    /// The stored form of a session for which homes need not keep messages any longer.
    pub no_longer_needed: Option<Box<[u8]>>,
}

impl Consequences {
    pub(crate) fn void() -> Consequences {
        Consequences {
            is_void: true,
            ..Consequences::default()
        }
    }
}

/// Work that is due. Only the steward publishes wills and records ends. Every node does the rest.
pub(crate) enum DueInLog {
    /// The steward publishes this will of the session with this name.
    Will(Box<[u8]>, Box<Will>),
    /// The steward records the end of the session with this name.
    End(Box<[u8]>),
    /// A session or a will has ended some time ago: every node releases its token, and the steward publishes the will.
    Retired(DueToken),
    /// This call has visited this many rows, to release the sessions of a dead node. The caller carries out the effects.
    Released(u32, Vec<Consequences>),
}

/// A will that is published at the end of its delay, unless the client connects again before.
pub(crate) struct DelayedWill {
    pub will: Box<Will>,
    /// The second in which the delay ends.
    pub due_s: u32,
}

impl DelayedWill {
    pub fn new(will: Box<Will>, now: Now) -> Box<DelayedWill> {
        let due_s = second_after(now, will.delay_s);
        Box::new(DelayedWill { will, due_s })
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        size_of::<DelayedWill>() + self.will.bytes()
    }
}

/// The first second in which `seconds` whole seconds have passed. It is one second later than the sum, because a part of the current second is over.
pub(crate) fn second_after(now: Now, seconds: u32) -> u32 {
    now.unix_s.saturating_add(seconds).saturating_add(1)
}
