//! Makes the pages (bounded lists of changes) for readers and watchers of one topic.

use alloc::collections::VecDeque;

use super::rows::{Gone, Row, Topic};
use super::watchers::Watcher;
use crate::mail::presence::{PresenceChange, PresencePage, PresencePosition};
use crate::store::slab::Slab;

/// The maximum number of joins in a watcher's page.
const MEMBERS_PER_PAGE: usize = 256;
/// The maximum number of leaves that one page examines.
const GONE_PER_PAGE: usize = 4_096;
/// The approximate maximum bytes of a page.
const BYTES_PER_PAGE: usize = 64 << 10;

/// The state from which the pages of a topic are made.
pub(super) struct Source<'a> {
    pub(super) topic: &'a Topic,
    pub(super) members: &'a Slab<Row>,
    pub(super) table: u32,
    /// The number of the table's last change.
    pub(super) changed: u64,
}

impl Source<'_> {
    /// Adds members that joined after change `after` to a page. Returns the number of the last join.
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

    /// The next page of a watcher; `None` if there is no news.
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
