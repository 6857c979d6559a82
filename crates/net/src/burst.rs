//! Many sends in one system call: an io_uring of its own for each shard thread.
//!
//! Every send is non-blocking and marked so, which the kernel completes while it takes the burst in:
//! when [`Burst::send_all`] returns, all of them are over and no buffer is looked at again. Where the
//! kernel refuses a ring (an old one, a container's filter, `kernel.io_uring_disabled`), each send is a
//! call of its own.
//!
//! Deliberately not here: receiving. An armed receive costs an idle socket 890 B of kernel memory, its
//! place in epoll 208 B.

use io_uring::{IoUring, opcode, squeue, types};

use crate::Fd;
use crate::socket::{self, SEND_FLAGS, Sent};
use crate::sys::OfThisTable;
use std::marker::PhantomData;

/// Sends of one burst. Larger ones go out in parts: the ring is memory of every shard (64 B for each
/// send and 16 B for each of two completions), and the gain is had long before.
pub const BURST_MAX: usize = 64;

/// What sends in bursts.
pub struct Burst {
    ring: Option<IoUring>,
    _table: OfThisTable,
}

impl Burst {
    /// A ring for the calling thread, or none where the kernel gives none.
    #[must_use]
    pub fn new() -> Burst {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .build(BURST_MAX as u32);
        Burst {
            ring: ring.ok(),
            _table: PhantomData,
        }
    }

    /// Whether sends go out together.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Sends each of the buffers as far as its socket takes it. Calls `short` with the place of a buffer
    /// and the bytes that were taken wherever that was not all; the poller reports a connection that failed.
    pub fn send_all<'a>(
        &mut self,
        sends: impl IntoIterator<Item = (Fd, &'a [u8])>,
        mut short: impl FnMut(usize, usize),
    ) {
        let mut sends = sends.into_iter().enumerate().peekable();
        let Some(ring) = &mut self.ring else {
            for (n, (fd, bytes)) in sends {
                match socket::send(fd, bytes) {
                    Sent::Bytes(taken) if taken == bytes.len() => {}
                    Sent::Bytes(taken) => short(n, taken),
                    Sent::Again | Sent::Failed(_) => short(n, 0),
                }
            }
            return;
        };
        while sends.peek().is_some() {
            let mut lengths = [0; BURST_MAX];
            let mut first = 0;
            let mut count = 0;
            let mut queue = ring.submission();
            while count < BURST_MAX
                && let Some((n, (fd, bytes))) = sends.next()
            {
                if count == 0 {
                    first = n;
                }
                // SAFETY: the buffer is readable for its length and borrowed until `complete` has seen
                // the end of this send.
                unsafe { push(&mut queue, fd, bytes, count as u64) };
                lengths[count] = bytes.len();
                count += 1;
            }
            drop(queue);
            complete(ring, &lengths[..count], |n, taken| short(first + n, taken));
        }
    }
}

impl Default for Burst {
    fn default() -> Self {
        Burst::new()
    }
}

/// # Safety
/// `bytes` must stay readable until this send has completed.
unsafe fn push(queue: &mut squeue::SubmissionQueue<'_>, fd: Fd, bytes: &[u8], place: u64) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let entry = opcode::Send::new(types::Fd(fd.raw()), bytes.as_ptr(), length)
        .flags(SEND_FLAGS)
        .build()
        .user_data(place);
    // SAFETY: the caller keeps the buffer; the descriptor is only a number.
    let pushed = unsafe { queue.push(&entry) };
    pushed.expect("the ring has a place for each send of a burst, and is empty between bursts");
}

/// Hands the burst to the kernel and does not return before each of its sends is over.
fn complete(ring: &mut IoUring, lengths: &[usize], mut short: impl FnMut(usize, usize)) {
    let mut over = 0;
    while over < lengths.len() {
        // A failure (`EINTR`, no memory for the moment) leaves the rest in the queue for the next try;
        // returning instead would let go of buffers that the kernel may still read.
        let _ = ring.submit_and_wait(lengths.len() - over);
        for done in ring.completion() {
            over += 1;
            let place = done.user_data() as usize;
            let taken = usize::try_from(done.result()).unwrap_or(0);
            if taken < lengths[place] {
                short(place, taken);
            }
        }
    }
}
