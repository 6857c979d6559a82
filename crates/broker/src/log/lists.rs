//! The lists of the log: the entries of each rule in the order of arrival, oldest first. Every few entries, one entry is a *mark*. The marks of a
//! list are sorted by offset, so a search finds any offset and any second in a few steps.
//!
//! Invariants: an entry is in the list of its chain's rule, and in no other. At most [`MARK_EVERY`] entries are between two marks, also after
//! removals. Each list is in the order of arrival, also after a change of rules.
//!
//! A *chain* is the list of a topic's messages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::base::rules::Rules;
use crate::base::work::Steps;
use crate::log::entry::{Chain, Entry, MARKED};
use crate::store::slab::{NONE, Slab};

/// The number of entries from one mark to the next. It is low in tests, so that short lists have several marks.
pub(super) const MARK_EVERY: u32 = if cfg!(test) { 4 } else { 64 };

/// The lists of a log, indexed by the number of their rule. The last list has the retained messages.
pub(super) struct Lists(Vec<List>);

/// The list of a rule.
struct List {
    oldest: u32,
    youngest: u32,
    /// The rule's time to live; 0: none.
    ttl_s: u32,
    marks: ListMarks,
    /// The entry that `Log::remove_unspared` examines next, or `NONE`.
    next_searched: u32,
}

/// The marks of one list.
#[derive(Default)]
struct ListMarks {
    /// Offset and entry of each mark.
    sorted: VecDeque<(u64, u32)>,
    /// The number of entries added since the last mark. Removals do not change this number.
    unmarked: u32,
}

impl ListMarks {
    /// Counts an added entry. Returns whether it becomes a mark.
    fn add(&mut self, offset: u64, id: u32) -> bool {
        self.unmarked += 1;
        let is_mark = self.unmarked == MARK_EVERY;
        if is_mark {
            self.unmarked = 0;
            self.sorted.push_back((offset, id));
        }
        is_mark
    }

    /// Replaces the mark at `offset` by `older`, or removes the mark if `older` is `None`.
    fn replace(&mut self, offset: u64, older: Option<(u64, u32)>) {
        let at = self.sorted.partition_point(|mark| mark.0 < offset);
        debug_assert!(self.sorted[at].0 == offset);
        match older {
            Some(older) => self.sorted[at] = older,
            None => drop(self.sorted.remove(at)),
        }
    }

    /// The last mark at or before `offset`.
    fn last_at_or_before(&self, offset: u64) -> Option<u32> {
        let at = self.sorted.partition_point(|mark| mark.0 <= offset);
        Some(self.sorted[at.checked_sub(1)?].1)
    }
}

/// How entries move between lists when the rules change.
pub(super) struct ListMoves {
    lists: usize,
    /// Item `n`: whether entries move from list `n / lists` to list `n % lists`.
    is_moved: Vec<bool>,
}

impl ListMoves {
    pub fn new(former: usize, lists: usize) -> ListMoves {
        let is_moved = alloc::vec![false; former * lists];
        ListMoves { lists, is_moved }
    }

    pub fn add(&mut self, from: u8, to: u8) {
        self.is_moved[usize::from(from) * self.lists + usize::from(to)] = true;
    }

    /// The list to which all entries of the list `from` move, if no others move there.
    fn only_target(&self, from: usize) -> Option<usize> {
        let row = &self.is_moved[from * self.lists..][..self.lists];
        let mut moves = (0..self.lists).filter(|to| row[*to]);
        let to = moves.next()?;
        let sources = self.is_moved.chunks(self.lists).filter(|row| row[to]);
        (moves.next().is_none() && sources.count() == 1).then_some(to)
    }
}

impl Lists {
    /// Lists without entries, one for each rule.
    pub fn new(rules: &Rules) -> Lists {
        let list = |number| List {
            oldest: NONE,
            youngest: NONE,
            ttl_s: rules.get(number as u8).ttl_s,
            marks: ListMarks::default(),
            next_searched: NONE,
        };
        Lists((0..rules.count()).map(list).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of the list of retained messages.
    pub fn retained(&self) -> u8 {
        (self.0.len() - 1) as u8
    }

    /// The oldest entry of a list, or `NONE`.
    pub fn oldest(&self, number: u8) -> u32 {
        self.0[number as usize].oldest
    }

    /// The entry of a list that the search examines next, or `NONE`.
    pub fn next_searched(&self, number: u8) -> u32 {
        self.0[number as usize].next_searched
    }

    /// Advances the search to the next entry.
    pub fn advance_search(&mut self, entries: &Slab<Entry>, number: u8) {
        let list = &mut self.0[number as usize];
        list.next_searched = entries.get(list.next_searched).younger;
    }

    /// Restarts the search at the oldest entries.
    pub fn restart_search(&mut self) {
        self.0
            .iter_mut()
            .for_each(|list| list.next_searched = list.oldest);
    }

    /// A rule's time to live; 0: none.
    pub fn ttl_s(&self, number: u8) -> u32 {
        self.0[number as usize].ttl_s
    }

    /// Changes only the times to live: each topic keeps the number of its rule.
    pub fn change_ttls(&mut self, rules: &Rules) {
        for (number, list) in self.0.iter_mut().enumerate() {
            list.ttl_s = rules.get(number as u8).ttl_s;
        }
    }

    /// Appends an entry to a list.
    pub fn append(&mut self, entries: &mut Slab<Entry>, number: u8, id: u32) {
        let list = &mut self.0[number as usize];
        let offset = entries.get(id).offset;
        let marked = MARKED * u8::from(list.marks.add(offset, id));
        let older = core::mem::replace(&mut list.youngest, id);
        if older == NONE {
            list.oldest = id;
        } else {
            entries.get_mut(older).younger = id;
        }
        if list.next_searched == NONE {
            list.next_searched = id;
        }
        let entry = entries.get_mut(id);
        entry.flags |= marked;
        (entry.older, entry.younger) = (older, NONE);
    }

    /// Removes an entry from its list. If the entry is a mark, the entry before it becomes one.
    pub fn remove(&mut self, entries: &mut Slab<Entry>, number: u8, id: u32) {
        let list = &mut self.0[number as usize];
        let entry = entries.get(id);
        let (offset, older, younger) = (entry.offset, entry.older, entry.younger);
        if entry.flags & MARKED != 0 {
            let older_entry = (older != NONE).then(|| entries.get_mut(older));
            let new_mark = older_entry
                .filter(|entry| entry.flags & MARKED == 0)
                .map(|entry| {
                    entry.flags |= MARKED;
                    (entry.offset, older)
                });
            list.marks.replace(offset, new_mark);
        }
        if list.next_searched == id {
            list.next_searched = younger;
        }
        if older == NONE {
            list.oldest = younger;
        } else {
            entries.get_mut(older).younger = younger;
        }
        if younger == NONE {
            list.youngest = older;
        } else {
            entries.get_mut(younger).older = older;
        }
    }

    /// The first entry of a list after an offset, or `NONE`.
    pub fn first_after(
        &self,
        entries: &Slab<Entry>,
        number: u8,
        offset: u64,
        steps: &Steps,
    ) -> u32 {
        let list = &self.0[number as usize];
        if list.youngest == NONE || entries.get(list.youngest).offset <= offset {
            return NONE;
        }
        let mut id = list.marks.last_at_or_before(offset).unwrap_or(list.oldest);
        steps.add(1);
        while entries.get(id).offset <= offset {
            steps.add(1);
            id = entries.get(id).younger;
        }
        id
    }

    /// The offset of the last entry of a list that arrived by this second, or 0.
    pub fn last_arrived_by(
        &self,
        entries: &Slab<Entry>,
        number: u8,
        time_s: u32,
        steps: &Steps,
    ) -> u64 {
        let list = &self.0[number as usize];
        let has_arrived = |id: u32| entries.get(id).time_s <= time_s;
        let marks = list
            .marks
            .sorted
            .partition_point(|mark| has_arrived(mark.1));
        let mut last_offset = 0;
        let mut id = match marks.checked_sub(1) {
            Some(mark) => list.marks.sorted[mark].1,
            None => list.oldest,
        };
        steps.add(1);
        while id != NONE && has_arrived(id) {
            steps.add(1);
            let entry = entries.get(id);
            (last_offset, id) = (entry.offset, entry.younger);
        }
        last_offset
    }

    /// Moves the entries to the lists of these rules. The caller has given the chains the numbers of their new rules. If all entries of a list move
    /// to one list, and no others move there, the list only gets another number.
    pub fn move_entries(
        &mut self,
        entries: &mut Slab<Entry>,
        chains: &Slab<Chain>,
        rules: &Rules,
        moves: &ListMoves,
    ) {
        let former = core::mem::replace(self, Lists::new(rules));
        let mut moved = Vec::new();
        for (from, list) in former.0.into_iter().enumerate() {
            match moves.only_target(from) {
                Some(to) => {
                    let ttl_s = self.0[to].ttl_s;
                    self.0[to] = List { ttl_s, ..list };
                }
                None => list.collect_entries(entries, &mut moved),
            }
        }
        moved.sort_unstable();
        for (_, id) in moved {
            let entry = entries.get_mut(id);
            entry.flags &= !MARKED;
            let number = chains.get(entry.chain).rule;
            self.append(entries, number, id);
        }
    }

    /// All entries, with their offsets.
    pub fn entries_by_offset(&self, entries: &Slab<Entry>) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        self.0
            .iter()
            .for_each(|list| list.collect_entries(entries, &mut all));
        all
    }

    /// Updates the marks after the entries got other offsets, in the same order.
    pub fn update_marks(&mut self, entries: &Slab<Entry>) {
        let marks = self.0.iter_mut().flat_map(|list| &mut list.marks.sorted);
        marks.for_each(|(offset, id)| *offset = entries.get(*id).offset);
    }

    /// The marks of a list by offset.
    #[cfg(test)]
    pub fn marks(&self, number: usize) -> impl Iterator<Item = (u64, u32)> {
        self.0[number].marks.sorted.iter().copied()
    }
}

impl List {
    /// Appends the entries, with their offsets, to `all`.
    fn collect_entries(&self, entries: &Slab<Entry>, all: &mut Vec<(u64, u32)>) {
        let mut id = self.oldest;
        while id != NONE {
            let entry = entries.get(id);
            all.push((entry.offset, id));
            id = entry.younger;
        }
    }
}
