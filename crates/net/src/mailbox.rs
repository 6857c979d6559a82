//! Mailboxes between threads: each thread has one inbox, which takes whole batches.
//!
//! One round (turn) of a thread that receives mail:
//!
//! ```ignore
//! inbox.drain(&mut mail);                       // handle it, then:
//! let timeout_ms = if inbox.announce_sleep() { until_next_deadline } else { Some(0) };
//! transport.wait(timeout_ms)?;                  // mail ends it (Kernel::woken_by)
//! inbox.end_sleep();
//! ```
//!
//! Invariants:
//! * The mail of each sender stays in order, and none is lost. Posting a batch locks the mailbox once, and so does taking all mail.
//! * No wake-up is lost, because the mail and the reader's sleep flag are under the same lock.
//! * A sender writes to the eventfd only to end an announced sleep, so at most once for each sleep. While the reader is busy, posting costs
//!   no system call. Nobody reads the eventfd: each write is one event of an edge-triggered poller. An event that arrives late only makes
//!   one wait return early.
//! * The eventfd has the same number in the descriptor tables of all threads that post or read: it is made before the threads
//!   separate their tables, and they keep it ([`unshare`](crate::kernel::fd_table::unshare)). It is never closed, since no thread could
//!   close it in all tables. Mailboxes live as long as the process.
//!
//! A mailbox deliberately has no limit: at the limit a sender could only block. The broker limits the senders by credit.

use std::io;

use crate::sys::Fd;
use waker::{Arc, Mutex, MutexGuard, Waker};

/// The state that sender and reader share.
struct Shared<T> {
    state: Mutex<State<T>>,
    waker: Waker,
}

struct State<T> {
    mail: Vec<T>,
    /// The reader is asleep or about to block, and no sender has woken it yet.
    is_asleep: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // The lock is never poisoned: while it is held only an allocation can fail, and that aborts the process.
        self.state
            .lock()
            .expect("no thread panics inside the mailbox")
    }

    /// Adds mail by calling `add`, and wakes the reader if it sleeps.
    fn add_and_wake(&self, add: impl FnOnce(&mut Vec<T>)) {
        let mut state = self.lock();
        add(&mut state.mail);
        let is_asleep = std::mem::take(&mut state.is_asleep);
        // The reader is woken after the lock is released, so that it does not wait for the lock.
        drop(state);
        if is_asleep {
            self.waker.ring();
        }
    }
}

/// The sending end of a mailbox; each sending thread has a clone.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T: Send> Sender<T> {
    /// Posts one mail, and wakes the reader if it sleeps.
    pub fn post(&self, mail: T) {
        self.shared.add_and_wake(|inbox| inbox.push(mail));
    }

    /// Posts all mail of a batch in order, and wakes the reader if it sleeps. `batch` is empty afterwards and keeps its memory.
    pub fn post_all(&self, batch: &mut Vec<T>) {
        if !batch.is_empty() {
            self.shared.add_and_wake(|inbox| inbox.append(batch));
        }
    }
}

/// The receiving end of a mailbox, read by one thread.
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// This thread has announced a sleep and has not ended it.
    sleep_announced: bool,
}

impl<T: Send> Inbox<T> {
    /// The eventfd that ends a sleep. Each thread that posts to this inbox must keep it in its descriptor table.
    pub fn fd(&self) -> Fd {
        self.shared.waker.fd()
    }

    /// Takes all mail. If `into` is empty it is swapped with the mail, so that nothing is copied or allocated. Otherwise the mail is
    /// appended.
    pub fn drain(&mut self, into: &mut Vec<T>) {
        let mut state = self.shared.lock();
        if into.is_empty() {
            std::mem::swap(&mut state.mail, into);
        } else {
            into.append(&mut state.mail);
        }
    }

    /// Announces that this thread is about to block. If there is mail, announces nothing and returns false: the thread must not block then.
    pub fn announce_sleep(&mut self) -> bool {
        let mut state = self.shared.lock();
        let is_empty = state.mail.is_empty();
        state.is_asleep = is_empty;
        self.sleep_announced = is_empty;
        is_empty
    }

    /// Ends the sleep. Must be called after each wait, whatever woke the thread, and even if [`announce_sleep`](Inbox::announce_sleep)
    /// returned false.
    pub fn end_sleep(&mut self) {
        if std::mem::take(&mut self.sleep_announced) {
            self.shared.lock().is_asleep = false;
        }
    }

    /// For the loom model, in place of `Transport::wait`: blocks until a sender wakes the reader.
    #[cfg(feature = "loom")]
    pub fn block(&self) {
        self.shared.waker.block();
    }
}

/// Makes a mailbox. Must be called before the threads that use the mailbox separate their descriptor tables.
///
/// # Errors
/// If the table is full.
pub fn mailbox<T: Send>() -> io::Result<(Sender<T>, Inbox<T>)> {
    let state = Mutex::new(State {
        mail: Vec::new(),
        is_asleep: false,
    });
    let shared = Arc::new(Shared {
        state,
        waker: Waker::new()?,
    });
    let sender = Sender {
        shared: Arc::clone(&shared),
    };
    Ok((
        sender,
        Inbox {
            shared,
            sleep_announced: false,
        },
    ))
}

/// The eventfd of a mailbox.
#[cfg(not(feature = "loom"))]
mod waker {
    use std::io;
    pub(super) use std::sync::{Arc, Mutex, MutexGuard};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{retry_on_intr, write};

    use crate::sys::Fd;

    /// The only reason why a write to the eventfd can fail.
    const NO_EVENTFD: &str = "this thread's table has no eventfd of the mailbox";

    pub(super) struct Waker {
        fd: Fd,
    }

    impl Waker {
        pub(super) fn new() -> io::Result<Waker> {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into();
            Ok(Waker { fd })
        }

        pub(super) fn fd(&self) -> Fd {
            self.fd
        }

        /// Adds one to the counter.
        pub(super) fn ring(&self) {
            // Must not fail: without this wake-up the reader would sleep for ever.
            retry_on_intr(|| write(self.fd.lend(), &1_u64.to_ne_bytes())).expect(NO_EVENTFD);
        }
    }
}

/// For the loom model: a flag in place of the eventfd and its poller.
#[cfg(feature = "loom")]
mod waker {
    pub(super) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    use std::io;

    use crate::sys::Fd;

    pub(super) struct Waker {
        has_event: Mutex<bool>,
        event_added: Condvar,
    }

    impl Waker {
        pub(super) fn new() -> io::Result<Waker> {
            Ok(Waker {
                has_event: Mutex::new(false),
                event_added: Condvar::new(),
            })
        }

        pub(super) fn fd(&self) -> Fd {
            Fd(u32::MAX)
        }

        pub(super) fn ring(&self) {
            *self.has_event.lock().unwrap() = true;
            self.event_added.notify_one();
        }

        pub(super) fn block(&self) {
            let mut has_event = self.has_event.lock().unwrap();
            while !std::mem::take(&mut *has_event) {
                has_event = self.event_added.wait(has_event).unwrap();
            }
        }
    }
}
