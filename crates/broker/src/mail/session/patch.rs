//! The difference between two states of a session, for the records of the log. A record contains only the changes: otherwise the log would get all
//! subscriptions of a client, which may be a thousand, with each step of a QoS 2 message.
//!
//! The connection that writes the records does not remember the whole state that is in the log, but only its [`Outline`]: two hashes for each
//! subscription and message. A patch has the [digest](Outline::digest) of the outline before the change. A reader whose session has another
//! digest refuses the patch. So if a record is lost because the log is damaged, no session gets a state that is half right.
//!
//! The bytes of a patch: the common positions (a list), then a script for each list of the [stored form](super::stored): subscriptions, messages
//! in flight, messages that wait, packet ids. A script is a sequence of steps. A step is a number: the operation in the lowest three bits, and
//! above them the number of entries. A step with 0 entries ends the script, and all further entries stay.
//!
//! If a client has received all messages, all its subscriptions with wildcards have the same positions, and each message changes these positions. So a
//! patch has them once, and one step [`ADVANCE`] for all of these subscriptions.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crore_wire::mqtt::{self, Packet, Properties, Property};
use crore_wire::topic;

use xxhash_rust::xxh3::xxh3_64;

use super::stored::{OPTIONS, StoredMessage, StoredSession, StoredSubscription, read_list};
use crate::base::ids::PartitionId;
use crate::base::snapshot::{Damaged, FieldReader, FieldWriter};
use crate::mail::session::EncodedSession;
use crate::store::shared::Slice;

/// The operations of a script: entries stay, are removed, are replaced by the entries that follow, or entries are inserted.
const KEEP: u64 = 0;
const REMOVE: u64 = 1;
const REPLACE: u64 = 2;
const INSERT: u64 = 3;
/// Subscriptions that [`is_advanced`] selects get the common positions. The other subscriptions of the step stay.
const ADVANCE: u64 = 4;
const STEP_BITS: u32 = 3;

/// DUP in the first byte of a PUBLISH.
const DUP: u8 = 0b1000;

/// A patch. It only fits the session with this token while the state of the session has this digest.
#[derive(Clone, Debug)]
pub struct SessionPatch {
    /// The token of the session.
    pub token: u64,
    /// The digest of the state before the change.
    pub digest_before: u64,
    /// The changes, with the payloads of large messages.
    pub changes: EncodedSession,
}

/// What the digest of a state includes. The log may have records of earlier builds, so a build with other hashes must add a form here, and a flag in the
/// record (`record.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestForm {
    /// Without the properties of messages.
    First,
    /// With the properties of messages.
    Second,
}

impl DigestForm {
    /// The form in which this build writes.
    pub const NEWEST: DigestForm = DigestForm::Second;
}

/// Two hashes of an entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// The hash of the fields that never change, which identify the entry.
    identity: u64,
    /// The hash of the other fields.
    state: u64,
}

/// The hashes of a session's state in the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    token: u64,
    subscriptions: Vec<Entry>,
    inflight: Vec<Entry>,
    waiting: Vec<Entry>,
    received: Vec<u16>,
}

impl Outline {
    /// The outline of a new session with this token.
    pub fn for_new_session(token: u64) -> Outline {
        Outline {
            token,
            ..Outline::default()
        }
    }

    pub fn from_session(session: &StoredSession<'_>) -> Outline {
        Outline::with_form(session, DigestForm::NEWEST)
    }

    fn with_form(session: &StoredSession<'_>, form: DigestForm) -> Outline {
        let (sent, waiting) = (session.inflight.iter(), session.waiting.iter());
        Outline {
            token: session.token,
            subscriptions: session
                .subscriptions
                .iter()
                .map(subscription_entry)
                .collect(),
            inflight: sent.map(|it| sent_entry(it, form)).collect(),
            waiting: waiting.map(|it| waiting_entry(it, form)).collect(),
            received: session.received.clone(),
        }
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        let entries =
            self.subscriptions.capacity() + self.inflight.capacity() + self.waiting.capacity();
        entries * size_of::<Entry>() + self.received.capacity() * size_of::<u16>()
    }

    /// The number of QoS 2 messages that the client has published and not released.
    pub fn unreleased(&self) -> usize {
        self.received.len()
    }

    /// A digest of the state.
    pub fn digest(&self) -> u64 {
        let lists = [&self.subscriptions, &self.inflight, &self.waiting];
        let of_list = |digest, list: &Vec<Entry>| {
            list.iter()
                .fold(mix(digest, list.len() as u64), |digest, it| {
                    mix(mix(digest, it.identity), it.state)
                })
        };
        let digest = lists.into_iter().fold(self.token, of_list);
        let received = self.received.iter();
        received.fold(digest, |digest, id| mix(digest, (*id).into()))
    }

    /// The patch that changes the state with this outline into `session`, whose outline is `after`.
    pub fn patch(&self, session: &StoredSession<'_>, after: &Outline) -> SessionPatch {
        let (mut bytes, mut payloads) = (Vec::new(), Vec::new());
        let matches = match_entries(&self.subscriptions, &after.subscriptions);
        let common = common_positions(self, after, session, &matches);
        let mut out = FieldWriter(&mut bytes);
        out.number(common.len() as u64);
        common.iter().for_each(|offset| out.number(*offset));
        let advanced = (!common.is_empty()).then(|| state_of(false, common, &[]));
        let mut script = Script::default();
        for step in matches {
            let EntryMatch::Kept(old_index, new_index) = step else {
                script.add(&mut bytes, step, |bytes, new_index| {
                    session.subscriptions[new_index].encode(bytes)
                });
                continue;
            };
            let (state, subscription) = (
                after.subscriptions[new_index].state,
                &session.subscriptions[new_index],
            );
            let stays = self.subscriptions[old_index].state == state;
            if advanced == Some(state) && is_advanced(subscription)
                || stays && script.has_kind(ADVANCE) && !is_advanced(subscription)
            {
                script.begin(&mut bytes, ADVANCE);
            } else if stays {
                script.begin(&mut bytes, KEEP);
            } else {
                script.begin(&mut bytes, REPLACE);
                encode_state(subscription, &mut script.body);
            }
        }
        script.end(&mut bytes);
        for (before, after, messages) in [
            (&self.inflight, &after.inflight, &session.inflight),
            (&self.waiting, &after.waiting, &session.waiting),
        ] {
            let mut script = Script::default();
            let mut write = |bytes: &mut Vec<u8>, new_index: usize| {
                messages[new_index].encode(bytes);
                payloads.extend(messages[new_index].payload.clone());
            };
            for step in match_entries(before, after) {
                match step {
                    EntryMatch::Kept(old_index, new_index)
                        if before[old_index] == after[new_index] =>
                    {
                        script.begin(&mut bytes, KEEP);
                    }
                    EntryMatch::Kept(_, new_index) => {
                        script.begin(&mut bytes, REPLACE);
                        write(&mut script.body, new_index);
                    }
                    step => script.add(&mut bytes, step, &mut write),
                }
            }
            script.end(&mut bytes);
        }
        let mut script = Script::default();
        for step in match_entries(&self.received, &after.received) {
            match step {
                EntryMatch::Kept(..) => script.begin(&mut bytes, KEEP),
                step => script.add(&mut bytes, step, |bytes, new_index| {
                    bytes.extend_from_slice(&after.received[new_index].to_le_bytes());
                }),
            }
        }
        script.end(&mut bytes);
        SessionPatch {
            token: self.token,
            digest_before: self.digest(),
            changes: EncodedSession {
                bytes: bytes.into_boxed_slice(),
                payloads,
            },
        }
    }
}

impl SessionPatch {
    /// The patch that leaves this state unchanged.
    pub fn without_changes(session: &EncodedSession) -> Option<SessionPatch> {
        // This process has encoded or checked the session.
        let stored = StoredSession::decode(session).ok()?;
        let outline = Outline::from_session(&stored);
        Some(outline.patch(&stored, &outline))
    }
}

/// Applies the changes of a patch to a stored session with the digest `digest_before`, which has this form.
///
/// # Errors
/// The session has another digest, or no server has written the patch.
pub(crate) fn apply_patch(
    session: &EncodedSession,
    (digest_before, form): (u64, DigestForm),
    changes: &[u8],
    payloads: Vec<Slice>,
    partitions: PartitionId,
) -> Result<EncodedSession, Damaged> {
    let stored = StoredSession::decode(session)?;
    if Outline::with_form(&stored, form).digest() != digest_before {
        return Err(Damaged("a record changes another state of its session"));
    }
    let (mut reader, mut payloads) = (FieldReader(changes), payloads.into_iter());
    let common = read_list(&mut reader, FieldReader::number)?;
    let mut old = stored.subscriptions.into_iter();
    let mut subscriptions = Vec::new();
    while let Some((kind, count)) = read_step(&mut reader)? {
        for _ in 0..count {
            if kind == INSERT {
                let it = StoredSubscription::decode(&mut reader)?;
                it.check(partitions)?;
                subscriptions.push(it);
                continue;
            }
            let mut it = old.next().ok_or(TOO_LONG)?;
            match kind {
                KEEP => {}
                REMOVE => continue,
                REPLACE => {
                    decode_state(&mut reader, &mut it)?;
                    it.check(partitions)?;
                }
                ADVANCE if is_advanced(&it) => {
                    (it.lacks_retained, it.starts) = (false, Vec::new());
                    it.positions.clone_from(&common);
                    it.check(partitions)?;
                }
                ADVANCE => {}
                _ => return Err(UNKNOWN),
            }
            subscriptions.push(it);
        }
    }
    subscriptions.extend(old);
    let mut messages = |old| {
        apply_script(&mut reader, old, |reader| {
            let it = StoredMessage::decode(reader, &mut payloads)?;
            it.check().map(|()| it)
        })
    };
    let (inflight, waiting) = (messages(stored.inflight)?, messages(stored.waiting)?);
    let received = apply_script(&mut reader, stored.received, FieldReader::fixed16)?;
    let mut keyless = stored.keyless;
    if !keyless.is_empty() {
        let unreleased: BTreeSet<u16> = received.iter().copied().collect();
        keyless.retain(|id| unreleased.contains(id));
    }
    reader.expect_end()?;
    if payloads.next().is_some() {
        return Err(Damaged(
            "a record of a session has a payload for no message",
        ));
    }
    let patched = StoredSession {
        subscriptions,
        inflight,
        waiting,
        received,
        keyless,
        ..stored
    };
    Ok(patched.encode())
}

const TOO_LONG: Damaged = Damaged("a record changes more of a session than there is");
const UNKNOWN: Damaged = Damaged("a record changes a session in an unknown way");

/// The next step of a script, and the number of entries that it concerns; `None` at the end of the script.
fn read_step(reader: &mut FieldReader<'_>) -> Result<Option<(u64, u64)>, Damaged> {
    let step = reader.number()?;
    let (kind, count) = (step & ((1 << STEP_BITS) - 1), step >> STEP_BITS);
    Ok((count > 0).then_some((kind, count)))
}

fn apply_script<'a, T>(
    reader: &mut FieldReader<'a>,
    old: Vec<T>,
    mut read: impl FnMut(&mut FieldReader<'a>) -> Result<T, Damaged>,
) -> Result<Vec<T>, Damaged> {
    let (mut old, mut new) = (old.into_iter(), Vec::new());
    while let Some((kind, count)) = read_step(reader)? {
        for _ in 0..count {
            if kind != INSERT {
                let it = old.next().ok_or(TOO_LONG)?;
                if kind == KEEP {
                    new.push(it);
                }
            }
            match kind {
                KEEP | REMOVE => {}
                REPLACE | INSERT => new.push(read(reader)?),
                _ => return Err(UNKNOWN),
            }
        }
    }
    new.extend(old);
    Ok(new)
}

/// The unfinished step of a script that is being written, with its entries so far.
#[derive(Default)]
struct Script {
    kind: u64,
    count: u64,
    body: Vec<u8>,
}

impl Script {
    fn has_kind(&self, kind: u64) -> bool {
        self.count > 0 && self.kind == kind
    }

    /// Adds an entry to the step, or to a new step if the kind differs. The caller appends the entry's bytes, if any, to `body`.
    fn begin(&mut self, bytes: &mut Vec<u8>, kind: u64) {
        if !self.has_kind(kind) {
            self.write(bytes);
            self.kind = kind;
        }
        self.count += 1;
    }

    fn add(
        &mut self,
        bytes: &mut Vec<u8>,
        step: EntryMatch,
        mut write: impl FnMut(&mut Vec<u8>, usize),
    ) {
        match step {
            EntryMatch::Removed => self.begin(bytes, REMOVE),
            EntryMatch::New(new_index) | EntryMatch::Kept(_, new_index) => {
                self.begin(bytes, INSERT);
                write(&mut self.body, new_index);
            }
        }
    }

    fn write(&mut self, bytes: &mut Vec<u8>) {
        if self.count > 0 {
            FieldWriter(bytes).number(self.count << STEP_BITS | self.kind);
            bytes.append(&mut self.body);
            self.count = 0;
        }
    }

    /// Ends the script. A last [`KEEP`] is not written, since the entries after the last step stay anyway.
    fn end(mut self, bytes: &mut Vec<u8>) {
        if self.kind != KEEP {
            self.write(bytes);
        }
        bytes.push(0);
    }
}

/// A step from the old list to the new one: an entry in both (with both indexes), an entry that is gone, or a new entry (with its index).
#[derive(Clone, Copy)]
enum EntryMatch {
    Kept(usize, usize),
    Removed,
    New(usize),
}

trait Identified {
    fn identity(&self) -> u64;
}

impl Identified for Entry {
    fn identity(&self) -> u64 {
        self.identity
    }
}

impl Identified for u16 {
    fn identity(&self) -> u64 {
        u64::from(*self)
    }
}

/// Matches the entries of two lists, in the order of the second one. An entry that has moved forward is removed and inserted again.
fn match_entries<T: Identified>(before: &[T], after: &[T]) -> Vec<EntryMatch> {
    let mut steps = Vec::with_capacity(after.len());
    // The entries of the old list, sorted by identity. Only made when the next old entry does not match.
    let mut sorted: Option<Vec<(u64, usize)>> = None;
    let mut next_old = 0;
    for (new_index, entry) in after.iter().enumerate() {
        let identity = entry.identity();
        let found = match before.get(next_old) {
            None => None,
            Some(next) if next.identity() == identity => Some(next_old),
            Some(_) => {
                let sorted = sorted.get_or_insert_with(|| {
                    let all = before.iter().map(Identified::identity);
                    let mut all: Vec<(u64, usize)> = all.zip(0..).collect();
                    all.sort_unstable();
                    all
                });
                let first = sorted.partition_point(|entry| *entry < (identity, next_old));
                let found = sorted.get(first).filter(|(other, _)| *other == identity);
                found.map(|(_, index)| *index)
            }
        };
        match found {
            Some(old_index) => {
                steps.extend((next_old..old_index).map(|_| EntryMatch::Removed));
                steps.push(EntryMatch::Kept(old_index, new_index));
                next_old = old_index + 1;
            }
            None => steps.push(EntryMatch::New(new_index)),
        }
    }
    steps.extend((next_old..before.len()).map(|_| EntryMatch::Removed));
    steps
}

/// The positions of the first changed subscription that a step [`ADVANCE`] can express; empty if there is none.
fn common_positions<'a>(
    before: &Outline,
    after: &Outline,
    session: &'a StoredSession<'_>,
    matches: &[EntryMatch],
) -> &'a [u64] {
    let changed = matches.iter().filter_map(|step| match step {
        EntryMatch::Kept(old_index, new_index)
            if before.subscriptions[*old_index].state != after.subscriptions[*new_index].state =>
        {
            Some(&session.subscriptions[*new_index])
        }
        _ => None,
    });
    let mut common = changed.filter(|it| {
        is_advanced(it) && !it.positions.is_empty() && it.starts.is_empty() && !it.lacks_retained
    });
    common.next().map_or(&[], |it| &it.positions)
}

/// Whether [`ADVANCE`] changes this subscription.
fn is_advanced(subscription: &StoredSubscription<'_>) -> bool {
    subscription.qos() > 0 && topic::has_wildcard(&subscription.filter) && !subscription.is_shared()
}

fn subscription_entry(it: &StoredSubscription<'_>) -> Entry {
    let options = u64::from(it.options & OPTIONS) << 32 | u64::from(it.identifier);
    Entry {
        identity: mix(options, xxh3_64(&it.filter)),
        state: state_of(it.lacks_retained, &it.positions, &it.starts),
    }
}

fn state_of(lacks_retained: bool, positions: &[u64], starts: &[u64]) -> u64 {
    let lens = (positions.len() as u64) << 32 | starts.len() as u64;
    let all = positions.iter().chain(starts);
    all.fold(mix(lens, lacks_retained.into()), |hash, offset| {
        mix(hash, *offset)
    })
}

/// The entry of a message that was sent. Its packet id does not change. The flag DUP is ignored, since the server sets it anyway when it sends the message
/// again.
fn sent_entry(it: &StoredMessage<'_>, form: DigestForm) -> Entry {
    Entry {
        identity: it.packet_id.into(),
        state: content_hash(it, DUP, form),
    }
}

/// The entry of a message that waits. Its content belongs to the identity, since the message may have no packet id yet.
fn waiting_entry(it: &StoredMessage<'_>, form: DigestForm) -> Entry {
    let content = content_hash(it, 0, form);
    Entry {
        identity: mix(content, it.packet_id.into()),
        state: content,
    }
}

/// A hash of a message's content: topic, payload and properties. The bytes of the packet are not hashed, since they contain the remaining time to live,
/// which is another one each time the message is sent. The first form does not hash the properties; the second does, because two requests may differ
/// only in their properties.
fn content_hash(it: &StoredMessage<'_>, ignored_flags: u8, form: DigestForm) -> u64 {
    let flags = u64::from(it.packet.first().copied().unwrap_or(0) & !ignored_flags);
    let kind = flags << 1 | u64::from(it.is_released);
    let publish = || {
        let (header, length) = mqtt::fixed_header(&it.packet, usize::MAX).ok()??;
        match mqtt::decode(it.version, header, &it.packet[length..]).ok()? {
            Packet::Publish(publish) => Some(publish),
            _ => None,
        }
    };
    let (topic, properties, payload) = match publish() {
        Some(it) => (it.topic.as_bytes(), it.properties, it.payload),
        None => (&*it.packet, Properties::NONE, &b""[..]),
    };
    let payload = it.payload.as_deref().unwrap_or(payload);
    let hashed_properties = properties
        .iter()
        .filter(|(property, _)| *property != Property::MessageExpiryInterval)
        .filter(|_| form != DigestForm::First);
    let hash = hashed_properties.fold(
        mix(kind, it.end_s.unwrap_or(u64::MAX)),
        |hash, (_, property)| mix(hash, xxh3_64(property)),
    );
    mix(mix(hash, xxh3_64(topic)), xxh3_64(payload))
}

/// A hash of both numbers. One of them cannot be the hash function's seed: a short input and a small seed can cancel out.
fn mix(one: u64, other: u64) -> u64 {
    xxh3_64([one.to_le_bytes(), other.to_le_bytes()].as_flattened())
}

/// Encodes the fields of a subscription that change.
fn encode_state(it: &StoredSubscription<'_>, bytes: &mut Vec<u8>) {
    let mut out = FieldWriter(bytes);
    out.byte(it.lacks_retained.into());
    for list in [&it.positions, &it.starts] {
        out.number(list.len() as u64);
        list.iter().for_each(|offset| out.number(*offset));
    }
}

fn decode_state(
    reader: &mut FieldReader<'_>,
    it: &mut StoredSubscription<'_>,
) -> Result<(), Damaged> {
    it.lacks_retained = reader.byte()? != 0;
    it.positions = read_list(reader, FieldReader::number)?;
    it.starts = read_list(reader, FieldReader::number)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::session::stored::tests::session;
    use alloc::boxed::Box;
    use alloc::format;
    use proptest::prelude::*;

    const TOKEN: u64 = 7;

    fn with_token(session: StoredSession<'static>) -> StoredSession<'static> {
        StoredSession {
            token: TOKEN,
            epoch: 1,
            ..session
        }
    }

    fn patch(before: &StoredSession<'_>, after: &StoredSession<'_>) -> SessionPatch {
        Outline::from_session(before).patch(after, &Outline::from_session(after))
    }

    fn applied(
        session: &StoredSession<'_>,
        patch: &SessionPatch,
        changes: &[u8],
        partitions: PartitionId,
    ) -> Result<EncodedSession, Damaged> {
        let payloads = patch.changes.payloads.clone();
        apply_patch(
            &session.encode(),
            (patch.digest_before, DigestForm::NEWEST),
            changes,
            payloads,
            partitions,
        )
    }

    fn assert_patched(before: &StoredSession<'_>, after: &StoredSession<'_>, most: PartitionId) {
        let patch = patch(before, after);
        let read = applied(before, &patch, &patch.changes.bytes, most).expect("it was just made");
        // A session gets no more ids that homes do not know.
        let (mut keyless, received) = (before.keyless.clone(), &after.received);
        keyless.retain(|id| received.contains(id));
        let expected = StoredSession {
            keyless,
            ..after.clone()
        };
        let expected = expected.encode();
        assert_eq!(read.bytes, expected.bytes);
        let payloads = |it: &EncodedSession| -> Vec<Box<[u8]>> {
            it.payloads.iter().map(|it| it[..].into()).collect()
        };
        assert_eq!(payloads(&read), payloads(&expected));
    }

    /// A session after one change of this kind, to the entry at this index.
    fn changed(
        mut session: StoredSession<'static>,
        (kind, at): (u8, usize),
        other: &StoredSession<'static>,
    ) -> StoredSession<'static> {
        let StoredSession {
            subscriptions,
            inflight,
            waiting,
            received,
            ..
        } = &mut session;
        match kind {
            0 => subscriptions.iter_mut().for_each(|it| {
                it.positions.iter_mut().for_each(|offset| *offset += 1);
            }),
            1 if !subscriptions.is_empty() => drop(subscriptions.remove(at % subscriptions.len())),
            2 => subscriptions
                .splice(0..0, other.subscriptions.clone())
                .for_each(drop),
            3 if !inflight.is_empty() => {
                let at = at % inflight.len();
                (inflight[at].is_released, inflight[at].packet) = (true, b""[..].into());
                inflight[at].payload = None;
            }
            4 if !inflight.is_empty() => waiting.push(inflight.remove(at % inflight.len())),
            5 => waiting.reverse(),
            6 => received.extend(received.last().map_or(Some(7), |last| last.checked_add(1))),
            _ => inflight.extend(other.inflight.clone()),
        }
        session
    }

    proptest! {
        #[test]
        fn patch_makes_the_next_state_of_a_session(
            before in session(),
            other in session(),
            changes in proptest::collection::vec((0..8_u8, any::<usize>()), 0..4),
        ) {
            let before = with_token(before);
            assert_patched(&before, &with_token(other.clone()), 1);
            let after = changes.iter().fold(before.clone(), |it, change| changed(it, *change, &other));
            assert_patched(&before, &after, 1);
        }

        #[test]
        fn patch_that_is_cut_or_longer_is_refused(
            before in session(),
            after in session(),
            at in any::<prop::sample::Index>(),
        ) {
            let (before, after) = (with_token(before), with_token(after));
            let patch = patch(&before, &after);
            let bytes = &patch.changes.bytes;
            let cut = &bytes[..at.index(bytes.len())];
            for changes in [cut, &[bytes, &b"x"[..]].concat()] {
                prop_assert!(applied(&before, &patch, changes, 1).is_err());
            }
        }

        #[test]
        fn patch_of_another_state_is_refused(before in session(), after in session(), other in session()) {
            let (before, other) = (with_token(before), with_token(other));
            prop_assume!(Outline::from_session(&before) != Outline::from_session(&other));
            let patch = patch(&before, &with_token(after));
            prop_assert!(applied(&other, &patch, &patch.changes.bytes, 1).is_err());
        }
    }

    #[test]
    fn patch_with_a_payload_for_no_message_is_refused() {
        let before = StoredSession::default();
        let mut patch = patch(&before, &before);
        let settings = crate::base::settings::Settings::default();
        let admission = crate::budget::admission::Admission::new(&settings, 7);
        let large = crate::store::shared::Shared::new([7; 9].into(), &admission);
        patch.changes.payloads.push(large.slice(0..9));
        assert!(applied(&before, &patch, &patch.changes.bytes, 1).is_err());
    }

    #[test]
    fn patch_is_as_long_as_what_has_changed() {
        let subscription = |n: u64, filter: &str| StoredSubscription {
            filter: format!("{filter}/{n}").into_bytes().into(),
            options: 1,
            identifier: 0,
            lacks_retained: false,
            positions: match filter {
                "+" => alloc::vec![1 << 20; 16],
                _ => alloc::vec![1 << 20],
            },
            starts: Vec::new(),
        };
        let all = (0..1000).map(|n| subscription(n, if n % 3 == 0 { "a" } else { "+" }));
        let before = with_token(StoredSession {
            subscriptions: all.collect(),
            ..StoredSession::default()
        });
        let message = StoredMessage {
            packet_id: 9,
            is_released: false,
            version: mqtt::Version::V311,
            end_s: None,
            packet: b"\x34\x05\0\x01t\0\x09"[..].into(),
            payload: None,
        };
        let moved = |subscriptions: &mut [StoredSubscription<'_>]| {
            for it in subscriptions.iter_mut().filter(|it| it.positions.len() > 1) {
                it.positions[7] += 1;
            }
        };
        let (mut sent, mut subscribed) = (before.clone(), before.clone());
        moved(&mut sent.subscriptions);
        sent.subscriptions[3].positions[0] += 1;
        sent.inflight.push(message);
        subscribed.subscriptions[500] = subscription(2000, "a");
        subscribed.subscriptions.push(subscription(2001, "+"));
        for (after, most) in [(&before, 5), (&sent, 110), (&subscribed, 100)] {
            assert_patched(&before, after, 16);
            let bytes = patch(&before, after).changes.bytes.len();
            assert!(bytes <= most, "{bytes} bytes");
        }
    }

    #[test]
    fn a_waiting_message_with_other_properties_is_another_one() {
        // PUBLISH with QoS 1 to "t", with this time to live and this correlation data.
        let message = |expiry: u8, correlation: u8| StoredMessage {
            packet_id: 1,
            is_released: false,
            version: mqtt::Version::V5,
            end_s: Some(90),
            packet: [
                &b"\x32\x11\0\x01t\0\x01\x09\x02\0\0\0"[..],
                &[expiry],
                b"\x09\0\x01",
                &[correlation],
                b"{}",
            ]
            .concat()
            .into(),
            payload: None,
        };
        let waits = |expiry, correlation| StoredSession {
            waiting: alloc::vec![message(expiry, correlation)],
            ..StoredSession::default()
        };
        assert_patched(&waits(9, b'1'), &waits(9, b'2'), 1);
        let kept = patch(&waits(9, b'1'), &waits(5, b'1')).changes.bytes;
        assert!(!kept.windows(2).any(|it| it == b"{}"), "{kept:?}");
    }

    #[test]
    fn record_of_an_earlier_build_changes_a_session_with_properties() {
        let message = StoredMessage {
            packet_id: 1,
            is_released: false,
            version: mqtt::Version::V5,
            end_s: None,
            packet: (&b"\x32\x0c\0\x01t\0\x01\x04\x09\0\x011{}"[..]).into(),
            payload: None,
        };
        let before = StoredSession {
            token: 7,
            inflight: alloc::vec![message],
            ..StoredSession::default()
        };
        // An earlier build hashed the topic and the payload alone.
        let content = [mix(u64::from(b'\x32') << 1, u64::MAX), xxh3_64(b"t")];
        let sent = mix(mix(content[0], content[1]), xxh3_64(b"{}"));
        let lists = [0, 1, 1, sent, 0];
        let digest = lists.into_iter().fold(7, mix);
        let after = StoredSession {
            inflight: Vec::new(),
            ..before.clone()
        };
        let patch = patch(&before, &after);
        let read = |digest, form| {
            let changes = &patch.changes.bytes;
            let read = apply_patch(&before.encode(), (digest, form), changes, Vec::new(), 1);
            read.map(|session| session.bytes)
        };
        assert_eq!(read(digest, DigestForm::First), Ok(after.encode().bytes));
        assert!(read(digest, DigestForm::Second).is_err());
        assert!(read(patch.digest_before, DigestForm::First).is_err());
    }

    #[test]
    fn subscriptions_that_differ_a_little_have_different_hashes() {
        let (mut identities, mut states) = (BTreeSet::new(), BTreeSet::new());
        for n in 0..40_u8 {
            for identifier in 0..40 {
                let mut it = StoredSubscription {
                    filter: [b't', b'0' + n].to_vec().into(),
                    options: 1,
                    identifier,
                    lacks_retained: false,
                    positions: alloc::vec![n.into(), identifier.into()],
                    starts: Vec::new(),
                };
                identities.insert(subscription_entry(&it).identity);
                states.insert(subscription_entry(&it).state);
                it.options = 2;
                it.lacks_retained = true;
                identities.insert(subscription_entry(&it).identity);
                states.insert(subscription_entry(&it).state);
            }
        }
        assert_eq!((identities.len(), states.len()), (3200, 3200));
    }

    #[test]
    fn message_that_is_encoded_anew_has_not_changed() {
        let message = |packet: &'static [u8]| StoredMessage {
            packet_id: 9,
            is_released: false,
            version: mqtt::Version::V5,
            end_s: Some(100),
            packet: packet.into(),
            payload: None,
        };
        // The second message has DUP, and another remaining time to live. The third has another payload.
        let first = message(b"\x34\x0c\0\x01t\0\x09\x05\x02\0\0\0\x20x");
        let again = message(b"\x3c\x0c\0\x01t\0\x09\x05\x02\0\0\0\x10x");
        let other = message(b"\x34\x0c\0\x01t\0\x09\x05\x02\0\0\0\x20y");
        for form in [DigestForm::First, DigestForm::Second] {
            assert_eq!(sent_entry(&first, form), sent_entry(&again, form));
            assert_ne!(sent_entry(&first, form), sent_entry(&other, form));
            // DUP tells whether a message that waits was sent before.
            assert_ne!(waiting_entry(&first, form), waiting_entry(&again, form));
        }
    }
}
