//! Stores each large message once for all its holders: logs, turns (passes of the shard's loop), outboxes of sockets, and sessions that
//! have not acknowledged the message.
//!
//! Invariant: while a log keeps a message, its bytes count for the log. Otherwise they are charged to the memory account
//! ([`MemoryPart::Messages`](crate::budget::account::MemoryPart)) until the last holder drops it.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::fmt;
use core::ops::{Bound, Deref, Range};
use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};

use crate::budget::admission::Admission;

/// Shorter messages are copied: a copy costs less than a reference count to which several cores write.
pub const SHARED_MIN: usize = 8 << 10;

struct CountedBytes {
    bytes: Box<[u8]>,
    /// The number of logs that keep the message: at most two, the log of the topic and that of retained messages.
    log_count: AtomicU32,
    admission: Admission,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        if *self.log_count.get_mut() == 0 {
            self.admission.account.release_unowned(self.bytes.len());
        }
    }
}

/// Heap bytes of [`Shared`] besides the stored bytes.
pub const SHARED_OVERHEAD_BYTES: usize = size_of::<CountedBytes>() + 2 * size_of::<usize>();

/// Reference-counted bytes.
#[derive(Clone)]
pub struct Shared(Arc<CountedBytes>);

impl Shared {
    /// Shares bytes that no log keeps yet, and charges them to the memory account.
    pub fn new(bytes: Box<[u8]>, admission: &Admission) -> Shared {
        admission.account.charge_unowned(bytes.len());
        Shared(Arc::new(CountedBytes {
            bytes,
            log_count: AtomicU32::new(0),
            admission: admission.clone(),
        }))
    }

    /// Notes that a log keeps the bytes.
    pub fn enter_log(&self) {
        if self.0.log_count.fetch_add(1, AcqRel) == 0 {
            self.0.admission.account.release_unowned(self.len());
        }
    }

    /// Notes that a log no longer keeps the bytes.
    pub fn leave_log(&self) {
        if self.0.log_count.fetch_sub(1, AcqRel) == 1 {
            self.0.admission.account.charge_unowned(self.len());
        }
    }

    /// A slice of the bytes.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        debug_assert!(range.start <= range.end && range.end <= self.len());
        Slice {
            message: self.clone(),
            range,
        }
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Deref for Shared {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A slice of a large message.
#[derive(Clone)]
pub struct Slice {
    message: Shared,
    range: Range<usize>,
}

impl Slice {
    /// The whole message.
    pub fn message(&self) -> &Shared {
        &self.message
    }

    /// The slice without its first `bytes`.
    pub fn without_first(&self, bytes: usize) -> Slice {
        self.message.slice(self.range.start + bytes..self.range.end)
    }

    /// Drops the first bytes.
    pub fn advance(&mut self, bytes: usize) {
        self.range.start += bytes;
    }

    /// The bytes that a holder accounts for: an equal share of the whole message, or 0 while a log keeps it.
    pub fn weight(&self) -> usize {
        match self.message.0.log_count.load(Relaxed) {
            0 => self.message.len() / Arc::strong_count(&self.message.0),
            _ => 0,
        }
    }

    /// The first `bytes` of the slice.
    pub fn first(&self, bytes: usize) -> Slice {
        self.message
            .slice(self.range.start..self.range.start + bytes)
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.message[self.range.clone()]
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} B)", self.len())
    }
}

/// Bytes for a transport.
#[derive(Clone, Copy, Debug)]
pub enum OutputPart<'a> {
    /// Bytes that are valid only during the call. A transport that needs the bytes longer copies them.
    Bytes(&'a [u8]),
    /// Bytes of a large message. A transport that needs the bytes longer clones the reference.
    Shared(&'a Slice),
}

impl AsRef<[u8]> for OutputPart<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            OutputPart::Bytes(bytes) => bytes,
            OutputPart::Shared(slice) => slice,
        }
    }
}

/// An encoding of a large message, made once for all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The data lines of an SSE event.
    Event,
    /// The data lines of an SSE event, with the message in base64.
    EventBase64,
    /// A JSON string.
    Json,
    /// A JSON string, with the message in base64.
    JsonBase64,
    /// All that a client gets of the message, in the protocol's encoding with this number.
    Whole(u8),
    /// The same for a client of deltas that gets no delta of this message.
    WholeWithoutDelta(u8),
}

/// For each new entry, this many entries are examined, and removed if they are unused. So a new entry has a constant cost, and at most about half of
/// the table is unused.
const EXAMINED_PER_ENTRY: usize = 2;

/// Identifies an encoding of a slice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EncodingKey {
    /// The address of the message.
    message: usize,
    /// The start of the slice.
    start: usize,
    form: Form,
}

/// The encodings of large messages in use on a shard, so that each encoding is made only once. The table has only weak references, so it does
/// not keep an encoding alive.
///
/// Invariant: each encoding in use has an entry. An unused entry is removed before as many new entries come as the table contains. So the number of
/// entries is bounded by the number of encodings in use, whose bytes are charged.
#[derive(Default)]
pub struct EncodingCache {
    encodings: BTreeMap<EncodingKey, CachedEncoding>,
    /// The last examined entry.
    last_examined: Option<EncodingKey>,
    /// Bytes encoded since the last [`EncodingCache::take_encoded_bytes`].
    encoded_bytes: usize,
}

struct CachedEncoding {
    /// Keeps the message's address from being reused.
    _message: Weak<CountedBytes>,
    encoding: Weak<CountedBytes>,
}

impl EncodingCache {
    /// The encoding `form` of the slice. Calls `make` if the encoding is not in use.
    pub fn get(
        &mut self,
        slice: &Slice,
        form: Form,
        make: impl FnOnce(&[u8]) -> Box<[u8]>,
    ) -> Shared {
        let key = EncodingKey {
            message: slice.message.address(),
            start: slice.range.start,
            form,
        };
        if let Some(made) = self
            .encodings
            .get(&key)
            .and_then(|made| made.encoding.upgrade())
        {
            return Shared(made);
        }
        self.remove_unused();
        let bytes = make(slice);
        self.encoded_bytes += bytes.len();
        let made = Shared::new(bytes, &slice.message.0.admission);
        self.encodings.insert(
            key,
            CachedEncoding {
                _message: Arc::downgrade(&slice.message.0),
                encoding: Arc::downgrade(&made.0),
            },
        );
        made
    }

    /// Examines the next entries, and removes unused ones. After the last entry comes the first again.
    fn remove_unused(&mut self) {
        for _ in 0..EXAMINED_PER_ENTRY {
            let from = self.last_examined.map_or(Bound::Unbounded, Bound::Excluded);
            let next = self.encodings.range((from, Bound::Unbounded)).next();
            let next = next.map(|(key, made)| (*key, made.encoding.strong_count() > 0));
            self.last_examined = next.map(|(key, _)| key);
            if let Some((key, false)) = next {
                self.encodings.remove(&key);
            }
        }
    }

    /// Bytes encoded since the last call.
    pub fn take_encoded_bytes(&mut self) -> usize {
        core::mem::take(&mut self.encoded_bytes)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::base::settings::Settings;

    #[test]
    fn a_message_is_charged_while_no_log_keeps_it() {
        let admission = Admission::new(&Settings::default(), 7);
        let held = || admission.account.unowned_bytes();
        let message = Shared::new(Box::new([7; 1000]), &admission);
        assert_eq!(held(), 1000);
        message.enter_log();
        message.enter_log();
        let slice = message.slice(10..20);
        assert_eq!((held(), &slice[..]), (0, &[7; 10][..]));
        message.leave_log();
        assert_eq!(held(), 0);
        message.leave_log();
        drop(message);
        assert_eq!(held(), 1000);
        drop(slice.without_first(3));
        drop(slice);
        assert_eq!(held(), 0);
    }

    #[test]
    fn encoding_is_made_once_while_it_is_in_use() {
        let admission = Admission::new(&Settings::default(), 7);
        let message = Shared::new(Box::new([7; 1000]), &admission);
        let (mut forms, mut made) = (EncodingCache::default(), 0);
        let mut get = |form| {
            let slice = message.slice(0..500);
            forms.get(&slice, form, |bytes| {
                made += 1;
                Box::from(&bytes[..9])
            })
        };
        let first = get(Form::Json);
        assert_eq!(get(Form::Json)[..], first[..]);
        drop(get(Form::Event));
        drop(get(Form::Event));
        drop(first);
        drop(get(Form::Json));
        assert_eq!((made, forms.encodings.len()), (4, 1));
    }

    /// The slices from each byte of a message to its end, so that the test can make an encoding of each slice.
    fn parts(message: &Shared) -> impl Iterator<Item = Slice> {
        (0..message.len()).map(|from| message.slice(from..message.len()))
    }

    /// Tests that a new entry costs the same, however many entries there are and however many are unused.
    #[test]
    fn new_encoding_drops_few_others_and_all_expire() {
        let admission = Admission::new(&Settings::default(), 7);
        let message = Shared::new(Box::new([7; 1000]), &admission);
        let mut forms = EncodingCache::default();
        let mut get = |of: &Slice| {
            let before = forms.encodings.len();
            let form = forms.get(of, Form::Json, |_| Box::from([1]));
            (form, before, forms.encodings.len())
        };
        let mut held: Vec<Shared> = parts(&message).map(|of| get(&of).0).collect();
        held.truncate(100);
        let other = Shared::new(Box::new([8; 1000]), &admission);
        let mut left = 0;
        for of in parts(&other) {
            let (_, before, after) = get(&of);
            assert!(after + EXAMINED_PER_ENTRY > before, "{before} {after}");
            left = after;
        }
        assert!(left <= 2 * held.len() + EXAMINED_PER_ENTRY, "{left}");
    }
}
