//! The grants of connections with credentials: a table with a row (entry) of 14 bytes for each connection. The rows are allocated
//! in pages of 512 rows. A page exists only while one of its rows is used.
//!
//! Invariant: the index of a row is the slot of its connection. The row is removed with the connection.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::access::{Grants, VerifiedClient};

/// The rows of a page. A page has 7 KiB.
const ROWS_PER_PAGE: usize = 512;

struct GrantsPage {
    grants: [Option<Arc<Grants>>; ROWS_PER_PAGE],
    until_unix_s: [u32; ROWS_PER_PAGE],
    channels: [u16; ROWS_PER_PAGE],
    used: u32,
}

impl GrantsPage {
    fn new() -> Box<GrantsPage> {
        Box::new(GrantsPage {
            grants: [const { None }; ROWS_PER_PAGE],
            until_unix_s: [0; ROWS_PER_PAGE],
            channels: [0; ROWS_PER_PAGE],
            used: 0,
        })
    }
}

/// The table of grants, by connection.
#[derive(Default)]
pub struct ConnectionGrants {
    pages: Vec<Option<Box<GrantsPage>>>,
    /// A spare page, so that single requests with credentials do not allocate a page each time.
    spare: Option<Box<GrantsPage>>,
    used: u32,
}

const fn page_and_row(slot: u32) -> (usize, usize) {
    (slot as usize / ROWS_PER_PAGE, slot as usize % ROWS_PER_PAGE)
}

impl ConnectionGrants {
    /// The number of connections with a row.
    pub fn len(&self) -> u32 {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn page(&self, slot: u32) -> Option<(&GrantsPage, usize)> {
        let (page, row) = page_and_row(slot);
        Some((self.pages.get(page)?.as_deref()?, row))
    }

    /// The connection's grants, and the Unix second in which they expire.
    pub fn get(&self, slot: u32) -> Option<(&Arc<Grants>, u32)> {
        let (page, row) = self.page(slot)?;
        Some((page.grants[row].as_ref()?, page.until_unix_s[row]))
    }

    /// The number of channels that are counted for the connection's user. The caller sets it to 0 before the row is removed.
    pub fn channels_mut(&mut self, slot: u32) -> Option<&mut u16> {
        let (page, row) = page_and_row(slot);
        let page = self.pages.get_mut(page)?.as_deref_mut()?;
        page.grants[row].is_some().then(|| &mut page.channels[row])
    }

    pub fn set(&mut self, slot: u32, known: VerifiedClient) {
        let (page, row) = page_and_row(slot);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let spare = &mut self.spare;
        let page =
            self.pages[page].get_or_insert_with(|| spare.take().unwrap_or_else(GrantsPage::new));
        if page.grants[row].replace(known.grants).is_none() {
            page.used += 1;
            self.used += 1;
        }
        page.until_unix_s[row] = known.until_unix_s;
    }

    pub fn remove(&mut self, slot: u32) -> Option<Arc<Grants>> {
        let (page, row) = page_and_row(slot);
        let page_entry = self.pages.get_mut(page)?;
        let found = page_entry.as_deref_mut()?;
        let grants = found.grants[row].take()?;
        debug_assert_eq!(found.channels[row], 0, "its user still has them");
        found.used -= 1;
        self.used -= 1;
        if found.used == 0 {
            self.spare = page_entry.take();
        }
        Some(grants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_members_exists_while_one_of_them_is_known() {
        assert!(size_of::<GrantsPage>() <= ROWS_PER_PAGE * 14 + 8);
        let mut table = ConnectionGrants::default();
        let known = |until_unix_s| VerifiedClient {
            grants: Arc::new(Grants::default()),
            until_unix_s,
        };
        for slot in [3, 3, 511, 512, 100_000] {
            table.set(slot, known(slot));
        }
        assert_eq!(table.len(), 4);
        assert_eq!(table.pages.iter().flatten().count(), 3);
        assert!(
            table
                .get(511)
                .is_some_and(|(_, until_unix_s)| until_unix_s == 511)
        );
        assert!(table.get(4).is_none() && table.get(5_000_000).is_none());
        assert!(table.remove(4).is_none());
        for slot in [3, 511, 512, 100_000] {
            assert!(table.remove(slot).is_some());
            assert!(table.get(slot).is_none());
        }
        assert!(table.is_empty());
        assert_eq!(table.pages.iter().flatten().count(), 0);
    }
}
