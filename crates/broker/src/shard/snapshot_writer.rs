//! Writes the records of a snapshot, block by block.
//!
//! A topic is written before the records that refer to it, and messages in the order of arrival, so a reader needs only one pass.
//!
//! A *home* is the part of a shard that keeps topics.

use alloc::vec::Vec;

use crate::base::rules::Rules;
use crate::base::snapshot::{Block, Head, kind};
use crate::budget::admission::Party;
use crate::home::sessions::SessionsAtHome;
use crate::home::unreleased::KeyInSlot;
use crate::home::{AnswerCursor, GroupKey, Home};
use crate::log::arrival::ArrivalCursor;

/// The kind of record to write next, with the cursor from which to continue within that kind.
enum Stage {
    Head,
    /// The row of the topic.
    Topics(u64),
    Filters(u64),
    /// The number of the group.
    Groups(u64),
    /// The index of the partition, and the offset of the loss.
    Losses((usize, u64)),
    Forgotten,
    /// The index of the partition, and the cursor in its log.
    Messages(Option<(usize, ArrivalCursor)>),
    Answers(AnswerCursor),
    /// The last key written.
    Unreleased(Option<KeyInSlot>),
    /// The index of the partition, and the last session written.
    NewestClaims((usize, Option<Party>)),
    /// The last group written.
    GroupPositions(Option<GroupKey>),
    /// The index of the partition, and the session.
    Sessions((usize, u64)),
    /// The index of the partition, and the index of the token.
    RetiredTokens((usize, usize)),
    End,
    Over,
}

pub(crate) struct SnapshotWriter {
    head: Head,
    stage: Stage,
    records: u64,
}

impl SnapshotWriter {
    pub fn new(head: &Head) -> SnapshotWriter {
        SnapshotWriter {
            head: *head,
            stage: Stage::Head,
            records: 0,
        }
    }

    /// The next block; empty after the last one.
    pub fn next(&mut self, home: &Home, sessions: &SessionsAtHome, rules: &Rules) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut block = Block {
            bytes: &mut bytes,
            records: self.records,
        };
        while !block.is_full() {
            self.stage = match core::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Head => {
                    self.head.write(block.bytes);
                    // The head has a block of its own, because a restore reads it before there is a home.
                    self.stage = Stage::Topics(0);
                    break;
                }
                Stage::Over => break,
                stage => stage.write(home, sessions, rules, self.head.unix_s, &mut block),
            };
        }
        self.records = block.records;
        bytes
    }
}

impl Stage {
    /// Writes some records; returns the stage to continue with. `head_s` is the second of the snapshot's head.
    fn write(
        self,
        home: &Home,
        sessions: &SessionsAtHome,
        rules: &Rules,
        head_s: u32,
        block: &mut Block<'_>,
    ) -> Stage {
        match self {
            Stage::Topics(from) => match home.save_topics(from, block) {
                Some(next) => Stage::Topics(next),
                None => Stage::Filters(0),
            },
            Stage::Filters(from) => match home.subscriptions.save_filters(from, block) {
                Some(next) => Stage::Filters(next),
                None => Stage::Groups(0),
            },
            Stage::Groups(from) => match home.subscriptions.save_groups(from, block) {
                Some(next) => Stage::Groups(next),
                None => Stage::Losses((0, 0)),
            },
            Stage::Losses(from) => match home.logs.save_losses(from, block) {
                Some(next) => Stage::Losses(next),
                None => Stage::Forgotten,
            },
            Stage::Forgotten => {
                home.logs.save_forgotten(rules, block);
                home.logs.save_writer_sets(block);
                Stage::Messages(None)
            }
            Stage::Messages(at) => match home.logs.save_messages(at, rules, block) {
                Some(at) => Stage::Messages(Some(at)),
                None => Stage::Answers(AnswerCursor::default()),
            },
            Stage::Answers(from) => match home.retries.save_answers(from, block) {
                Some(next) => Stage::Answers(next),
                None => Stage::Unreleased(None),
            },
            Stage::Unreleased(after) => match home.retries.unreleased.save(after, block) {
                Some(next) => Stage::Unreleased(next),
                None => Stage::NewestClaims((0, None)),
            },
            Stage::NewestClaims(from) => match home.save_newest_claims(from, block) {
                Some(next) => Stage::NewestClaims(next),
                None => Stage::GroupPositions(None),
            },
            Stage::GroupPositions(after) => match home.save_group_positions(after, block) {
                Some(next) => Stage::GroupPositions(next),
                None => Stage::Sessions((0, 0)),
            },
            Stage::Sessions(from) => match sessions.save(from, head_s, block) {
                Some(next) => Stage::Sessions(next),
                None => Stage::RetiredTokens((0, 0)),
            },
            Stage::RetiredTokens(from) => match sessions.save_retired(from, block) {
                Some(next) => Stage::RetiredTokens(next),
                None => Stage::End,
            },
            Stage::End => {
                let records = block.records;
                block.record(kind::END).number(records);
                Stage::Over
            }
            stage @ (Stage::Head | Stage::Over) => stage,
        }
    }
}
