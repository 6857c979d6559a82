//! Joining and leaving filters, for all protocols: what the connections' code asks of the tables and of the homes.
//!
//! How a protocol uses it: [`Shard::join_filters`] once for what is subscribed together; pages come to it with
//! [`Shard::match_page`], live messages with [`Shard::matched`] (in `matched.rs`); [`Shard::leave_filter`] or
//! [`Shard::leave_filters`] at the end. For each page it calls [`Shard::took_page`], and
//! [`Shard::ask_matches`] for the next one when it can take it; not from within
//! a delivery, whose frames may be the home's own: it lists itself in `resumed`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::home::SEPARATOR;
use crate::mail::{Ask, AttachFilters, MatchPage, ReplyTo, ShardId, Span};
use crate::matching::{At, Filtered, Group, Left, Member, Part};
use crate::position::{Position, Since};
use crate::shard::Shard;
use crate::slab::NONE;

impl Shard {
    /// The filters of a connection, if it has some.
    pub(crate) fn filtered(&self, slot: u32) -> Option<&Filtered> {
        let extra = self.conns.try_get(slot)?.extra;
        if extra == NONE {
            return None;
        }
        self.extras.get(extra).filters.as_deref()
    }

    /// The filters of a connection, if it has some.
    pub(crate) fn filtered_mut(&mut self, slot: u32) -> Option<&mut Filtered> {
        let extra = self.conns.try_get(slot)?.extra;
        if extra == NONE {
            return None;
        }
        self.extras.get_mut(extra).filters.as_deref_mut()
    }

    /// Subscribes a connection to filters that were checked, each with the protocol's number, as one group; `since`
    /// says where to begin at each home. Every home answers with pages. Returns the group's serial.
    ///
    /// # Errors
    /// The reason, for people; nothing is subscribed then.
    pub(crate) fn join_filters(
        &mut self,
        slot: u32,
        filters: &[(&[u8], u32)],
        since: &[Since],
        poll: bool,
    ) -> Result<u32, &'static str> {
        let filtered = self.extra(slot).filters.get_or_insert_with(Box::default);
        let serial = filtered.serials;
        filtered.serials += 1;
        filtered.groups.push(Group {
            serial,
            homes: Vec::new(),
        });
        for (filter, id) in filters {
            if let Err(reason) = self.join_filter(slot, serial, filter, *id) {
                self.leave_group(slot, serial);
                return Err(reason);
            }
        }
        let epoch = self.world.epoch;
        let at = |since: &Since| match *since {
            Since::At(Position { epoch, offset }) => At {
                offset,
                epoch,
                ..At::default()
            },
            _ => At {
                epoch,
                ..At::default()
            },
        };
        let group = self
            .filtered_mut(slot)
            .and_then(|all| all.group_mut(serial));
        group.expect("it was just made").homes = since.iter().map(at).collect();
        for (home, since) in since.iter().enumerate() {
            self.ask_pages_of(slot, serial, home as ShardId, *since, poll, false);
        }
        Ok(serial)
    }

    fn join_filter(
        &mut self,
        slot: u32,
        serial: u32,
        filter: &[u8],
        id: u32,
    ) -> Result<(), &'static str> {
        let most = self.world.settings.limits.filters_per_shard;
        if self.matching.len() >= most && !self.matching.has(filter) {
            return Err("limits.filters_per_shard is reached");
        }
        let filtered = self.filtered_mut(slot).expect("it was just made");
        let free = filtered.parts.iter().position(|part| part.row == NONE);
        let part = free.unwrap_or(filtered.parts.len());
        let member = Member {
            slot,
            part: part as u32,
        };
        let (row, place) = self
            .matching
            .join(filter, member)
            .map_err(|refused| refused.reason())?;
        let new = Part {
            row,
            place,
            group: serial,
            id,
        };
        let parts = &mut self.filtered_mut(slot).expect("it was just made").parts;
        match parts.get_mut(part) {
            Some(free) => *free = new,
            None => parts.push(new),
        }
        Ok(())
    }

    /// Asks a home for the next page of a group that is neither live there nor waits for one.
    pub(crate) fn ask_matches(&mut self, slot: u32, serial: u32, home: ShardId, poll: bool) {
        let group = self
            .filtered_mut(slot)
            .and_then(|all| all.group_mut(serial));
        let Some(at) = group.and_then(|group| group.homes.get_mut(home as usize)) else {
            return;
        };
        if at.live || at.asked {
            return;
        }
        let since = Since::At(Position {
            epoch: at.epoch,
            offset: at.offset,
        });
        self.ask_pages_of(slot, serial, home, since, poll, true);
    }

    fn ask_pages_of(
        &mut self,
        slot: u32,
        serial: u32,
        home: ShardId,
        since: Since,
        poll: bool,
        again: bool,
    ) {
        let to = self.reply_to(slot, 0);
        let filtered = self.filtered_mut(slot).expect("it has filters");
        let rows: Vec<u32> = filtered.rows(serial).collect();
        let group = filtered.group_mut(serial).expect("the caller found it");
        let at = &mut group.homes[home as usize];
        at.asked = true;
        let ask = AttachFilters {
            to,
            serial,
            since,
            from: at.from,
            base: at.base,
            poll,
            again,
        };
        let names: Vec<Vec<u8>> = rows.iter().map(|row| self.matching.name(*row)).collect();
        let names = names.join(&SEPARATOR);
        if home == self.lanes.me {
            let here = self.home.as_mut().expect("a home has one");
            let rules = &self.world.rules;
            here.attach_filters(home, &ask, &names, rules, self.now, &mut self.lanes);
            return;
        }
        self.ask(home, |bytes| {
            Ask::AttachFilters(ask, Span::of(bytes, &names))
        });
    }

    /// A page of this home was taken up to `offset`; `live` says whether that was all.
    pub(crate) fn took_page(
        &mut self,
        slot: u32,
        serial: u32,
        home: ShardId,
        page: &MatchPage,
        offset: u64,
        live: bool,
    ) {
        let group = self
            .filtered_mut(slot)
            .and_then(|all| all.group_mut(serial));
        let group = group.expect("a page comes to a group");
        if let Some(at) = group.homes.get_mut(home as usize) {
            *at = At {
                offset,
                from: page.from,
                base: page.base,
                epoch: page.epoch,
                live,
                asked: false,
            };
        }
        if group.homes.iter().all(|at| at.live) {
            group.homes = Vec::new();
        }
    }

    /// What a home has told up to `offset` is with everybody who is live there.
    pub(crate) fn all_saw(&mut self, home: ShardId, offset: u64) {
        let seen = &mut self.matching.seen[home as usize];
        *seen = offset.max(*seen);
    }

    /// A group cannot take what a home tells: it has seen it up to `offset`, and reads on from there.
    pub(crate) fn fell_behind(&mut self, slot: u32, serial: u32, home: ShardId, offset: u64) {
        self.stats.fallbacks += 1;
        let (seen, epoch) = (self.matching.seen.clone(), self.world.epoch);
        let group = self
            .filtered_mut(slot)
            .and_then(|all| all.group_mut(serial));
        let group = group.expect("a live group exists");
        if group.homes.is_empty() {
            let live = |offset| At {
                offset,
                epoch,
                live: true,
                ..At::default()
            };
            group.homes = seen.into_iter().map(live).collect();
        }
        group.homes[home as usize] = At {
            offset,
            epoch,
            ..At::default()
        };
    }

    /// Whether the page's group still is.
    pub(crate) fn awaits(&self, to: ReplyTo, serial: u32) -> bool {
        self.is_asked(to)
            && self
                .filtered(to.slot)
                .is_some_and(|all| all.group(serial).is_some())
    }

    /// Ends one filter of a connection, by the protocol's number; says whether there was one.
    pub(crate) fn leave_filter(&mut self, slot: u32, id: u32) -> bool {
        let Some(filtered) = self.filtered(slot) else {
            return false;
        };
        let is = |part: &Part| part.row != NONE && part.id == id;
        let Some(part) = filtered.parts.iter().position(is) else {
            return false;
        };
        self.leave_one(slot, part);
        true
    }

    /// Ends all filters of a connection.
    pub(crate) fn leave_filters(&mut self, slot: u32) {
        let parts = self.filtered(slot).map_or(0, |all| all.parts.len());
        for part in 0..parts {
            self.leave_one(slot, part);
        }
        let extra = self.conns.get(slot).extra;
        if extra != NONE {
            self.extras.get_mut(extra).filters = None;
        }
    }

    fn leave_group(&mut self, slot: u32, serial: u32) {
        let parts = self.filtered(slot).map_or(0, |all| all.parts.len());
        for part in 0..parts {
            let all = self.filtered(slot).expect("it has parts");
            if all.parts[part].group == serial {
                self.leave_one(slot, part);
            }
        }
        if let Some(all) = self.filtered_mut(slot) {
            all.groups.retain(|group| group.serial != serial);
        }
    }

    fn leave_one(&mut self, slot: u32, part: usize) {
        let filtered = self.filtered_mut(slot).expect("it has this part");
        let part = &mut filtered.parts[part];
        let (row, place, serial) = (part.row, part.place, part.group);
        if row == NONE {
            return;
        }
        part.row = NONE;
        if filtered.rows(serial).next().is_none() {
            filtered.groups.retain(|group| group.serial != serial);
        }
        let Left { moved, ended } = self.matching.leave(row, place);
        if let Some(Member { slot, part }) = moved {
            let filtered = self.filtered_mut(slot).expect("a member has filters");
            filtered.parts[part as usize].place = place;
        }
        let Some(name) = ended else { return };
        for home in 0..self.world.homes {
            if home == self.lanes.me {
                let here = self.home.as_mut().expect("a home has one");
                here.leave_filter(home, &name);
            } else {
                self.ask(home, |bytes| Ask::LeaveFilter(Span::of(bytes, &name)));
            }
        }
    }
}
