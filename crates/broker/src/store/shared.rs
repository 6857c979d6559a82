//! Large messages, stored once for all holders: the log, a turn, the sockets that refused some of the bytes, the
//! sessions that have not acknowledged them.
//!
//! Invariant: while a log keeps a message, its bytes count for the log; from then on until the last holder drops it
//! they are charged to the account ([`Part::Messages`](crate::budget::account::Part)).

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

/// Length from which a message is shared. Below it, a copy costs less than a cache line that several cores write.
pub const SHARED_MIN: usize = 8 << 10;

struct Inner {
    bytes: Box<[u8]>,
    /// Logs that keep it: up to two, the topic's and that of retained messages.
    logs: AtomicU32,
    admission: Admission,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.logs.get_mut() == 0 {
            self.admission.account.let_message_go(self.bytes.len());
        }
    }
}

/// Bytes of heap that shared bytes need besides themselves.
pub const SHARED_BESIDE: usize = size_of::<Inner>() + 2 * size_of::<usize>();

/// Bytes with several holders.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

impl Shared {
    /// Bytes that no log keeps yet.
    pub fn new(bytes: Box<[u8]>, admission: &Admission) -> Shared {
        admission.account.hold_message(bytes.len());
        Shared(Arc::new(Inner {
            bytes,
            logs: AtomicU32::new(0),
            admission: admission.clone(),
        }))
    }

    /// A log keeps it.
    pub fn enter_log(&self) {
        if self.0.logs.fetch_add(1, AcqRel) == 0 {
            self.0.admission.account.let_message_go(self.len());
        }
    }

    /// A log no longer keeps it.
    pub fn leave_log(&self) {
        if self.0.logs.fetch_sub(1, AcqRel) == 1 {
            self.0.admission.account.hold_message(self.len());
        }
    }

    /// A part of the bytes.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        debug_assert!(range.start <= range.end && range.end <= self.len());
        Slice {
            of: self.clone(),
            range,
        }
    }

    fn place(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Deref for Shared {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A part of shared bytes.
#[derive(Clone)]
pub struct Slice {
    of: Shared,
    range: Range<usize>,
}

impl Slice {
    /// The bytes that it is a part of.
    pub fn whole(&self) -> &Shared {
        &self.of
    }

    /// All but the first bytes.
    pub fn behind(&self, bytes: usize) -> Slice {
        self.of.slice(self.range.start + bytes..self.range.end)
    }

    /// Drops the first bytes.
    pub fn advance(&mut self, bytes: usize) {
        self.range.start += bytes;
    }

    /// The part of the message's bytes that each holder is charged in a census: nothing while a log keeps it.
    pub fn weight(&self) -> usize {
        match self.of.0.logs.load(Relaxed) {
            0 => self.of.len() / Arc::strong_count(&self.of.0),
            _ => 0,
        }
    }

    /// The first bytes.
    pub fn until(&self, bytes: usize) -> Slice {
        self.of.slice(self.range.start..self.range.start + bytes)
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.of[self.range.clone()]
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} B)", self.len())
    }
}

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes that are valid during the call; a transport that needs them longer copies them.
    Bytes(&'a [u8]),
    /// Bytes of a large message; a transport that needs them longer clones the reference and copies nothing.
    Shared(&'a Slice),
}

impl AsRef<[u8]> for Part<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::Shared(slice) => slice,
        }
    }
}

/// A form of a large message that a transport needs, made once for all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The lines of an event's data.
    Event,
    /// The same, of base64.
    EventBase64,
    /// A JSON string.
    Json,
    /// The same, of base64.
    JsonBase64,
}

/// Forms that are looked at for each new one, to drop those that nobody holds: so a new form costs the same however many there are,
/// and at most about half of the table is forms that nobody holds.
const LOOKED_AT: usize = 2;

/// The place of the message, where the part of it begins, and its form.
type FormKey = (usize, usize, Form);

/// The forms in use on a shard: held by the writers, found by others that need the same.
///
/// Invariant: a form that somebody holds has an entry. The entry of one that nobody holds goes within as many new forms as there were
/// entries. So entries are bounded by the forms that were held together, whose bytes are charged.
#[derive(Default)]
pub struct Forms {
    all: BTreeMap<FormKey, Made>,
    /// The last entry that was looked at.
    seen: Option<FormKey>,
    /// Bytes made since they were last taken.
    made_bytes: usize,
}

struct Made {
    /// Keeps another message from getting the same address.
    _of: Weak<Inner>,
    form: Weak<Inner>,
}

impl Forms {
    /// The message in this form; `make` makes it if nobody holds it.
    pub fn get(&mut self, of: &Slice, form: Form, make: impl FnOnce(&[u8]) -> Box<[u8]>) -> Shared {
        let key = (of.of.place(), of.range.start, form);
        if let Some(made) = self.all.get(&key).and_then(|made| made.form.upgrade()) {
            return Shared(made);
        }
        self.drop_unheld();
        let bytes = make(of);
        self.made_bytes += bytes.len();
        let made = Shared::new(bytes, &of.of.0.admission);
        self.all.insert(
            key,
            Made {
                _of: Arc::downgrade(&of.of.0),
                form: Arc::downgrade(&made.0),
            },
        );
        made
    }

    /// Looks at the next entries, and drops those of forms that nobody holds; behind the last entry it begins anew.
    fn drop_unheld(&mut self) {
        for _ in 0..LOOKED_AT {
            let from = self.seen.map_or(Bound::Unbounded, Bound::Excluded);
            let next = self.all.range((from, Bound::Unbounded)).next();
            let next = next.map(|(key, made)| (*key, made.form.strong_count() > 0));
            self.seen = next.map(|(key, _)| key);
            if let Some((key, false)) = next {
                self.all.remove(&key);
            }
        }
    }

    /// Bytes made since the last call.
    pub fn take_made_bytes(&mut self) -> usize {
        core::mem::take(&mut self.made_bytes)
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
        let held = || admission.account.messages_bytes();
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
        drop(slice.behind(3));
        drop(slice);
        assert_eq!(held(), 0);
    }

    #[test]
    fn a_form_is_made_once_while_somebody_has_it() {
        let admission = Admission::new(&Settings::default(), 7);
        let message = Shared::new(Box::new([7; 1000]), &admission);
        let (mut forms, mut made) = (Forms::default(), 0);
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
        assert_eq!((made, forms.all.len()), (4, 1));
    }

    /// A message with many forms: of each part of it one.
    fn parts(message: &Shared) -> impl Iterator<Item = Slice> {
        (0..message.len()).map(|from| message.slice(from..message.len()))
    }

    /// However many there are, and however many of them nobody holds: the others are looked at later.
    #[test]
    fn a_new_form_drops_few_others_and_all_go_in_time() {
        let admission = Admission::new(&Settings::default(), 7);
        let message = Shared::new(Box::new([7; 1000]), &admission);
        let mut forms = Forms::default();
        let mut get = |of: &Slice| {
            let before = forms.all.len();
            let form = forms.get(of, Form::Json, |_| Box::from([1]));
            (form, before, forms.all.len())
        };
        let mut held: Vec<Shared> = parts(&message).map(|of| get(&of).0).collect();
        held.truncate(100);
        let other = Shared::new(Box::new([8; 1000]), &admission);
        let mut left = 0;
        for of in parts(&other) {
            let (_, before, after) = get(&of);
            assert!(after + LOOKED_AT > before, "{before} {after}");
            left = after;
        }
        assert!(left <= 2 * held.len() + LOOKED_AT, "{left}");
    }
}
