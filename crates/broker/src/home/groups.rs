//! Shared subscriptions (MQTT 5.0 section 4.8.2): a group gets each message once, through one of its members.
//!
//! A group has one cursor at each home: the messages before it were given to a member. A member has credit: the number
//! of unacknowledged messages that it may still be given. The next message goes to the next member with credit, in
//! turn. While none has any, the cursor stands still and the messages wait in the log, as they do while all members are
//! away. Messages that a member gives back unacknowledged go to another before anything newer; those that it does not
//! give back (QoS 2, or of a session that is kept) stay its own [MQTT-4.8.2-4, -5].
//!
//! Invariants: a group lives while a session has subscribed to it, connected or away; each message that a living group's
//! filter matches is kept for it, within the limits of the log.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crore_wire::topic;

use super::Home;
use crate::base::ids::ShardId;
use crate::base::rules::Rules;
use crate::base::snapshot::Block;
use crate::base::snapshot::{Damaged, In, kind};
use crate::base::time::Now;
use crate::filters::Filters;
use crate::log::arrival::Arrival;
use crate::mail::lanes::Lanes;
use crate::mail::{LeaveGroup, Record, ReplyTo, Tell, Unacked};
use crate::store::slab::{NONE, Side};

struct Member {
    shard: ShardId,
    to: ReplyTo,
    credit: u32,
}

impl Member {
    /// Compares the shards too: connections of two shards may have the same row and the same generation.
    fn is(&self, shard: ShardId, to: ReplyTo) -> bool {
        self.shard == shard && self.to == to
    }
}

struct Group {
    filter: Box<[u8]>,
    name: Box<[u8]>,
    /// The filter's row.
    row: u32,
    /// Sessions that have subscribed, those that are away too.
    sessions: u32,
    members: Vec<Member>,
    /// The place of the member that is next.
    turn: usize,
    /// The last message that a member was given, or that came before the group.
    cursor: u64,
    /// There may be more in the log.
    behind: bool,
    /// Whether it waits among the pages that the home owes.
    owed: bool,
    /// Messages that members gave back.
    again: VecDeque<Unacked>,
}

impl Group {
    /// The next member that may have a message.
    fn next(&mut self) -> Option<&mut Member> {
        let count = self.members.len();
        let at = (0..count)
            .map(|n| (self.turn + n) % count)
            .find(|at| self.members[*at].credit > 0)?;
        self.turn = at + 1;
        let member = &mut self.members[at];
        member.credit -= 1;
        Some(member)
    }

    fn has_credit(&self) -> bool {
        self.members.iter().any(|member| member.credit > 0)
    }

    /// Bytes of heap that it occupies, without the topics of messages given back.
    fn own_bytes(&self) -> usize {
        size_of::<Group>()
            + self.filter.len()
            + self.name.len()
            + self.members.capacity() * size_of::<Member>()
            + self.again.capacity() * size_of::<Unacked>()
    }

    /// Whether it may have a message for a member with credit.
    fn waits(&self) -> bool {
        (self.behind || !self.again.is_empty()) && self.has_credit()
    }
}

/// Bytes of the topics of messages given back.
fn topics_bytes<'a>(all: impl IntoIterator<Item = &'a Unacked>) -> usize {
    all.into_iter().map(|unacked| unacked.topic.len()).sum()
}

/// The groups of a home.
pub(super) struct Groups {
    filters: Filters,
    /// The groups of each filter.
    lists: Side<Vec<u64>>,
    all: BTreeMap<u64, Group>,
    /// Groups so far: a number is never used again.
    ids: u64,
    /// Bytes of all groups.
    bytes: usize,
    /// The groups that get the message at hand.
    due: Vec<u64>,
}

impl Groups {
    pub fn new(seed: u64) -> Self {
        Groups {
            filters: Filters::new(seed),
            lists: Side::new(),
            all: BTreeMap::new(),
            ids: 0,
            bytes: 0,
            due: Vec::new(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// Bytes of the groups, with their members and the messages given back.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds to a group, and counts the bytes that it grows by.
    fn grow(&mut self, id: u64, add: impl FnOnce(&mut Group) -> usize) {
        if let Some(group) = self.all.get_mut(&id) {
            let before = group.own_bytes();
            self.bytes += add(group);
            self.bytes += group.own_bytes() - before;
        }
    }

    /// See [`Filters::warm`].
    pub fn warm<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.warm(topics);
    }

    /// Finds the groups that get a message; says whether there are any.
    pub fn find(&mut self, name: &[u8]) -> bool {
        let (lists, due) = (&self.lists, &mut self.due);
        due.clear();
        let filters = &self.filters;
        filters.matches(name, |row| {
            due.extend_from_slice(lists.get(filters.value(row)))
        });
        !due.is_empty()
    }

    fn id_of(&self, filter: &[u8], name: &[u8]) -> Option<u64> {
        let list = self
            .lists
            .get(self.filters.value(self.filters.find(filter)?));
        list.iter().copied().find(|id| *self.all[id].name == *name)
    }

    fn make(&mut self, filter: &[u8], name: &[u8], cursor: u64) -> Option<u64> {
        let row = self.filters.open(filter).ok()?;
        self.ids += 1;
        let id = self.ids;
        match self.filters.value(row) {
            NONE => {
                let list = self.lists.insert(alloc::vec![id]);
                self.filters.set_value(row, list);
            }
            list => self.lists.get_mut(list).push(id),
        }
        let group = Group {
            filter: filter.into(),
            name: name.into(),
            row,
            sessions: 0,
            members: Vec::new(),
            turn: 0,
            cursor,
            behind: false,
            owed: false,
            again: VecDeque::new(),
        };
        self.bytes += group.own_bytes();
        self.all.insert(id, group);
        Some(id)
    }

    fn end(&mut self, id: u64) {
        let group = self.all.remove(&id).expect("it was there");
        self.bytes -= group.own_bytes() + topics_bytes(&group.again);
        let list_id = self.filters.value(group.row);
        let list = self.lists.get_mut(list_id);
        list.retain(|other| *other != id);
        if list.is_empty() {
            self.lists.remove(list_id);
            self.filters.close(group.row);
        }
    }
}

impl Home {
    /// A member joins; `counts` when its session has not subscribed before.
    #[allow(clippy::too_many_arguments)] // what a request says
    pub fn group_join(
        &mut self,
        from: ShardId,
        to: ReplyTo,
        (filter, name): (&[u8], &[u8]),
        credit: u32,
        counts: bool,
        lanes: &mut Lanes,
    ) {
        let cursor = self.sequence;
        let found = self.groups.id_of(filter, name);
        // A session without a group counts as new, even if it had subscribed before.
        let counts = counts || found.is_none();
        let id = found.or_else(|| self.groups.make(filter, name, cursor));
        if let Some(id) = id {
            self.groups.grow(id, |group| {
                group.sessions += u32::from(counts);
                group.members.push(Member {
                    shard: from,
                    to,
                    credit,
                });
                0
            });
        }
        lanes.tell(
            from,
            Tell::GroupJoined {
                to,
                group: id,
                counts,
            },
        );
        if let Some(id) = id {
            self.pump_later(id);
        }
    }

    /// A member has room for so many messages more.
    pub fn group_credit(&mut self, from: ShardId, id: u64, to: ReplyTo, count: u32) {
        let Some(group) = self.groups.all.get_mut(&id) else {
            return;
        };
        self.log.steps.add(group.members.len());
        let mut members = group.members.iter_mut();
        if let Some(member) = members.find(|member| member.is(from, to)) {
            member.credit += count;
            self.pump_later(id);
        }
    }

    /// A member goes and gives back what it has not acknowledged; `ends` when its session subscribes no more.
    pub fn group_leave(&mut self, from: ShardId, leave: &LeaveGroup) {
        let LeaveGroup {
            group: id,
            to,
            ref unacked,
            ends,
        } = *leave;
        self.groups.grow(id, |group| {
            group.again.extend(unacked.iter().cloned());
            topics_bytes(unacked)
        });
        let Some(group) = self.groups.all.get_mut(&id) else {
            return;
        };
        group.members.retain(|member| !member.is(from, to));
        group.sessions -= u32::from(ends);
        if group.sessions == 0 {
            return self.groups.end(id);
        }
        self.pump_later(id);
    }

    /// A session that was away subscribes no more.
    pub fn group_release(&mut self, filter: &[u8], name: &[u8]) {
        let Some(id) = self.groups.id_of(filter, name) else {
            return;
        };
        let group = self.groups.all.get_mut(&id).expect("it was just found");
        group.sessions -= 1;
        if group.sessions == 0 {
            self.groups.end(id);
        }
    }

    /// The message at hand goes to each group that [`Groups::find`] has found, now or when its turn comes.
    pub(super) fn tell_groups(&mut self, name: &[u8], record: Record, lanes: &mut Lanes) {
        let due = core::mem::take(&mut self.groups.due);
        for id in &due {
            let group = self.groups.all.get_mut(id).expect("it was just found");
            if group.behind || !group.again.is_empty() {
                group.behind = true;
                continue;
            }
            let group_id = *id;
            match group.next() {
                Some(member) => {
                    let (shard, to) = (member.shard, member.to);
                    group.cursor = record.offset;
                    let name = lanes.frames().push_name(name);
                    let tell = Tell::Shared {
                        to,
                        group: group_id,
                        name,
                        record,
                    };
                    lanes.tell(shard, tell);
                }
                None => group.behind = true,
            }
        }
        self.groups.due = due;
    }

    /// A group may have something to give: it gets its turn.
    fn pump_later(&mut self, id: u64) {
        let Some(group) = self.groups.all.get_mut(&id) else {
            return;
        };
        if group.waits() && !group.owed {
            group.owed = true;
            self.owe_group(id);
        }
    }

    /// Gives a group its waiting messages, as far as credit and the length of a page allow; then it queues behind the
    /// others again.
    pub(super) fn pump(&mut self, id: u64, rules: &Rules, now: Now, lanes: &mut Lanes) {
        let Some(mut group) = self.groups.all.remove(&id) else {
            return;
        };
        group.owed = false;
        let mut most = self.pace.page_messages;
        while group.has_credit() && most > 0 {
            let Some(Unacked { topic, offset }) = group.again.pop_front() else {
                break;
            };
            most -= 1;
            self.groups.bytes -= topic.len();
            self.log.steps.add(1 + group.members.len());
            if let Some(record) = self.message_at(&topic, offset, lanes) {
                give(&mut group, id, &topic, record, lanes);
            }
        }
        if group.behind && group.again.is_empty() {
            self.read_on(id, &mut group, rules, now, lanes);
        }
        self.groups.all.insert(id, group);
        self.pump_later(id);
    }

    fn read_on(&mut self, id: u64, group: &mut Group, rules: &Rules, now: Now, lanes: &mut Lanes) {
        let lists = (0..rules.retained()).map(|number| (number, group.cursor));
        let mut at = self.log.arrivals(lists, group.cursor);
        let mut most = self.pace.page_messages;
        for _ in 0..self.pace.page_visits {
            self.log.steps.add(1);
            if !group.has_credit() || most == 0 {
                return;
            }
            match self.log.next_arrival(&mut at) {
                None => {
                    (group.behind, group.cursor) = (false, self.sequence);
                    return;
                }
                Some(Arrival::Doomed { offset }) => group.cursor = offset,
                Some(Arrival::Lost { offset, topic, .. }) => {
                    let name = self.names.get(self.rows.get(topic).name);
                    self.stats.gaps += u64::from(topic::matches(&group.filter, name));
                    group.cursor = offset;
                }
                Some(Arrival::Kept {
                    id: entry,
                    offset,
                    topic,
                    rule,
                    time_s,
                }) => {
                    let name = self.names.get(self.rows.get(topic).name);
                    let matches = topic::matches(&group.filter, name);
                    if now.unix_s.saturating_sub(time_s) >= rules.get(rule).log_age_s {
                        // It counts as lost, though it is not dropped yet.
                        self.stats.gaps += u64::from(matches);
                    } else if matches && !self.log.is_expired(entry, now.unix_s) {
                        let name = name.to_vec();
                        let record = self.log.copy(entry, lanes.frames());
                        self.log.steps.add(group.members.len());
                        most -= 1;
                        give(group, id, &name, record, lanes);
                    }
                    group.cursor = offset;
                }
            }
        }
    }

    /// One message of a topic, if the log still has it.
    fn message_at(&mut self, name: &[u8], offset: u64, lanes: &mut Lanes) -> Option<Record> {
        let hash = self.hash_of(name);
        let id = self.find(hash, name)?;
        let frames = lanes.frames();
        let before = frames.pages.len();
        self.log
            .read(self.rows.get(id).log, offset - 1, 1, usize::MAX, frames);
        if frames.pages.len() == before {
            // Nothing was read: the last of `pages` belongs to another answer.
            return None;
        }
        let record = frames.pages.pop()?;
        (record.offset == offset).then_some(record)
    }
}

fn give(group: &mut Group, id: u64, name: &[u8], record: Record, lanes: &mut Lanes) {
    let member = group.next().expect("somebody has credit");
    let (shard, to) = (member.shard, member.to);
    let name = lanes.frames().push_name(name);
    let tell = Tell::Shared {
        to,
        group: id,
        name,
        record,
    };
    lanes.tell(shard, tell);
}

impl Home {
    /// From the group `from` on; returns where to go on.
    pub(crate) fn save_groups(&self, from: u64, block: &mut Block<'_>) -> Option<u64> {
        for (id, group) in self.groups.all.range(from..) {
            if block.is_full() {
                return Some(*id);
            }
            let mut out = block.record(kind::GROUP);
            out.field(&group.filter);
            out.field(&group.name);
            out.number(u64::from(group.sessions));
            out.number(group.cursor);
            out.number(group.again.len() as u64);
            for Unacked { topic, offset } in &group.again {
                out.field(topic);
                out.number(*offset);
            }
        }
        None
    }

    /// Reads a group. It has no members, and may be behind.
    pub(crate) fn restore_group(&mut self, from: &mut In<'_>) -> Result<(), Damaged> {
        let (filter, name) = (from.field()?, from.field()?);
        let (sessions, cursor) = (from.number32()?, from.number()?);
        let count = from.number()?;
        let one = |_| {
            let topic = from.field()?.into();
            let offset = from.number()?;
            Ok(Unacked { topic, offset })
        };
        let again = (0..count).map(one);
        let again: VecDeque<Unacked> = again.collect::<Result<_, _>>()?;
        if let Some(id) = self.groups.make(filter, name, cursor) {
            self.groups.grow(id, |group| {
                (group.sessions, group.behind, group.again) = (sessions, true, again);
                topics_bytes(&group.again)
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_groups_hold_is_counted_until_they_end() {
        let mut groups = Groups::new(7);
        let id = groups.make(b"a/+", b"workers", 0).expect("there is room");
        let alone = groups.bytes();
        assert_eq!(alone, size_of::<Group>() + 3 + 7);
        groups.grow(id, |group| {
            let unacked = Unacked {
                topic: [b'x'; 1000].into(),
                offset: 9,
            };
            group.again.push_back(unacked);
            topics_bytes(&group.again)
        });
        assert!(groups.bytes() >= alone + 1000 + size_of::<Unacked>());
        groups.end(id);
        assert_eq!(groups.bytes(), 0);
    }
}
