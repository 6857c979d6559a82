//! Mail between threads: one inbox for each, which takes whole batches.
//!
//! The turn of a thread that receives mail:
//!
//! ```ignore
//! inbox.drain(&mut mail);                       // handle it, then:
//! let timeout_ms = if inbox.sleep() { until_next_deadline } else { Some(0) };
//! transport.wait(timeout_ms)?;                  // mail ends it (Kernel::woken_by)
//! inbox.awake();
//! ```
//!
//! Invariants:
//! * FIFO for each sender; nothing is lost; a batch is posted under one lock, and all mail is taken under one lock.
//! * No wake is missed: the mail and the reader's sleep flag are under the same lock.
//! * Only the sender that ends an announced sleep writes to the eventfd: at most once for each sleep, so a busy reader
//!   costs its senders no system call. Nobody reads it: each write is one event of an edge-triggered poller. One that comes when this thread is
//!   long awake makes one wait return early, no more.
//! * The eventfd is the one descriptor with the same number in every table: it is made before the threads part and kept by
//!   each that posts or reads ([`part`](crate::kernel::fd_table::part)). It is never closed, since no thread could close it
//!   in all tables; mailboxes live as long as the process.
//!
//! Deliberately not here: bounds. Senders have credit (see the broker), and a full mailbox could only block.

use std::io;

use crate::sys::Fd;
use bell::{Arc, Bell, Mutex, MutexGuard};

/// The state that sender and reader share.
struct Shared<T> {
    state: Mutex<State<T>>,
    bell: Bell,
}

struct State<T> {
    mail: Vec<T>,
    /// The reader sleeps, or is about to, and no sender has rung yet.
    asleep: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it holds the lock but an allocation that fails, which aborts.
        self.state
            .lock()
            .expect("no thread panics inside the mailbox")
    }

    fn put(&self, put: impl FnOnce(&mut Vec<T>)) {
        let mut state = self.lock();
        put(&mut state.mail);
        let asleep = std::mem::take(&mut state.asleep);
        // Rung outside of the lock, so that the reader does not wake into it.
        drop(state);
        if asleep {
            self.bell.ring();
        }
    }
}

/// Where mail is posted; one for each thread that posts.
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
    /// Posts one mail, and wakes the reader when it sleeps.
    pub fn post(&self, mail: T) {
        self.shared.put(|inbox| inbox.push(mail));
    }

    /// Posts a turn's mail in its order, under one lock and with one wake at most. `batch` is empty afterwards
    /// and keeps its memory.
    pub fn post_all(&self, batch: &mut Vec<T>) {
        if !batch.is_empty() {
            self.shared.put(|inbox| inbox.append(batch));
        }
    }
}

/// Where mail arrives; its thread alone reads it.
pub struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// This thread has announced a sleep that it has not ended.
    announced: bool,
}

impl<T: Send> Inbox<T> {
    /// The eventfd: written when mail has ended a sleep. To be kept in every table that posts here.
    pub fn fd(&self) -> Fd {
        self.shared.bell.fd()
    }

    /// Takes all mail. An empty `into` is swapped with the mail, so that neither side copies or allocates; otherwise the
    /// mail is appended to it.
    pub fn drain(&mut self, into: &mut Vec<T>) {
        let mut state = self.shared.lock();
        if into.is_empty() {
            std::mem::swap(&mut state.mail, into);
        } else {
            into.append(&mut state.mail);
        }
    }

    /// Announces that this thread is going to block. False when mail is there already: then nothing is announced, and the
    /// thread must not block.
    pub fn sleep(&mut self) -> bool {
        let mut state = self.shared.lock();
        let sleeps = state.mail.is_empty();
        state.asleep = sleeps;
        self.announced = sleeps;
        sleeps
    }

    /// Ends the sleep, also if something else woke the thread. To be called after each wait, also when `sleep` was refused.
    pub fn awake(&mut self) {
        if std::mem::take(&mut self.announced) {
            self.shared.lock().asleep = false;
        }
    }

    /// The model's `Transport::wait`: blocks until the bell was rung.
    #[cfg(feature = "loom")]
    pub fn block(&self) {
        self.shared.bell.block();
    }
}

/// A mailbox, before the threads that use it part their tables.
///
/// # Errors
/// When the table is full.
pub fn mailbox<T: Send>() -> io::Result<(Sender<T>, Inbox<T>)> {
    let state = Mutex::new(State {
        mail: Vec::new(),
        asleep: false,
    });
    let shared = Arc::new(Shared {
        state,
        bell: Bell::new()?,
    });
    let sender = Sender {
        shared: Arc::clone(&shared),
    };
    Ok((
        sender,
        Inbox {
            shared,
            announced: false,
        },
    ))
}

/// The eventfd behind a mailbox.
#[cfg(not(feature = "loom"))]
mod bell {
    use std::io;
    pub(super) use std::sync::{Arc, Mutex, MutexGuard};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{retry_on_intr, write};

    use crate::sys::Fd;

    /// The one failure of an eventfd that is there.
    const GONE: &str = "this thread's table has no eventfd of the mailbox";

    pub(super) struct Bell {
        fd: Fd,
    }

    impl Bell {
        pub(super) fn new() -> io::Result<Bell> {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into();
            Ok(Bell { fd })
        }

        pub(super) fn fd(&self) -> Fd {
            self.fd
        }

        /// Adds one to the counter.
        pub(super) fn ring(&self) {
            // A lost wake would leave the reader asleep for ever.
            retry_on_intr(|| write(self.fd.lend(), &1_u64.to_ne_bytes())).expect(GONE);
        }
    }
}

/// A flag in the place of the eventfd and its poller, for the model.
#[cfg(feature = "loom")]
mod bell {
    pub(super) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    use std::io;

    use crate::sys::Fd;

    pub(super) struct Bell {
        has_event: Mutex<bool>,
        rung: Condvar,
    }

    impl Bell {
        pub(super) fn new() -> io::Result<Bell> {
            Ok(Bell {
                has_event: Mutex::new(false),
                rung: Condvar::new(),
            })
        }

        pub(super) fn fd(&self) -> Fd {
            Fd(u32::MAX)
        }

        pub(super) fn ring(&self) {
            *self.has_event.lock().unwrap() = true;
            self.rung.notify_one();
        }

        pub(super) fn block(&self) {
            let mut has_event = self.has_event.lock().unwrap();
            while !std::mem::take(&mut *has_event) {
                has_event = self.rung.wait(has_event).unwrap();
            }
        }
    }
}
