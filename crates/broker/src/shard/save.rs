//! Taking a snapshot, block by block.
//!
//! Topics come before the records that refer to them, and messages in the order of arrival, so that a reader needs no
//! second pass.

use crate::base::snapshot::Block;
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::snapshot::{Head, kind};
use crate::home::Home;
use crate::log::arrival::Arrivals;
use crate::shard::Shard;

/// The records to be written next, and where to go on with them.
enum Stage {
    Head,
    Topics(u64),
    Filters(u64),
    Groups(u64),
    Losses(u64),
    Forgotten,
    Messages(Option<Arrivals>),
    Answers((usize, Option<u32>)),
    Sessions(u64),
    End,
    Over,
}

/// The progress of a snapshot.
pub(crate) struct Saving {
    head: Head,
    stage: Stage,
    records: u64,
}

impl Shard {
    /// The next block of this shard's snapshot, which begins with the first call; empty behind the last one. With
    /// `bytes_max` the oldest messages are left behind, as with `limits.log_bytes`.
    ///
    /// # Panics
    /// For a shard that is no home.
    pub fn save(&mut self, head: &Head, bytes_max: usize) -> Vec<u8> {
        let mut saving = self.saving.take().unwrap_or_else(|| {
            let (rules, now) = (&self.front.world.rules, self.front.now);
            let beside = self.sessions.saved_bytes();
            let home = self.front.home.as_mut().expect("only homes have something");
            home.shrink(bytes_max.saturating_sub(beside), rules, now);
            Box::new(Saving {
                head: *head,
                stage: Stage::Head,
                records: 0,
            })
        });
        let mut bytes = Vec::new();
        let mut block = Block {
            bytes: &mut bytes,
            records: saving.records,
        };
        while !block.is_full() {
            saving.stage = match saving.stage {
                Stage::Head => {
                    saving.head.write(block.bytes);
                    // A block of its own: it is read before there is a home to read into.
                    saving.stage = Stage::Topics(0);
                    break;
                }
                Stage::Over => {
                    saving.stage = Stage::Over;
                    break;
                }
                stage => self.save_on(stage, &mut block),
            };
        }
        saving.records = block.records;
        self.saving = Some(saving);
        bytes
    }

    fn save_on(&mut self, stage: Stage, block: &mut Block<'_>) -> Stage {
        let home: &mut Home = self.front.home.as_mut().expect("only homes have something");
        // Where to go on, or else the next stage.
        match stage {
            Stage::Topics(from) => match home.save_topics(from, block) {
                Some(next) => Stage::Topics(next),
                None => Stage::Filters(0),
            },
            Stage::Filters(from) => match home.save_filters(from, block) {
                Some(next) => Stage::Filters(next),
                None => Stage::Groups(0),
            },
            Stage::Groups(from) => match home.save_groups(from, block) {
                Some(next) => Stage::Groups(next),
                None => Stage::Losses(0),
            },
            Stage::Losses(from) => match home.save_losses(from, block) {
                Some(next) => Stage::Losses(next),
                None => Stage::Forgotten,
            },
            Stage::Forgotten => {
                home.save_forgotten(&self.front.world.rules, block);
                Stage::Messages(None)
            }
            Stage::Messages(at) => match home.save_messages(at, &self.front.world.rules, block) {
                Some(at) => Stage::Messages(Some(at)),
                None => Stage::Answers((0, None)),
            },
            Stage::Answers(from) => match home.save_answers(from, block) {
                Some(next) => Stage::Answers(next),
                None => Stage::Sessions(0),
            },
            Stage::Sessions(from) => match self.sessions.save(from, self.front.now, block) {
                Some(next) => Stage::Sessions(next),
                None => Stage::End,
            },
            Stage::End => {
                let records = block.records;
                block.record(kind::END).number(records);
                Stage::Over
            }
            Stage::Head | Stage::Over => stage,
        }
    }
}
