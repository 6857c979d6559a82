//! Presence at a home (the part of a shard that keeps topics): the members of its topics, and their watchers. The first request creates the table of
//! members, so a server without presence has no table.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Home;
use super::presence::Presence;
use crate::base::ids::ShardId;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::hooks::{MemberChange, SelectedTopics};
use crate::mail::lanes::Lanes;
use crate::mail::peer_presence::{PeerChanges, PeerPresence, PeerPresenceReply};
use crate::mail::presence::{MemberConn, PresenceAsk, PresencePage, read_member};

/// The members that leave in one turn (a pass of the shard's loop) may take its steps divided by this number, since deliveries come after them. So may the
/// members that are forgotten.
const LEAVE_STEPS_DIVISOR: u32 = 8;
/// The maximum number of pages for watchers in one turn. Each costs as much as a visit (the work of a delivery to one connection).
const PAGES_PER_TURN: usize = 64;
/// The approximate maximum bytes of pages for watchers in one turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// The number of pages that one call makes before it checks their bytes.
const PAGES_PER_CALL: usize = 4;
/// The maximum number of members in one page for a reader.
const MEMBERS_READ_MAX: usize = 1_000;

impl Home {
    /// Carries out a request about the members of a topic.
    pub(crate) fn handle_presence_ask(
        &mut self,
        from: ShardId,
        ask: PresenceAsk,
        text: &[u8],
        (rules, now): (&Rules, Now),
        lanes: &mut Lanes,
    ) {
        self.steps.add(1);
        let (seed, process) = (self.topics.seed(), self.process);
        let new_presence = || Box::new(Presence::new(seed, process, now));
        let presence = self.presence.get_or_insert_with(new_presence);
        let conn_of = |conn| MemberConn::here(from, conn);
        let now_ns = lanes.stamp;
        match ask {
            PresenceAsk::Join(conn, is_listed) => {
                let (name, user, info) = read_member(text);
                let members_max = match is_listed {
                    true => rules.get(rules.number_for(name)).presence_max,
                    false => 0,
                };
                presence.join(name, conn_of(conn), (user, info), members_max, now);
            }
            PresenceAsk::Leave(conn, linger_s) => {
                presence.leave(text, conn_of(conn), linger_s, now)
            }
            PresenceAsk::Read(to, after) => {
                let page = presence.read(text, after, MEMBERS_READ_MAX);
                self.steps.add_bytes(page.changes.len());
                lanes.tell_members(from, to, page);
            }
            PresenceAsk::Watch(to, position) => {
                presence.add_watcher(text, (from, to), position, now_ns)
            }
            PresenceAsk::WatchChanges(to) => presence.add_change_watcher(text, (from, to), now_ns),
            PresenceAsk::Ready(to) => presence.set_ready(text, from, to, now_ns),
            PresenceAsk::Unwatch(to) => presence.remove_watcher(text, from, to, now),
        }
        self.steps.add_bytes(presence.take_moved_bytes());
    }

    /// Carries out an order about the members of other nodes. Without room in memory (`has_room`), these members are only counted, and only in topics that
    /// have a row.
    pub(crate) fn handle_peer_presence(
        &mut self,
        order: PeerPresence,
        (rules, linger_s): (&Rules, u32),
        has_room: bool,
        now: Now,
    ) -> PeerPresenceReply {
        let rows_max = self.turn_limits.interest_page_topics;
        if let (PeerPresence::Next(_), None) = (&order, &self.presence) {
            // No topic of this home has a member. When the first member comes, this home does not know the stream of the other node, so that node begins
            // a new stream.
            return PeerPresenceReply::Changes(Some((PeerChanges::default(), false)));
        }
        let (seed, process) = (self.topics.seed(), self.process);
        let new_presence = || Box::new(Presence::new(seed, process, now));
        let presence = self.presence.get_or_insert_with(new_presence);
        let reply = match order {
            PeerPresence::Next(question) => {
                let answer = presence.next_peer_changes(&question, rows_max, now);
                if let Some((changes, more)) = &answer {
                    self.steps.add_bytes(changes.bytes().len());
                    self.steps
                        .add(if *more { rows_max as usize / 4 } else { 0 });
                }
                return PeerPresenceReply::Changes(answer);
            }
            PeerPresence::BeginSnapshot(node, process) => {
                presence.begin_peer_snapshot(node, process);
                None
            }
            PeerPresence::Silent(node) => {
                presence.set_peer_silent(node);
                None
            }
            PeerPresence::Apply(node, changes) => {
                self.steps.add_bytes(changes.bytes().len());
                for change in changes.iter() {
                    self.steps.add(1);
                    let rule = rules.get(rules.number_for(change.topic()));
                    let members_max = if has_room { rule.presence_max } else { 0 };
                    let is_counted = has_room || presence.has_topic(change.topic());
                    let members_max = (rule.presence && is_counted).then_some(members_max);
                    presence.apply_peer_change(node, &change, members_max, now);
                }
                self.steps.add_bytes(presence.take_moved_bytes());
                return PeerPresenceReply::Applied { has_room };
            }
            PeerPresence::EndSnapshot(node, from) => {
                presence.remove_gone_members(node, false, from, linger_s, now)
            }
            PeerPresence::Drop(node, from) => {
                presence.remove_gone_members(node, true, from, linger_s, now)
            }
        };
        self.steps.add_bytes(presence.take_moved_bytes());
        PeerPresenceReply::Next(reply)
    }

    /// Begins a stream of the changes of members, for the operator's webhooks.
    pub(crate) fn begin_member_stream(&mut self, number: u64, topics: SelectedTopics, now: Now) {
        let (seed, process) = (self.topics.seed(), self.process);
        let new_presence = || Box::new(Presence::new(seed, process, now));
        let presence = self.presence.get_or_insert_with(new_presence);
        presence.begin_stream(number, topics);
    }

    /// Ends such a stream.
    pub(crate) fn end_member_stream(&mut self, number: u64) {
        if let Some(presence) = &mut self.presence {
            presence.end_stream(number);
        }
    }

    /// The next changes of such a stream, and whether more are ready. `None` if changes are lost.
    pub(crate) fn next_member_changes(&mut self, number: u64) -> Option<(Vec<MemberChange>, bool)> {
        let rows_max = self.turn_limits.interest_page_topics;
        let changes = self.presence.as_mut()?.take_changes(number, rows_max)?;
        self.steps.add(changes.0.len() + rows_max as usize / 4);
        Some(changes)
    }

    /// For the operator: the members of a topic that joined after change `after`.
    pub(crate) fn read_members(&self, name: &[u8], after: u64, members_max: usize) -> PresencePage {
        let presence = self.presence.as_ref();
        presence.map_or_else(PresencePage::default, |it| {
            it.read(name, after, members_max)
        })
    }

    /// Called once a turn: removes members whose connections ended long enough ago. Returns whether more is due.
    #[inline]
    pub(crate) fn end_absent_members(&mut self, now: Now) -> bool {
        let Some(presence) = &mut self.presence else {
            return false;
        };
        let steps_max = (self.turn_limits.steps_per_turn / LEAVE_STEPS_DIVISOR) as usize;
        let has_absent = presence.remove_absent(now, steps_max);
        let has_unwatched = presence.forget_unwatched(now, steps_max);
        self.steps.add_bytes(presence.take_moved_bytes());
        has_absent | has_unwatched
    }

    /// Sends watchers the changes that they lack, up to the limits of a turn.
    #[inline]
    pub(crate) fn send_watch_news(&mut self, lanes: &mut Lanes) {
        while self.has_watch_news(lanes) {
            let (Some(presence), steps) = (&mut self.presence, &self.steps) else {
                return;
            };
            let (pages, bytes) = (&mut self.presence_pages, &mut self.presence_page_bytes);
            let examined = presence.send_news(lanes.stamp, PAGES_PER_CALL, |shard, to, page| {
                steps.add_bytes(page.changes.len());
                *pages += 1;
                *bytes += page.changes.len();
                lanes.tell_members(shard, to, page);
            });
            steps.add(examined);
            *pages += examined / 16;
        }
    }

    /// Whether a watcher lacks changes, and this turn may send it a page.
    #[inline]
    pub(crate) fn has_watch_news(&self, lanes: &mut Lanes) -> bool {
        let presence = self.presence.as_ref();
        presence.is_some_and(|it| it.has_due(lanes.stamp))
            && self.presence_pages < PAGES_PER_TURN
            && self.presence_page_bytes < BYTES_PER_TURN
            && lanes.may_tell_members()
    }

    /// Resets the counts of pages and bytes that a turn limits. Called for each turn.
    #[inline]
    pub(crate) fn reset_watch_limits(&mut self) {
        (self.presence_pages, self.presence_page_bytes) = (0, 0);
    }

    /// The time from which the next watcher that lacks changes may get a page.
    #[inline]
    pub(crate) fn next_watch_news_ns(&self) -> Option<u64> {
        self.presence.as_ref().and_then(|it| it.next_news_ns())
    }

    /// The bytes of members and watchers.
    pub(crate) fn presence_bytes(&self) -> usize {
        self.presence.as_ref().map_or(0, |it| it.bytes())
    }
}
