//! The poller: an epoll instance for each shard thread.
//!
//! The driver has no table of sockets: the kernel stores a 64-bit token with each registration. Tokens with the top bit are for
//! listeners and for the eventfd that wakes the thread; all others belong to the caller.
//!
//! Invariants: all registrations except the eventfd are level-triggered, so a caller may handle only some of the events. The kernel
//! deregisters a descriptor when it is closed, because it is in no other table. The end of a peer's stream is reported only while the
//! caller wants to read from the socket; otherwise every wait would report it. A reset is always reported.

use std::io;
use std::marker::PhantomData;

use rustix::event::epoll::CreateFlags;

use crate::sys::{Fd, OfThisTable, Owned, check};
use crate::transport::{Event, Readiness};

/// Tokens with this bit are not for connections.
const SPECIAL_BIT: u64 = 1 << 63;
/// The token of what wakes the thread and has no event of its own: the eventfd, for one.
pub(super) const WAKE_TOKEN: u64 = SPECIAL_BIT | 1 << 62;

/// The token of a listener.
pub const fn listener_token(index: usize) -> u64 {
    SPECIAL_BIT | index as u64
}

/// An epoll instance, and the memory for the events of one wait (12 bytes each).
pub struct Driver {
    epoll: Owned,
    events: Box<[libc::epoll_event]>,
    event_count: usize,
    _table: OfThisTable,
}

impl Driver {
    /// A driver that reports at most `events_max` events in each [`wait`](Driver::wait), and the others in the next one.
    ///
    /// # Errors
    /// If the table is full or the kernel has no memory.
    ///
    /// # Panics
    /// If `events_max` is 0.
    pub fn new(events_max: usize) -> io::Result<Driver> {
        assert!(events_max > 0, "a driver needs room for an event");
        let epoll = rustix::event::epoll::create(CreateFlags::CLOEXEC)?.into();
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; events_max].into_boxed_slice();
        Ok(Driver {
            epoll,
            events,
            event_count: 0,
            _table: PhantomData,
        })
    }

    /// Waits for events, at most `timeout_ms` (`None`: without limit; 0: returns at once). Returns the number of events; after a
    /// signal it is 0.
    ///
    /// # Errors
    /// Only after a programming error (`EBADF`).
    pub fn wait(&mut self, timeout_ms: Option<u32>) -> io::Result<usize> {
        let timeout = timeout_ms.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX));
        let room = i32::try_from(self.events.len()).unwrap_or(i32::MAX);
        self.event_count = 0;
        // SAFETY: `events` has room for `room` events and is borrowed mutably through the call.
        let result = unsafe {
            libc::epoll_wait(
                self.epoll.fd().raw(),
                self.events.as_mut_ptr(),
                room,
                timeout,
            )
        };
        match usize::try_from(result) {
            Ok(event_count) => self.event_count = event_count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        Ok(self.event_count)
    }

    /// The event `index` of the last [`wait`](Driver::wait).
    ///
    /// # Panics
    /// If the last wait found no such event.
    #[inline]
    pub fn event(&self, index: usize) -> Event {
        let event = self.events[..self.event_count][index];
        let (token, flags) = (event.u64, event.events);
        if token & SPECIAL_BIT == 0 {
            let has = |any_of: libc::c_int| flags & any_of as u32 != 0;
            return Event::Link(Readiness {
                token,
                readable: has(libc::EPOLLIN),
                writable: has(libc::EPOLLOUT),
                hangup: has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR),
            });
        }
        match token {
            WAKE_TOKEN => Event::Woken,
            listener => Event::Listener((listener & !SPECIAL_BIT) as usize),
        }
    }

    /// Registers a descriptor for reading.
    ///
    /// # Errors
    /// `EEXIST` if it is already registered, `ENOMEM`, `ENOSPC` (`fs.epoll.max_user_watches`).
    pub fn add(&mut self, fd: Fd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest_flags(true, false))
    }

    /// Registers the eventfd that wakes the thread. Each write to the eventfd is one event. The registration is edge-triggered, so nobody
    /// needs to read the eventfd.
    ///
    /// # Errors
    /// Those of [`add`](Driver::add).
    pub fn add_wake(&mut self, fd: Fd) -> io::Result<()> {
        self.control(
            libc::EPOLL_CTL_ADD,
            fd,
            WAKE_TOKEN,
            libc::EPOLLIN | libc::EPOLLET,
        )
    }

    /// Replaces the token and the interest of a registered descriptor.
    ///
    /// # Errors
    /// `ENOENT` if it is not registered.
    pub fn modify(&mut self, fd: Fd, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest_flags(read, write))
    }

    fn control(
        &mut self,
        operation: i32,
        fd: Fd,
        token: u64,
        flags: libc::c_int,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: flags as u32,
            u64: token,
        };
        // SAFETY: `event` lives longer than the call, which keeps no pointer to it.
        check(unsafe {
            libc::epoll_ctl(self.epoll.fd().raw(), operation, fd.raw(), &raw mut event)
        })
    }
}

fn interest_flags(read: bool, write: bool) -> libc::c_int {
    let readable = libc::EPOLLIN | libc::EPOLLRDHUP;
    (if read { readable } else { 0 }) | (if write { libc::EPOLLOUT } else { 0 })
}
