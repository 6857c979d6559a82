//! What a home (the part of a shard that keeps topics) does about presence: the members of its topics, and their watchers. The table begins with the first
//! member or watcher, so a server without presence has none.

use alloc::boxed::Box;

use super::Home;
use super::presence::Presence;
use crate::base::ids::ShardId;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::Tell;
use crate::mail::lanes::Lanes;
use crate::mail::presence::{MemberConn, PresenceAsk, PresencePage, read_member};

/// The members that a tick lets leave. Each is an entry that watchers are told.
const ENDS_PER_TICK: usize = 1_024;
/// The pages for watchers in one turn. Each costs as much as a visit.
const PAGES_PER_TURN: usize = 64;
/// The members of one page for a reader.
const MEMBERS_READ_MAX: usize = 1_000;

impl Home {
    /// Carries out a request about the members of a topic.
    pub(crate) fn presence_ask(
        &mut self,
        from: ShardId,
        ask: PresenceAsk,
        text: &[u8],
        (rules, now): (&Rules, Now),
        lanes: &mut Lanes,
    ) {
        self.steps.add(1);
        let seed = self.topics.seed();
        let begun = || Box::new(Presence::new(seed, now));
        let presence = self.presence.get_or_insert_with(begun);
        let at = |conn| MemberConn { shard: from, conn };
        match ask {
            PresenceAsk::Join(conn) => {
                let (name, user, info) = read_member(text);
                let members_max = rules.get(rules.number_for(name)).presence_max;
                presence.join(name, at(conn), (user, info), members_max, now);
            }
            PresenceAsk::Leave(conn, linger_s) => presence.leave(text, at(conn), linger_s, now),
            PresenceAsk::Read(to, after) => {
                let page = presence.read(text, after, MEMBERS_READ_MAX);
                self.steps.add_bytes(page.changes.len());
                lanes.tell(from, Tell::Presence(to, Box::new(page)));
            }
            PresenceAsk::Watch(to, position) => presence.watch(text, (from, to), position),
            PresenceAsk::Ready(to) => presence.is_ready(text, from, to),
            PresenceAsk::Unwatch(to) => presence.unwatch(text, from, to, now),
        }
    }

    /// The members of a topic that came after a change, for the operator.
    pub(crate) fn read_members(&self, name: &[u8], after: u64, most: usize) -> PresencePage {
        let presence = self.presence.as_ref();
        presence.map_or_else(PresencePage::default, |it| it.read(name, after, most))
    }

    /// Once a tick: members leave whose time has come.
    pub(crate) fn end_absent_members(&mut self, now: Now) {
        if let Some(presence) = &mut self.presence {
            presence.end_absent(now, ENDS_PER_TICK);
            presence.end_unwatched(now);
        }
    }

    /// Gives watchers what they lack. Returns whether more is due.
    #[inline]
    pub(crate) fn tell_watchers(&mut self, lanes: &mut Lanes) -> bool {
        match &mut self.presence {
            Some(presence) if presence.has_due() || presence.waits() => {
                let (now_ns, steps) = (lanes.stamp, &self.steps);
                presence.tell(now_ns, PAGES_PER_TURN, |shard, to, page| {
                    steps.add_bytes(page.changes.len());
                    lanes.tell(shard, Tell::Presence(to, Box::new(page)));
                })
            }
            _ => false,
        }
    }

    /// Whether watchers may lack something that they can take now.
    #[inline]
    pub(crate) fn has_watch_news(&self) -> bool {
        self.presence.as_ref().is_some_and(|it| it.has_due())
    }

    /// Whether watchers wait until changes may be told again.
    #[inline]
    pub(crate) fn watchers_wait(&self) -> bool {
        self.presence.as_ref().is_some_and(|it| it.waits())
    }

    /// The bytes of members and watchers.
    pub(crate) fn presence_bytes(&self) -> usize {
        self.presence.as_ref().map_or(0, |it| it.bytes())
    }
}
