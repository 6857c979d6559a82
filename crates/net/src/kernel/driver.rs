//! Readiness: one epoll instance for each shard thread, level-triggered but for the thread's wake.
//!
//! The driver keeps no row per socket: the kernel carries a 64-bit token with each registration. Those with the topmost bit
//! are the driver's own, for listeners and the thread's wake; all others are the caller's.
//!
//! Invariants: level-triggered, so nothing is lost by handling only a part; a closed descriptor leaves by
//! itself, since no other table holds it. The end of a peer's sending is asked for only while the socket is read:
//! level-triggered it would be reported at every wait, to a thread that does not want to hear it. A reset always is reported.
//!
//! Deliberately not here: timers, callbacks.

use std::io;
use std::marker::PhantomData;

use rustix::event::epoll::CreateFlags;

use crate::sys::{Fd, OfThisTable, Owned, check};
use crate::transport::{Event, Readiness};

/// Tokens with this bit are no connections'.
const SPECIAL: u64 = 1 << 63;
/// The token of the eventfd that wakes the thread.
const WAKE: u64 = SPECIAL | 1 << 62;

/// The token of a listener.
pub const fn listener(n: usize) -> u64 {
    SPECIAL | n as u64
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
        let epoll = rustix::event::epoll::create(CreateFlags::CLOEXEC)?.into();
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
    #[inline]
    pub fn event(&self, i: usize) -> Event {
        let event = self.events[..self.ready][i];
        let (token, flags) = (event.u64, event.events);
        if token & SPECIAL == 0 {
            let has = |any: libc::c_int| flags & any as u32 != 0;
            return Event::Link(Readiness {
                token,
                readable: has(libc::EPOLLIN),
                writable: has(libc::EPOLLOUT),
                hangup: has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR),
            });
        }
        match token {
            WAKE => Event::Woken,
            listener => Event::Arrival((listener & !SPECIAL) as usize),
        }
    }

    /// Registers a descriptor, for reading.
    ///
    /// # Errors
    /// `EEXIST` when it is registered, `ENOMEM`, `ENOSPC` (`fs.epoll.max_user_watches`).
    pub fn add(&mut self, fd: Fd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest(true, false))
    }

    /// Registers the eventfd that wakes the thread: each write to it is one event. Edge-triggered, so that it need not be read.
    ///
    /// # Errors
    /// Those of [`add`](Driver::add).
    pub fn add_wake(&mut self, fd: Fd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, WAKE, libc::EPOLLIN | libc::EPOLLET)
    }

    /// Replaces token and interest of a registered descriptor.
    ///
    /// # Errors
    /// `ENOENT` when it is not registered.
    pub fn modify(&mut self, fd: Fd, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest(read, write))
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
    let readable = libc::EPOLLIN | libc::EPOLLRDHUP;
    (if read { readable } else { 0 }) | (if write { libc::EPOLLOUT } else { 0 })
}
