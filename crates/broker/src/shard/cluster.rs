//! A node among others that write to the same log: its signs of life, the deaths of others, and the stewards of partitions.
//!
//! Each second the home of partition 0 writes a BEAT there. A node whose own come back, and that has read none of another for some seconds,
//! writes DEAD of it: in partition 0, and when that stands in the log, in all others. These records hold at all nodes from their place in the
//! log on; only who writes them, and when, is decided by this node's clock.
//!
//! Invariants: at most one note of a kind is under way in a partition, so that a node that is cut off piles up nothing. A node that reads
//! its own death goes on as another writer, with all that is in flight: none of it counted, and all of it counts once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::OFFSETS_PER_BATCH;
use crate::commit::batch::Told;
use crate::commit::queue::Commits;
use crate::commit::record::{Beat, Note};
use crate::home::{HERE, Home};
use crate::mail::Ask;
use crate::mail::orders::{ClusterState, NodeState, PartitionState};
use crate::protocol::front::{Context, Lanes};
use crate::shard::Shard;
use crate::shard::cluster_view::{ClusterView, bit};
use crate::shard::pending_request::PendingRequest;

/// The partition of the signs of life.
const OF_BEATS: u16 = 0;
/// A node is dead when it has been silent for so long.
const SILENT_S: u32 = 5;
/// Signs of life that are further apart do not show that a node has heard all there was between.
const BREAK_S: u32 = 2;
/// A partition without records for so long gets a mark, so that idempotency keys there run out by the log's clock.
const IDLE_S: u32 = 60;
/// Deaths that homes are told of in a second.
const BURIALS_PER_TICK: usize = 16;
/// Nodes that are remembered at most.
const NODES_MAX: usize = 256;

/// A home of a node among others: what it knows of them, its logs, and the records that it writes.
pub(super) struct Node<'a> {
    cluster: &'a mut ClusterView,
    commits: &'a mut Commits<PendingRequest>,
    home: &'a mut Home,
    ctx: &'a Context,
    lanes: &'a mut Lanes,
}

impl Shard {
    /// This home among those of other nodes; none where there are no others.
    pub(super) fn node(&mut self) -> Option<Node<'_>> {
        Some(Node {
            cluster: self.cluster.as_deref_mut()?,
            commits: &mut self.commits,
            home: self.home.as_mut()?,
            ctx: &self.front.clients.ctx,
            lanes: &mut self.front.subs.lanes,
        })
    }

    /// Applies a note of partition `at`, of this batch; it has this offset.
    pub(super) fn take_note(&mut self, at: usize, told: &Told, note: &Note<'_>, offset: u64) {
        let home = self.home.as_mut().expect(HERE);
        let until = match note {
            Note::Mark(until) => *until,
            _ => 0,
        };
        home.logs.noted(at, offset, (told.header.unix_s, until));
        match note {
            Note::Mark(_) => {}
            Note::Steward(writer) => home.logs.roster(at).want_steward(*writer),
            Note::Beat(beat) => {
                if let Some(mut node) = self.node() {
                    node.take_beat(at, told, beat, offset);
                }
            }
            Note::Dead(writer) => {
                let is_new = home.logs.roster(at).bury(*writer);
                if self.commits.writer(at) == *writer {
                    self.commits.go_on_as_another(at);
                }
                if is_new && let Some(mut node) = self.node() {
                    node.take_death(at, *writer);
                }
            }
        }
    }
}

impl Node<'_> {
    /// Whether this node has no way to the log.
    fn is_cut_off(&self) -> bool {
        let now_s = self.ctx.now.unix_s;
        self.ctx.world.admission.is_cut_off(now_s)
    }

    /// A second has begun.
    pub(super) fn tick(&mut self) {
        let placement = self.ctx.world.placement();
        let me = self.ctx.me;
        for (at, _) in placement.of_home(me).enumerate() {
            self.tell_deaths(at);
            self.offer_steward(at);
            self.ask_the_log(at);
        }
        self.forget_told_deaths();
        if placement.home_of(OF_BEATS) == me {
            let at = placement.place_at_home(OF_BEATS);
            self.bury(at);
            self.beat(at);
        }
    }

    /// Tells all homes of deaths that stand in the partition of the signs of life. By what stands there, not when a death is read: a node that begins
    /// with a checkpoint behind it reads none, and the nodes that did may have ended before the other partitions had it.
    fn bury(&mut self, at: usize) {
        let (roster, buried) = (self.home.logs.roster(at), &mut self.cluster.buried);
        buried.retain(|writer| roster.is_dead(*writer));
        let new = roster.dead().filter(|writer| !buried.contains(writer));
        let new: Vec<u64> = new.take(BURIALS_PER_TICK).collect();
        for writer in new {
            self.cluster.buried.push(writer);
            for home in 0..self.ctx.world.homes {
                match home == self.ctx.me {
                    true => self.cluster.is_to_tell_death(writer),
                    false => self.lanes.ask(home, |_| Ask::Bury(writer)),
                }
            }
        }
    }

    fn beat(&mut self, at: usize) {
        let world = self.ctx.world.clone();
        let node = &world.settings.node;
        let beat = Beat {
            name: node.name.as_bytes(),
            link: node.link.as_bytes(),
            connections: world.admission.connections().into(),
        };
        self.write_note(at, &Note::Beat(beat));
        let (own, now_s) = (self.commits.writer(at), self.ctx.now.s);
        let cluster = &self.cluster;
        let hears = cluster.last_s > 0 && now_s - cluster.last_s <= BREAK_S;
        let is_silent = |node: &&NodeState| {
            node.writer != own && now_s - node.beat_s.max(cluster.since_s) >= SILENT_S
        };
        let silent = cluster.nodes.iter().find(is_silent).map(|node| node.writer);
        let silent = silent.or_else(|| self.unheard(at)).filter(|_| hears);
        if let Some(writer) = silent {
            self.write_note(at, &Note::Dead(writer));
        }
    }

    /// A writer whose last sign of life was before what this node has read: before the checkpoint that it began with. Each node gives one
    /// each second.
    fn unheard(&mut self, at: usize) -> Option<u64> {
        let (cluster, home) = (&self.cluster, &mut self.home);
        let waited = self.ctx.now.s - cluster.since_s >= SILENT_S;
        let is_heard = |writer: &u64| cluster.nodes.iter().any(|it| it.writer == *writer);
        let living = home.logs.roster(at).living();
        let own = self.commits.writer(at);
        let mut unheard = living.filter(|writer| *writer != own && !is_heard(writer));
        unheard.next().filter(|_| waited)
    }

    /// Tells the next death that the log of a partition does not have.
    fn tell_deaths(&mut self, at: usize) {
        if self.is_cut_off() {
            // It may read what was before it began, and others have told.
            return;
        }
        let roster = self.home.logs.roster(at);
        let missing = self.cluster.dead.iter().find(|it| !roster.is_dead(**it));
        if let Some(writer) = missing.copied() {
            self.write_note(at, &Note::Dead(writer));
        }
    }

    fn forget_told_deaths(&mut self) {
        let (places, home) = (self.cluster.partitions.len(), &mut self.home);
        let mut told = |writer| (0..places).all(|at| home.logs.roster(at).is_dead(writer));
        self.cluster.dead.retain(|writer| !told(*writer));
    }

    /// Offers this node as the steward of a partition that has none, and as that keeps its clock going.
    fn offer_steward(&mut self, at: usize) {
        let own = self.commits.writer(at);
        let (steward, now_s) = (self.home.logs.roster(at).steward, self.ctx.now.s);
        let heard_s = self.cluster.partitions[at].heard_s;
        match steward {
            // A steward that no other node has heard of would never be found dead.
            None if !self.is_cut_off() => self.write_note(at, &Note::Steward(own)),
            None => {}
            Some(steward) if steward == own && now_s - heard_s >= IDLE_S => {
                self.write_note(at, &Note::Mark(0));
            }
            Some(_) => {}
        }
    }

    /// Where subscriptions wait for positions that this node has not come to, a mark shows what the log has: all that other nodes have read of it
    /// stands before the mark.
    fn ask_the_log(&mut self, at: usize) {
        let Some(waits) = self.home.waits_for_log(at) else {
            return;
        };
        let partition = &mut self.cluster.partitions[at];
        if partition.noted & bit(&Note::Mark(0)) == 0 {
            partition.waits = waits;
            self.write_note(at, &Note::Mark(0));
        }
    }

    /// Writes a note, unless one of its kind is under way.
    fn write_note(&mut self, at: usize, note: &Note<'_>) {
        let partition = &mut self.cluster.partitions[at];
        if partition.noted & bit(note) != 0 {
            return;
        }
        partition.noted |= bit(note);
        let moment = (self.ctx.now, self.home.logs.sequence(at));
        self.commits.note(at, moment, note);
    }

    /// Facts that stand in no log have the offsets between the last record and the next batch: when half of them are used up, a mark brings new
    /// ones.
    pub(super) fn renew_offsets(&mut self, at: usize) {
        if self.home.logs.sequence(at) % OFFSETS_PER_BATCH >= OFFSETS_PER_BATCH / 2 {
            self.write_note(at, &Note::Mark(0));
        }
    }

    /// A note of this process is applied.
    pub(super) fn was_noted(&mut self, at: usize, note: &Note<'_>) {
        let partition = &mut self.cluster.partitions[at];
        let was_noted = partition.noted & bit(note) != 0;
        partition.noted &= !bit(note);
        if was_noted && matches!(note, Note::Mark(_)) && partition.waits > 0 {
            let waits = core::mem::take(&mut partition.waits);
            self.home.give_up_positions(at, waits);
        }
    }

    fn take_beat(&mut self, at: usize, told: &Told, beat: &Beat<'_>, offset: u64) {
        let header = &told.header;
        let (now, own) = (self.ctx.now, self.commits.writer(at));
        let cluster = &mut self.cluster;
        let node = NodeState {
            writer: header.writer,
            is_self: header.writer == own,
            name: beat.name.into(),
            link: beat.link.into(),
            connections: beat.connections,
            offset,
            beat_s: now.s,
            beat_unix_s: header.unix_s,
            ahead_s: i64::from(told.written_s) - i64::from(header.unix_s),
        };
        cluster.nodes.retain(|it| it.writer != header.writer);
        if cluster.nodes.len() == NODES_MAX {
            cluster.nodes.remove(0);
        }
        cluster.nodes.push(node);
        if header.writer == own {
            if cluster.last_s == 0 || now.s - cluster.last_s > BREAK_S {
                cluster.since_s = now.s;
            }
            cluster.last_s = now.s;
            self.ctx.world.admission.beats(now.unix_s);
        }
    }

    /// A writer is dead in partition `at`.
    fn take_death(&mut self, at: usize, writer: u64) {
        let cluster = &mut self.cluster;
        let of_beats = self.ctx.world.placement();
        let is_first =
            of_beats.home_of(OF_BEATS) == self.ctx.me && of_beats.place_at_home(OF_BEATS) == at;
        if !is_first {
            return;
        }
        let dead = cluster.nodes.iter().position(|it| it.writer == writer);
        match dead.map(|at| cluster.nodes.remove(at)) {
            Some(node) if node.is_self => {
                (cluster.since_s, cluster.last_s) = (0, 0);
                self.ctx.world.admission.died();
            }
            Some(node) => cluster.remember(node),
            None => {}
        }
    }

    /// This home's view of the cluster.
    pub(super) fn state(&mut self) -> Box<ClusterState> {
        self.cluster.forget_dead(self.ctx.now.unix_s);
        let home = &mut self.home;
        let all = self.ctx.world.placement().of_home(self.ctx.me);
        let partitions = all.enumerate().map(|(at, partition)| PartitionState {
            partition,
            offset: home.logs.roster(at).last,
            writer: self.commits.writer(at),
            steward: home.logs.roster(at).steward,
        });
        Box::new(ClusterState {
            partitions: partitions.collect(),
            nodes: self.cluster.nodes.clone(),
            dead_nodes: self.cluster.dead_nodes.clone(),
            unix_s: self.ctx.now.unix_s,
            is_cut_off: self.is_cut_off(),
        })
    }
}
