//! Streams of the changes of members, for the operator's webhooks. A stream begins with a snapshot: a cursor passes over the table of members, and the
//! stream reports the member in each row. Invariant: a stream has reported exactly the members in rows before its cursor. A change of such a row is
//! reported at once. A change of another row needs no report, since the cursor comes there later. In a cluster a stream reports the members at all nodes.
//!
//! Some receivers are told of users only. Of the members of one user, a stream may know some and not others while its snapshot is read. So meanwhile each
//! join counts as the first of its user, and the last leave of a user is reported even if the stream does not know the member.

use alloc::vec::Vec;

use super::Presence;
use super::rows::MemberRow;
use crate::mail::hooks::{MemberChange, PENDING_CHANGES_BYTES_MAX, SelectedTopics};

/// A stream.
pub(super) struct MemberStream {
    number: u64,
    topics: SelectedTopics,
    /// The cursor: the next row of the snapshot, or `u32::MAX` when the snapshot is complete.
    next_row: u32,
    changes: Vec<MemberChange>,
    bytes: usize,
    /// Whether changes were dropped for lack of room.
    has_lost_changes: bool,
}

impl MemberStream {
    /// A stream that has reported nothing yet.
    pub(super) fn new(number: u64, topics: SelectedTopics) -> MemberStream {
        MemberStream {
            number,
            topics,
            next_row: 0,
            changes: Vec::new(),
            bytes: 0,
            has_lost_changes: false,
        }
    }

    /// The bytes of the changes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, name: &[u8], row: &MemberRow, joins: bool, is_of_user: bool) {
        if self.has_lost_changes || !self.topics.has(name) {
            return;
        }
        let (user, info) = row.user_and_info();
        let change = MemberChange {
            joins,
            is_of_user,
            topic: name.into(),
            id: row.id,
            at: row.conn(),
            user: user.into(),
            info: info.into(),
        };
        self.bytes += change.bytes();
        self.changes.push(change);
        if self.bytes > PENDING_CHANGES_BYTES_MAX {
            self.has_lost_changes = true;
            (self.changes, self.bytes) = (Vec::new(), 0);
        }
    }
}

impl Presence {
    /// Begins a stream.
    pub fn begin_stream(&mut self, number: u64, topics: SelectedTopics) {
        self.streams.push(MemberStream::new(number, topics));
    }

    /// Ends a stream.
    pub fn end_stream(&mut self, number: u64) {
        self.streams.retain(|stream| stream.number != number);
    }

    /// The next changes of a stream, after at most `rows_max` rows of the snapshot, and whether more of it is left. `None` if there is no such
    /// stream, or if changes were dropped.
    pub fn take_changes(
        &mut self,
        number: u64,
        rows_max: u32,
    ) -> Option<(Vec<MemberChange>, bool)> {
        let stream = (self.streams.iter_mut()).find(|stream| stream.number == number)?;
        let end = self.members.end();
        for _ in 0..rows_max {
            // Half of the room is for changes that come before the next request.
            if stream.next_row >= end || stream.bytes > PENDING_CHANGES_BYTES_MAX / 2 {
                break;
            }
            // A free row has no id, and neither has a connection that waits.
            let row = self.members.try_get(stream.next_row);
            if let Some(row) = row.filter(|row| row.id > 0) {
                let name = &self.topics.get(row.topic).name;
                stream.push(name, row, true, true);
            }
            stream.next_row += 1;
        }
        if stream.next_row >= end {
            // The cursor has passed also the rows that will be added later.
            stream.next_row = u32::MAX;
        }
        stream.bytes = 0;
        let changes = core::mem::take(&mut stream.changes);
        (!stream.has_lost_changes).then_some((changes, stream.next_row < u32::MAX))
    }

    /// Reports the join or leave of the member in this row to the streams whose cursor has passed the row. `row` is `None` if the table has the row.
    /// `is_of_user`: the member is the first of its user, or was the last one.
    pub(super) fn push_to_streams(
        &mut self,
        (member, row): (u32, Option<&MemberRow>),
        joins: bool,
        is_of_user: bool,
    ) {
        if self.streams.is_empty() {
            return;
        }
        let row = row.unwrap_or_else(|| self.members.get(member));
        let name = &self.topics.get(row.topic).name;
        for stream in &mut self.streams {
            let reads_snapshot = stream.next_row < u32::MAX;
            if member < stream.next_row || !joins && is_of_user {
                stream.push(name, row, joins, is_of_user || joins && reads_snapshot);
            }
        }
    }
}
