//! A fair queue: its next item belongs to the party that has received the least work so far. A party is an address, a user or a group, as a number.
//! The items of one party stay in order. A crowd from one address does not delay other addresses, and a party that needs little work is served
//! before one that needs much.
//!
//! The algorithm is start-time fair queueing. A party's *share* is the queue's virtual time when the party came, plus the work done for the party
//! since. The party with the lowest share is next. A party must gain nothing by leaving and coming back. So the queue remembers a party without
//! items until the virtual time reaches the party's share. When the queue runs empty, all parties are equal.

use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Above this number of parties, a party that runs empty frees its allocation. Below it, the party keeps its allocation, so that a short queue does
/// not allocate for each item.
const IDLE_PARTIES_MAX: usize = 64;
/// The maximum number of bytes of the allocations of parties without items.
const IDLE_BYTES_MAX: usize = 16 << 10;
/// The maximum number of parties in `drained`. Bounds the memory for parties without items.
const DRAINED_PARTIES_MAX: usize = 4096;

/// A queue that is fair between parties.
#[derive(Debug)]
pub struct FairQueue<T> {
    parties: BTreeMap<u64, PartyQueue<T>>,
    /// The parties with items, except the served one.
    order: BinaryHeap<Reverse<Entry>>,
    /// The number of entries that were ever added to `order`.
    arrivals: u64,
    /// Parties that ran empty and freed their allocation, in this order. Their shares are remembered. Some may have items again.
    drained: VecDeque<u64>,
    /// The virtual time. It rises to the share of each party that is served.
    virtual_time: u64,
    /// The greatest share so far.
    share_max: u64,
    /// The party whose item was taken last, until it is charged.
    served: Option<u64>,
    len: usize,
    /// Capacity, in items, of the parties with items.
    active_capacity: usize,
    /// Capacity, in items, of the parties without items.
    idle_capacity: usize,
}

/// A party with items, ordered by its share, then by arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    share: u64,
    arrival: u64,
    party: u64,
}

/// The queue of one party.
#[derive(Debug)]
struct PartyQueue<T> {
    items: VecDeque<T>,
    /// The virtual time at which the party started, plus the work done for it since.
    share: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        FairQueue {
            parties: BTreeMap::new(),
            order: BinaryHeap::new(),
            arrivals: 0,
            drained: VecDeque::new(),
            virtual_time: 0,
            share_max: 0,
            served: None,
            len: 0,
            active_capacity: 0,
            idle_capacity: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// Queues an item of this party.
    pub fn push(&mut self, party: u64, item: T) {
        let virtual_time = self.virtual_time;
        let party_queue = self.parties.entry(party).or_insert_with(|| PartyQueue {
            items: VecDeque::new(),
            share: virtual_time,
        });
        let former_capacity = party_queue.items.capacity();
        if party_queue.items.is_empty() {
            self.idle_capacity -= former_capacity;
            if self.served != Some(party) {
                party_queue.share = party_queue.share.max(virtual_time);
                self.arrivals += 1;
                self.order.push(Reverse(Entry {
                    share: party_queue.share,
                    arrival: self.arrivals,
                    party,
                }));
            }
        } else {
            self.active_capacity -= former_capacity;
        }
        party_queue.items.push_back(item);
        self.active_capacity += party_queue.items.capacity();
        self.len += 1;
    }

    /// Queues an item of this party, unless it equals the party's last item.
    pub fn push_once(&mut self, party: u64, item: T)
    where
        T: PartialEq,
    {
        let party_queue = self.parties.get(&party);
        if party_queue.and_then(|party_queue| party_queue.items.back()) != Some(&item) {
            self.push(party, item);
        }
    }

    /// Takes the next item. The caller charges the work on this item with [`FairQueue::charge`].
    pub fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true)
    }

    /// As [`FairQueue::pop`], but passes over the parties that may not be served now. They keep their places. The work is proportional to their number.
    pub fn pop_of(&mut self, may_serve: impl Fn(u64) -> bool) -> Option<T> {
        self.charge(0);
        let mut passed_over = Vec::new();
        let next = loop {
            match self.order.pop() {
                Some(Reverse(entry)) if !may_serve(entry.party) => passed_over.push(Reverse(entry)),
                next => break next,
            }
        };
        self.order.extend(passed_over);
        let Reverse(Entry { share, party, .. }) = next?;
        let party_queue = self.parties.get_mut(&party)?;
        self.virtual_time = self.virtual_time.max(share);
        self.served = Some(party);
        let item = party_queue.items.pop_front()?;
        self.len -= 1;
        if party_queue.items.is_empty() {
            let capacity = party_queue.items.capacity();
            self.active_capacity -= capacity;
            self.idle_capacity += capacity;
        }
        Some(item)
    }

    /// Charges work for the item that was taken last.
    pub fn charge(&mut self, work: u64) {
        let Some(party) = self.served.take() else {
            return;
        };
        let parties = self.parties.len();
        let Some(party_queue) = self.parties.get_mut(&party) else {
            return;
        };
        party_queue.share += work.max(1);
        self.share_max = self.share_max.max(party_queue.share);
        if !party_queue.items.is_empty() {
            self.arrivals += 1;
            self.order.push(Reverse(Entry {
                share: party_queue.share,
                arrival: self.arrivals,
                party,
            }));
        } else if parties > IDLE_PARTIES_MAX || self.idle_capacity * size_of::<T>() > IDLE_BYTES_MAX
        {
            self.idle_capacity -= party_queue.items.capacity();
            party_queue.items = VecDeque::new();
            self.drained.push_back(party);
        }
        if self.order.is_empty() {
            self.virtual_time = self.share_max;
            if self.order.capacity() > IDLE_PARTIES_MAX {
                self.order = BinaryHeap::new();
            }
        }
        self.forget_idle_parties();
    }

    /// Forgets parties in the order in which they ran empty. A party is forgotten when the virtual time has reached its share, or when
    /// `DRAINED_PARTIES_MAX` is exceeded.
    fn forget_idle_parties(&mut self) {
        while let Some(party) = self.drained.front() {
            // A party that has items again only leaves this list. It is listed again when it runs empty.
            let party_queue = self.parties.get(party);
            if let Some(idle) = party_queue.filter(|queue| queue.items.is_empty()) {
                if idle.share > self.virtual_time && self.drained.len() <= DRAINED_PARTIES_MAX {
                    return;
                }
                self.virtual_time = self.virtual_time.max(idle.share);
                self.idle_capacity -= idle.items.capacity();
                self.parties.remove(party);
            }
            self.drained.pop_front();
        }
        if self.drained.capacity() > IDLE_PARTIES_MAX {
            self.drained = VecDeque::new();
        }
    }

    /// The number of items in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Heap bytes of the items and of the parties. Excludes allocations that are kept for reuse.
    pub fn bytes(&self) -> usize {
        let party_bytes = size_of::<(u64, PartyQueue<T>)>() + size_of::<Entry>();
        self.active_capacity * size_of::<T>()
            + (self.order.len() + self.drained.len()) * party_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all items, and charges `work` for each.
    fn drain(queue: &mut FairQueue<u32>, work: impl Fn(u32) -> u64) -> Vec<u32> {
        let pop_and_charge = || {
            let item = queue.pop()?;
            queue.charge(work(item));
            Some(item)
        };
        core::iter::from_fn(pop_and_charge).collect()
    }

    #[test]
    fn requests_of_one_party_delay_no_other() {
        let mut queue = FairQueue::default();
        for item in 0..200 {
            queue.push(1, item);
        }
        queue.push(2, 1_000);
        queue.push(3, 2_000);
        queue.push(2, 1_001);
        let order = drain(&mut queue, |_| 1);
        assert_eq!(order[..6], [0, 1_000, 2_000, 1, 1_001, 2]);
        assert_eq!(order[6..], (3..200).collect::<Vec<u32>>());
        assert!(queue.is_empty());
    }

    #[test]
    fn a_party_that_asks_for_little_is_served_before_one_that_asks_for_much() {
        let mut queue = FairQueue::default();
        for item in 0..10 {
            queue.push(1, item);
            queue.push(2, 100 + item);
        }
        let order = drain(&mut queue, |item| if item < 100 { 1_000 } else { 1 });
        assert_eq!(order[0], 0);
        assert_eq!(order[1..11], (100..110).collect::<Vec<u32>>());
    }

    #[test]
    fn returned_party_gets_no_more_than_its_share() {
        let mut queue = FairQueue::default();
        queue.push(2, 0);
        for item in 1..100 {
            queue.push(1, item);
        }
        drain(&mut queue, |_| 10);
        // Party 2 has received a tenth of the work of party 1.
        for item in 0..10 {
            queue.push(1, item);
            queue.push(2, 100 + item);
        }
        let order = drain(&mut queue, |_| 10);
        let of_two = order[..10].iter().filter(|item| **item >= 100).count();
        assert!((4..=6).contains(&of_two), "{order:?}");
    }

    /// How often each party was served. Each has one item, which is queued again as soon as it was served.
    fn visits_of_returning_parties(parties: u64, rounds: usize) -> Vec<usize> {
        let mut queue = FairQueue::default();
        let mut served = alloc::vec![0; parties as usize];
        // These parties were served earlier. The queue remembers them.
        for former_party in 0..100 {
            queue.push(1_000_000 + former_party, 0);
        }
        while queue.pop().is_some() {}
        for party in 0..parties {
            queue.push(party, party);
        }
        for _ in 0..rounds {
            let mut popped = Vec::new();
            for _ in 0..2 {
                popped.extend(queue.pop());
                queue.charge(5_000);
            }
            for party in popped {
                served[party as usize] += 1;
                queue.push(party, party);
            }
        }
        served
    }

    #[test]
    fn nobody_starves_among_parties_that_always_come_back() {
        for parties in [2, 10, 65, 200] {
            let served = visits_of_returning_parties(parties, parties as usize * 4);
            assert!(served.iter().all(|n| (6..=10).contains(n)), "{served:?}");
        }
        // More parties than the queue remembers: some are served twice before others are served once.
        let served = visits_of_returning_parties(6_000, 6_000);
        assert!(served.iter().all(|n| *n > 0));
    }

    #[test]
    fn party_that_queues_again_while_served_goes_to_the_end() {
        let mut queue = FairQueue::default();
        queue.push(1, 'a');
        queue.push(2, 'b');
        assert_eq!(queue.pop(), Some('a'));
        queue.push(1, 'c');
        queue.charge(7);
        assert_eq!(queue.pop(), Some('b'));
        assert_eq!(queue.pop(), Some('c'));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn party_that_is_passed_over_keeps_its_place() {
        let mut queue = FairQueue::default();
        for (party, item) in [(1, 'a'), (1, 'b'), (2, 'c'), (3, 'd')] {
            queue.push(party, item);
        }
        assert_eq!(queue.pop_of(|party| party != 1), Some('c'));
        assert_eq!(queue.pop_of(|party| party > 3), None);
        assert_eq!(queue.pop(), Some('a'));
        assert_eq!(queue.pop(), Some('d'));
        assert_eq!((queue.pop(), queue.pop()), (Some('b'), None));
    }

    #[test]
    fn an_item_is_not_queued_twice_in_a_row() {
        let mut queue = FairQueue::default();
        for item in [1, 1, 2, 1, 1] {
            queue.push_once(7, item);
        }
        queue.push_once(8, 1);
        let order: Vec<u32> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 1, 2, 1]);
    }

    #[test]
    fn bytes_are_counted_while_items_are_queued() {
        let mut queue = FairQueue::default();
        for party in 0..1_000 {
            for item in 0..40_u64 {
                queue.push(party, item);
            }
        }
        assert!(queue.bytes() >= 40_000 * size_of::<u64>());
        assert_eq!(queue.len(), 40_000);
        while queue.pop().is_some() {}
        assert_eq!((queue.bytes(), queue.len()), (0, 0));
        assert!(queue.parties.len() <= IDLE_PARTIES_MAX);
        assert!(queue.idle_capacity * size_of::<u64>() <= IDLE_BYTES_MAX);
    }

    #[test]
    fn memory_of_a_large_crowd_is_freed() {
        let mut queue = FairQueue::default();
        for item in 0..100_000_u64 {
            queue.push(1, item);
        }
        while queue.pop().is_some() {}
        assert_eq!(
            (queue.idle_capacity, queue.parties.len(), queue.bytes()),
            (0, 0, 0)
        );
    }

    #[test]
    fn queue_that_is_emptied_again_and_again_keeps_its_allocation() {
        let mut queue = FairQueue::default();
        for item in 0..1_000 {
            queue.push(item % 8, item);
            assert_eq!(queue.pop(), Some(item));
        }
        assert_eq!((queue.parties.len(), queue.bytes()), (8, 0));
    }
}
