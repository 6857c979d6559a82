//! Makes the pages (bounded lists of changes) for readers and watchers of one topic.

use alloc::collections::VecDeque;

use super::peers::Peers;
use super::rows::{Leave, MemberRow, PresenceTopic};
use super::watchers::Watcher;
use crate::mail::presence::{Member, PresenceChange, PresencePage, PresencePosition};
use crate::store::slab::Slab;

/// The maximum number of joins in a watcher's page.
const JOINS_PER_PAGE: usize = 256;
/// The maximum number of leaves that one page examines.
const LEAVES_PER_PAGE: usize = 4_096;
/// The approximate maximum bytes of a page.
const BYTES_PER_PAGE: usize = 64 << 10;

/// The state from which the pages of a topic are made.
pub(super) struct PageSource<'a> {
    pub(super) topic: &'a PresenceTopic,
    pub(super) members: &'a Slab<MemberRow>,
    pub(super) peers: &'a Peers,
    pub(super) table: u32,
    /// The number of the table's last change.
    pub(super) last_change: u64,
}

impl PageSource<'_> {
    fn member<'a>(&self, row: &'a MemberRow) -> Member<'a> {
        row.member(self.peers.process_of(row.conn()))
    }

    /// Adds members that joined after change `after` to a page. Returns the number of the last join.
    pub(super) fn push_members(
        &self,
        after: u64,
        joins_max: usize,
        page: &mut PresencePage,
    ) -> u64 {
        let members_by_join = &self.topic.members_by_join;
        let first = members_by_join.partition_point(|member| self.members.get(*member).id <= after);
        let mut last_join = after;
        for (count, member) in members_by_join.range(first..).enumerate() {
            if count >= joins_max || page.changes.len() >= BYTES_PER_PAGE {
                page.more = true;
                break;
            }
            let member = self.member(self.members.get(*member));
            page.changes.push(&PresenceChange::Join(member));
            last_join = member.id;
        }
        last_join
    }

    /// The next page of a watcher; `None` if there is no news.
    pub(super) fn next_page(
        &self,
        watcher: &mut Watcher,
        (leaves, forgotten_until): (&VecDeque<Leave>, u64),
    ) -> Option<PresencePage> {
        if watcher.leaves_until < forgotten_until {
            (watcher.joins_until, watcher.leaves_until) = (0, self.last_change);
        }
        let mut page = PresencePage {
            counts: self.topic.counts(),
            resets: core::mem::take(&mut watcher.begins_snapshot),
            ..PresencePage::default()
        };
        let is_due = core::mem::take(&mut watcher.is_due);
        let first = leaves.partition_point(|gone| gone.number <= watcher.leaves_until);
        for (count, gone) in leaves.range(first..).enumerate() {
            if count >= LEAVES_PER_PAGE || page.changes.len() >= BYTES_PER_PAGE {
                page.more = true;
                break;
            }
            watcher.leaves_until = gone.number;
            if gone.row.id <= watcher.joins_until {
                let member = gone.row.member(gone.process);
                page.changes.push(&PresenceChange::Leave(member));
            }
        }
        if !page.more {
            watcher.leaves_until = self.last_change;
            watcher.joins_until = self.push_members(watcher.joins_until, JOINS_PER_PAGE, &mut page);
        }
        if !page.more {
            watcher.joins_until = self.last_change;
            page.completes = !core::mem::replace(&mut watcher.has_whole_snapshot, true);
        }
        page.position = PresencePosition {
            table: self.table,
            change: watcher.leaves_until,
        };
        let is_news = !page.changes.is_empty()
            || page.resets
            || page.completes
            || page.more
            || watcher.unlisted != self.topic.unlisted();
        watcher.unlisted = self.topic.unlisted();
        (is_news || is_due).then_some(page)
    }
}
