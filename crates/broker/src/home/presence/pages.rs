//! The pages (bounded parts) for readers and watchers of one topic.

use alloc::collections::VecDeque;

use super::rows::{Gone, Row, Topic};
use super::watchers::Watcher;
use crate::mail::presence::{PresenceChange, PresencePage, PresencePosition};
use crate::store::slab::Slab;

/// The number of members of a page.
const MEMBERS_PER_PAGE: usize = 256;
/// The members that have left which one page looks at.
const GONE_PER_PAGE: usize = 4_096;
/// The bytes of a page, about.
const BYTES_PER_PAGE: usize = 64 << 10;

/// What pages of a topic are made of.
pub(super) struct Source<'a> {
    pub(super) topic: &'a Topic,
    pub(super) members: &'a Slab<Row>,
    pub(super) table: u32,
    /// The last change of the table.
    pub(super) changed: u64,
}

impl Source<'_> {
    /// Adds members that came after change `after` to a page. Returns the number of the last one.
    pub(super) fn push_members(&self, after: u64, most: usize, page: &mut PresencePage) -> u64 {
        let order = &self.topic.order;
        let first = order.partition_point(|member| self.members.get(*member).id <= after);
        let mut last = after;
        for (count, member) in order.range(first..).enumerate() {
            if count >= most || page.changes.len() >= BYTES_PER_PAGE {
                page.more = true;
                break;
            }
            let member = self.members.get(*member).member();
            page.changes.push(&PresenceChange::Join(member));
            last = member.id;
        }
        last
    }

    /// The next page of a watcher. `None` if it need not be told anything.
    pub(super) fn next_page(
        &self,
        watcher: &mut Watcher,
        (gone, floor): (&VecDeque<Gone>, u64),
    ) -> Option<PresencePage> {
        if watcher.left < floor {
            (watcher.joined, watcher.left) = (0, self.changed);
        }
        let mut page = PresencePage {
            counts: self.topic.counts(),
            resets: core::mem::take(&mut watcher.begins),
            ..PresencePage::default()
        };
        let is_due = core::mem::take(&mut watcher.is_due);
        let first = gone.partition_point(|gone| gone.left <= watcher.left);
        for (count, gone) in gone.range(first..).enumerate() {
            if count >= GONE_PER_PAGE || page.changes.len() >= BYTES_PER_PAGE {
                page.more = true;
                break;
            }
            watcher.left = gone.left;
            if gone.row.id <= watcher.joined {
                page.changes.push(&PresenceChange::Leave(gone.row.member()));
            }
        }
        if !page.more {
            watcher.left = self.changed;
            watcher.joined = self.push_members(watcher.joined, MEMBERS_PER_PAGE, &mut page);
        }
        if !page.more {
            watcher.joined = self.changed;
            page.completes = !core::mem::replace(&mut watcher.is_whole, true);
        }
        page.position = PresencePosition {
            table: self.table,
            change: watcher.left,
        };
        let is_news = !page.changes.is_empty()
            || page.resets
            || page.completes
            || page.more
            || watcher.unlisted != self.topic.unlisted;
        watcher.unlisted = self.topic.unlisted;
        (is_news || is_due).then_some(page)
    }
}
