//! Steers new connections to the shards that have room, with a BPF program in the kernel.
//!
//! If the listener of a full shard were closed, the connections in its queue would be reset. So the listener stays open, and a classic BPF
//! program (`SO_ATTACH_REUSEPORT_CBPF`, which needs no privilege) chooses a random listener of the group for each new connection. Replacing
//! the program takes about 15 us and loses no waiting connection: even if its handshake was answered with a SYN cookie, every listener of
//! the group can check the cookie. While all shards have room there is no program, and the kernel distributes connections by its own hash.
//!
//! Invariants:
//! * The index of a listener in the kernel's group is the order in which the listeners began to listen. So the shards begin one after the
//!   other, each with all of its addresses ([`Group::join`]).
//! * The program that was attached last matches the last levels: a thread that attaches a program compares the levels again afterwards.
//!
//! [`acceptor`](super::acceptor) decides when a shard is full. If a second process listens on the same address, this process does not know
//! it. While both run, the indexes of the listeners are wrong: a full shard may get connections, and answers them with 503.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::listener::Listener;
use crate::sys::set_option;

/// The maximum number of members of a group. More shards would be useless, because topics hash to 256 slots.
const MEMBERS_MAX: usize = 256;

/// How much room a shard has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Enough room.
    Open = 0,
    /// Little room: the shard gets no new connections while enough other shards are `Open`.
    NearlyFull = 1,
    /// Room only for the connections in its accept queue: the shard gets no new ones while another shard is `Open` or `NearlyFull`.
    QueueOnly = 2,
    /// No room.
    Full = 3,
}

/// If at least a quarter of the shards are open, they take all new connections. If fewer are open, nearly full shards take a share too:
/// otherwise the few open shards would get more connections than they have room for, before the kernel learns that they are full.
const OPEN_QUORUM_DIVISOR: usize = 4;

/// The levels of all shards of a process, as they have reported them.
#[derive(Debug)]
pub struct Group {
    levels: [AtomicU8; MEMBERS_MAX],
    /// The number of members.
    member_count: Mutex<u32>,
}

impl Group {
    /// A group without members.
    pub fn new() -> Arc<Group> {
        Arc::new(Group {
            levels: [const { AtomicU8::new(Level::Open as u8) }; MEMBERS_MAX],
            member_count: Mutex::new(0),
        })
    }

    /// Adds a shard. `listen` begins to listen on the addresses of the shard; they are the same for all shards, and in the same order.
    ///
    /// # Errors
    /// Those of `listen`.
    ///
    /// # Panics
    /// With more than 256 members.
    pub fn join(
        self: &Arc<Group>,
        listen: impl FnOnce() -> io::Result<Vec<Listener>>,
    ) -> io::Result<(Member, Vec<Listener>)> {
        let mut member_count = self
            .member_count
            .lock()
            .expect("nobody panics while listening");
        let listeners = listen()?;
        assert!((*member_count as usize) < MEMBERS_MAX, "too many shards");
        let index = *member_count;
        *member_count += 1;
        let group = Arc::clone(self);
        let member = Member {
            group,
            index,
            level: Level::Open,
        };
        Ok((member, listeners))
    }

    fn levels(&self, members: usize) -> Vec<u8> {
        let levels = &self.levels[..members];
        levels.iter().map(|level| level.load(SeqCst)).collect()
    }
}

/// One shard of a group.
#[derive(Debug)]
pub struct Member {
    group: Arc<Group>,
    index: u32,
    level: Level,
}

impl Member {
    /// The level that the shard has reported last.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Reports the level of the shard. If it has changed, attaches a new program, which steers connections to the shards with most room.
    ///
    /// # Errors
    /// If the kernel refuses the program (`ENOMEM`). Then the old program stays attached.
    pub fn set_level(&mut self, level: Level, listeners: &[Listener]) -> io::Result<()> {
        if level == self.level {
            return Ok(());
        }
        self.level = level;
        let group = &self.group;
        group.levels[self.index as usize].store(level as u8, SeqCst);
        let members = *group
            .member_count
            .lock()
            .expect("nobody panics while listening") as usize;
        let mut levels = group.levels(members);
        loop {
            let program = build_program(&levels);
            for listener in listeners {
                attach(listener, &program)?;
            }
            // Meanwhile another shard may have attached a program that does not take the new level into account.
            let latest = group.levels(members);
            if latest == levels {
                return Ok(());
            }
            levels = latest;
        }
    }
}

/// The indexes of the members that get new connections.
fn receivers(levels: &[u8]) -> Vec<u32> {
    let indexes_up_to = |fullest: Level| {
        let members = (0..)
            .zip(levels)
            .filter(move |(_, level)| **level <= fullest as u8);
        members.map(|(index, _)| index).collect::<Vec<u32>>()
    };
    let open = indexes_up_to(Level::Open);
    if open.len() * OPEN_QUORUM_DIVISOR >= levels.len() {
        return open;
    }
    let less_open = [Level::NearlyFull, Level::QueueOnly]
        .into_iter()
        .map(indexes_up_to);
    less_open
        .into_iter()
        .find(|indexes| !indexes.is_empty())
        .unwrap_or_else(|| indexes_up_to(Level::Full))
}

/// Builds the program, which returns the index of a random receiver. It is empty if all members are receivers.
fn build_program(levels: &[u8]) -> Vec<libc::sock_filter> {
    let open = receivers(levels);
    if open.len() == levels.len() {
        return Vec::new();
    }
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, random),
        instruction(
            libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K,
            0,
            open.len() as u32,
        ),
    ];
    for (n, index) in (0..).zip(&open) {
        if n + 1 < open.len() as u32 {
            // Skips the return if the random number is not `n`.
            program.push(instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                n,
            ));
        }
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, *index));
    }
    program
}

fn instruction(code: u32, skip_if_unequal: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skip_if_unequal,
        k,
    }
}

/// Attaches the program to the listener's whole group, or detaches the old one if `program` is empty.
fn attach(listener: &Listener, program: &[libc::sock_filter]) -> io::Result<()> {
    let (fd, level) = (listener.fd(), libc::SOL_SOCKET);
    if program.is_empty() {
        return match set_option(fd, level, libc::SO_DETACH_REUSEPORT_BPF, 0_i32) {
            // No program was attached.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        };
    }
    let program = libc::sock_fprog {
        len: program.len() as u16,
        // The kernel copies the instructions within the call and writes nothing.
        filter: program.as_ptr().cast_mut(),
    };
    set_option(fd, level, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_with_most_room_gets_new_connections_unless_too_few_have_it() {
        let [open, nearly_full, queue_only, full] = [0, 1, 2, 3];
        let receiver_count = |counts: [usize; 4]| {
            let levels: Vec<u8> = [open, nearly_full, queue_only, full]
                .into_iter()
                .zip(counts)
                .flat_map(|(level, count)| std::iter::repeat_n(level, count))
                .collect();
            receivers(&levels).len()
        };
        assert_eq!(receiver_count([54, 0, 0, 0]), 54);
        assert_eq!(receiver_count([14, 20, 10, 10]), 14);
        assert_eq!(receiver_count([13, 21, 10, 10]), 34);
        assert_eq!(receiver_count([1, 3, 0, 0]), 1);
        assert_eq!(receiver_count([0, 1, 43, 10]), 1);
        assert_eq!(receiver_count([0, 0, 2, 52]), 2);
        assert_eq!(receiver_count([0, 0, 0, 54]), 54);
        assert_eq!(receivers(&[full, nearly_full, open, queue_only]), [2]);
    }
}
