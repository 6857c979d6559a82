//! Readiness: one epoll instance for each shard thread, level-triggered.
//!
//! The driver keeps no row per socket: the kernel carries a 64-bit token with each registration, in
//! which a shard keeps slot and generation. It is the only file that knows how readiness and flushing
//! reach the kernel, so that another mechanism can take its place.
//!
//! Invariants: level-triggered, so nothing is lost by handling only a part; a closed descriptor leaves by
//! itself, since no other table holds it.
//!
//! Deliberately not here: edge triggering, timers, callbacks.

use std::io;
use std::marker::PhantomData;

use crate::Fd;
use crate::sys::{OfThisTable, Owned, check};

/// What a socket is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What was given with the registration.
    pub token: u64,
    /// Bytes, an end or a connection wait to be taken.
    pub readable: bool,
    /// The send buffer has room.
    pub writable: bool,
    /// The peer has ended its sending, or both directions are over, or there is an error
    /// (`EPOLLRDHUP`, `EPOLLHUP`, `EPOLLERR`). Bytes may still wait to be read.
    pub hangup: bool,
    /// The socket has an error (`EPOLLERR`): nothing more will be sent or received.
    pub error: bool,
}

/// An epoll instance and the room for the events of one turn (12 bytes each).
pub struct Driver {
    epoll: Owned,
    events: Box<[libc::epoll_event]>,
    ready: usize,
    _table: OfThisTable,
}

impl Driver {
    /// A driver that reports at most `events_max` events for each [`wait`](Driver::wait); the others
    /// come with the next.
    ///
    /// # Errors
    /// When the table is full or the kernel has no memory.
    ///
    /// # Panics
    /// When `events_max` is 0.
    pub fn new(events_max: usize) -> io::Result<Driver> {
        assert!(events_max > 0, "a driver needs room for an event");
        // SAFETY: takes no pointers.
        let epoll = Owned::from_answer(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; events_max].into_boxed_slice();
        Ok(Driver {
            epoll,
            events,
            ready: 0,
            _table: PhantomData,
        })
    }

    /// Waits until something is ready or `timeout_ms` has passed (`None`: without end, 0: only looks)
    /// and says how many events there are. A signal counts as no events.
    ///
    /// # Errors
    /// Only those of a broken program (`EBADF`).
    pub fn wait(&mut self, timeout_ms: Option<u32>) -> io::Result<usize> {
        let timeout = timeout_ms.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX));
        let room = i32::try_from(self.events.len()).unwrap_or(i32::MAX);
        self.ready = 0;
        // SAFETY: `events` has room for `room` events and is borrowed mutably through the call.
        let answer = unsafe {
            libc::epoll_wait(
                self.epoll.fd().raw(),
                self.events.as_mut_ptr(),
                room,
                timeout,
            )
        };
        match usize::try_from(answer) {
            Ok(ready) => self.ready = ready,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        Ok(self.ready)
    }

    /// The event `i` of the last [`wait`](Driver::wait).
    ///
    /// # Panics
    /// When the last wait gave no such event.
    pub fn event(&self, i: usize) -> Event {
        let event = self.events[..self.ready][i];
        let has = |flags: libc::c_int| event.events & flags as u32 != 0;
        Event {
            token: event.u64,
            readable: has(libc::EPOLLIN),
            writable: has(libc::EPOLLOUT),
            hangup: has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR),
            error: has(libc::EPOLLERR),
        }
    }

    /// Registers a descriptor. With neither `read` nor `write` it still reports its hang-up.
    ///
    /// # Errors
    /// `EEXIST` when it is registered, `ENOMEM`, `ENOSPC` (`fs.epoll.max_user_watches`).
    pub fn add(&mut self, fd: Fd, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(
            libc::EPOLL_CTL_ADD,
            fd,
            token,
            libc::EPOLLRDHUP | interest(read, write),
        )
    }

    /// Replaces token and interest of a registered descriptor.
    ///
    /// Level-triggered, a peer that has ended its sending stays `hangup` at every wait; who does not
    /// close it then says [`modify_half_closed`](Driver::modify_half_closed).
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn modify(&mut self, fd: Fd, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(
            libc::EPOLL_CTL_MOD,
            fd,
            token,
            libc::EPOLLRDHUP | interest(read, write),
        )
    }

    /// Like [`modify`](Driver::modify), for a peer that is known to have ended its sending while something
    /// is still owed to it, or while its last bytes must wait: that end is not reported again, so that
    /// the thread does not spin on it. A reset still is.
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn modify_half_closed(
        &mut self,
        fd: Fd,
        token: u64,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest(read, write))
    }

    /// Takes a descriptor out that is not closed yet. (Closing it does the same.)
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn remove(&mut self, fd: Fd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&mut self, what: i32, fd: Fd, token: u64, flags: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: flags as u32,
            u64: token,
        };
        // SAFETY: `event` lives through the call, which keeps no pointer to it.
        check(unsafe { libc::epoll_ctl(self.epoll.fd().raw(), what, fd.raw(), &raw mut event) })
    }
}

fn interest(read: bool, write: bool) -> libc::c_int {
    (if read { libc::EPOLLIN } else { 0 }) | (if write { libc::EPOLLOUT } else { 0 })
}
