//! The records of MQTT sessions: which connection holds a session, the session's state, its changes and its end. The key of a record is the name of the
//! session. The record is in the log of that name's partition.
//!
//! A single node applies these records only when it reads the log at the start (`home/sessions/recorded.rs`): the process that writes the records has
//! the sessions in memory. In a cluster all nodes apply the records (`home/sessions/replicated.rs`).

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::record_kind::{Family, RecordKind};
use crate::base::snapshot::{Damaged, FieldReader, FieldWriter};
use crate::budget::admission::Client;
use crate::mail::session::patch::DigestForm;
use crate::mail::session::{EncodedSession, SessionPatch, Will};

/// The flags of claims, states and patches.
const HELD: u8 = 1;
const HAS_WILL: u8 = 2;
const CLEAN: u8 = 4;
const HAS_TERMS: u8 = 8;
/// Patches with the second [`DigestForm`].
const SECOND_DIGEST: u8 = 16;
/// The maximum number of bytes of a session's name: a client id and a user.
const NAME_BYTES_MAX: usize = 64 << 10;

/// A record of a session.
#[derive(Debug)]
pub struct SessionRecord<'a> {
    /// The name of the session: the client id, and the user if there is one.
    pub name: &'a [u8],
    /// The change.
    pub change: SessionChange<'a>,
    /// In a cluster, the condition for any change except a claim. Otherwise `None`.
    pub fence: Option<Fence>,
}

/// The condition for a change of a session in a cluster: the last claim before the change in the log is the last claim that the writer of the change
/// knew. Otherwise the change is void, since a newer claim has given the session to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The offset of the last claim that the change's writer knew.
    pub claim: u64,
    /// Who changes the session.
    pub changed_by: ChangedBy,
}

/// Who changes a session in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedBy {
    /// The connection that holds the session, and continues to hold it.
    Holder,
    /// The connection that holds the session, and that ends.
    Closing,
    /// The steward of the partition, while no connection holds the session.
    Steward,
    /// An operator at any node, while no connection holds the session.
    Operator,
}

/// A change of a session.
#[derive(Debug)]
pub enum SessionChange<'a> {
    /// A connection holds the session from now on. A new session begins if there is none, or with Clean Start.
    Claim {
        /// Whether this claim ends the former session (Clean Start).
        clean: bool,
        /// Seconds that the session outlives the connection. If they are 0 on a single node, the reader of the log begins no session, since the session
        /// ends with the connection.
        expiry_s: u32,
        /// The client that is charged for the session.
        owner: Client,
        /// The token of the session that the claim begins, if the claim begins a session.
        token: u64,
        /// The will of the connection.
        will: Option<Box<Will>>,
    },
    /// The whole state of the session, which replaces the former state.
    State(RecordedState<'a>),
    /// A change of some entries of the state.
    Patch(RecordedPatch<'a>),
    /// The session with this token has ended, or any session of this name if the token is 0.
    End {
        /// The token.
        token: u64,
    },
}

/// The recorded state of a session.
#[derive(Debug)]
pub struct RecordedState<'a> {
    /// Owner, expiry and will, and whether a connection holds the session.
    pub terms: Terms,
    /// The stored form (`stored.rs`).
    pub bytes: &'a [u8],
    /// The payloads of large messages, which are not among `bytes`.
    pub payloads: Vec<&'a [u8]>,
}

/// A change of some entries of a session's state.
#[derive(Debug)]
pub struct RecordedPatch<'a> {
    /// The token of the session. The record changes no other session of the same name.
    pub token: u64,
    /// The digest (`Outline::digest`) of the state before the change, and its form.
    pub digest_before: (u64, DigestForm),
    /// The changes (`patch.rs`).
    pub changes: &'a [u8],
    /// The payloads of large messages, which are not among `changes`.
    pub payloads: Vec<&'a [u8]>,
    /// The new terms, if they change because a connection has ended, a will was published, or the home changes them.
    pub terms: Option<Terms>,
}

/// The fields of a session besides its state: owner, expiry, will, and whether a connection holds the session.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The client that is charged for the session.
    pub owner: Client,
    /// Whether a connection holds the session.
    pub is_held: bool,
    /// Seconds that the session outlives its connection.
    pub expiry_s: u32,
    /// The will, unless it was published.
    pub will: Option<Box<Will>>,
}

/// A change that the home, and not a connection, makes to a session. The client is disconnected.
pub(crate) enum ChangeAtHome {
    /// The session with this token has ended.
    End(u64),
    /// The session has new terms. The patch has no changes. It only says, by its token and its digest, to which state the terms belong.
    Terms(SessionPatch, Terms),
}

impl ChangeAtHome {
    pub(crate) fn encode(self, name: &[u8], fence: Option<Fence>) -> EncodedRecord {
        let change = match self {
            ChangeAtHome::End(token) => SessionChange::End { token },
            ChangeAtHome::Terms(ref patch, terms) => {
                SessionChange::Patch(RecordedPatch::new(patch, Some(terms)))
            }
        };
        SessionRecord {
            name,
            change,
            fence,
        }
        .encode()
    }
}

/// A record that is not in a batch yet.
pub(crate) struct EncodedRecord {
    kind: RecordKind,
    /// The bytes after the offset.
    rest: Vec<u8>,
}

impl EncodedRecord {
    /// Appends the record. Its offset is the first offset of its batch plus `offset_delta`.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>, offset_delta: u32) {
        let mut out = FieldWriter(bytes);
        out.byte(self.kind as u8);
        out.number(offset_delta.into());
        bytes.extend_from_slice(&self.rest);
    }
}

impl SessionChange<'_> {
    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            SessionChange::Claim { .. } => RecordKind::SessionClaim,
            SessionChange::State(_) => RecordKind::SessionState,
            SessionChange::Patch(_) => RecordKind::SessionParts,
            SessionChange::End { .. } => RecordKind::SessionEnd,
        }
    }
}

impl SessionRecord<'_> {
    pub(crate) fn encode(&self) -> EncodedRecord {
        let mut rest = Vec::new();
        let mut out = FieldWriter(&mut rest);
        out.field(self.name);
        match &self.change {
            SessionChange::Claim {
                clean,
                expiry_s,
                owner,
                token,
                will,
            } => {
                let flag = |set, flag| if set { flag } else { 0 };
                out.byte(flag(*clean, CLEAN) | flag(will.is_some(), HAS_WILL));
                out.number((*expiry_s).into());
                out.number(owner.number().into());
                out.word(*token);
                if let Some(will) = will {
                    will.write(&mut out);
                }
            }
            SessionChange::State(state) => state.encode(&mut out),
            SessionChange::Patch(patch) => patch.encode(&mut out),
            SessionChange::End { token } => out.word(*token),
        }
        if let Some(fence) = self.fence {
            out.word(fence.claim);
            out.byte(fence.changed_by as u8);
        }
        EncodedRecord {
            kind: self.change.kind(),
            rest,
        }
    }
}

impl<'a> SessionRecord<'a> {
    /// Whether the record has a fence if it needs one, and has none otherwise. In the log of a cluster (`is_replicated`) all records except claims need
    /// a fence.
    pub(crate) fn has_right_fence(&self, is_replicated: bool) -> bool {
        let is_claim = matches!(self.change, SessionChange::Claim { .. });
        self.fence.is_some() == (is_replicated && !is_claim)
    }

    /// Decodes a record. Returns its offset minus the first offset of its batch, and the record; `None` if the record is not of a session.
    ///
    /// # Errors
    /// The record is malformed.
    pub(crate) fn decode(record: &'a [u8]) -> Result<Option<(u32, SessionRecord<'a>)>, Damaged> {
        let mut reader = FieldReader(record);
        reader.byte()?;
        let kind = RecordKind::read(record).filter(|kind| kind.family() == Family::Session);
        let Some(kind) = kind else { return Ok(None) };
        let offset_delta = reader.number32()?;
        let name = reader.field()?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Damaged("a session has no valid name"));
        }
        let change = match kind {
            RecordKind::SessionClaim => {
                let flags = reader.byte()?;
                SessionChange::Claim {
                    clean: flags & CLEAN != 0,
                    expiry_s: reader.number32()?,
                    owner: Client::from_number(reader.number32()?),
                    token: reader.word()?,
                    will: read_will(&mut reader, flags)?,
                }
            }
            RecordKind::SessionState => SessionChange::State(RecordedState::decode(&mut reader)?),
            RecordKind::SessionParts => SessionChange::Patch(RecordedPatch::decode(&mut reader)?),
            _ => SessionChange::End {
                token: reader.word()?,
            },
        };
        let fence = match reader.is_empty() {
            true => None,
            false => Some(Fence::decode(&mut reader)?),
        };
        reader.expect_end()?;
        let record = SessionRecord {
            name,
            change,
            fence,
        };
        Ok(Some((offset_delta, record)))
    }
}

impl Fence {
    fn decode(reader: &mut FieldReader<'_>) -> Result<Fence, Damaged> {
        let claim = reader.word()?;
        let changed_by = match reader.byte()? {
            0 => ChangedBy::Holder,
            1 => ChangedBy::Closing,
            2 => ChangedBy::Steward,
            3 => ChangedBy::Operator,
            _ => return Err(Damaged("a session is changed by nobody that is known")),
        };
        Ok(Fence { claim, changed_by })
    }
}

impl<'a> RecordedState<'a> {
    /// The state `session` with these terms.
    pub(crate) fn new(session: &'a EncodedSession, terms: Terms) -> RecordedState<'a> {
        RecordedState {
            terms,
            bytes: &session.bytes,
            payloads: session
                .payloads
                .iter()
                .map(|payload| &payload[..])
                .collect(),
        }
    }

    fn encode(&self, out: &mut FieldWriter<'_>) {
        let flag = |set, flag| if set { flag } else { 0 };
        let terms = &self.terms;
        out.number(terms.owner.number().into());
        out.byte(flag(terms.is_held, HELD) | flag(terms.will.is_some(), HAS_WILL));
        out.number(terms.expiry_s.into());
        out.field(self.bytes);
        write_payloads(&self.payloads, out);
        if let Some(will) = &terms.will {
            will.write(out);
        }
    }

    fn decode(reader: &mut FieldReader<'a>) -> Result<RecordedState<'a>, Damaged> {
        let owner = Client::from_number(reader.number32()?);
        let flags = reader.byte()?;
        let (expiry_s, bytes) = (reader.number32()?, reader.field()?);
        let payloads = read_payloads(reader)?;
        let will = read_will(reader, flags)?;
        Ok(RecordedState {
            terms: Terms {
                owner,
                is_held: flags & HELD != 0,
                expiry_s,
                will,
            },
            bytes,
            payloads,
        })
    }
}

impl<'a> RecordedPatch<'a> {
    /// The change by a patch, with new terms if there are any.
    pub(crate) fn new(patch: &'a SessionPatch, terms: Option<Terms>) -> RecordedPatch<'a> {
        let payloads = patch.changes.payloads.iter();
        RecordedPatch {
            token: patch.token,
            digest_before: (patch.digest_before, DigestForm::NEWEST),
            changes: &patch.changes.bytes,
            payloads: payloads.map(|payload| &payload[..]).collect(),
            terms,
        }
    }

    fn encode(&self, out: &mut FieldWriter<'_>) {
        let flag = |set, flag| if set { flag } else { 0 };
        let (digest, form) = self.digest_before;
        out.word(self.token);
        out.word(digest);
        let terms = self.terms.as_ref();
        let terms_flags = terms.map_or(0, |terms| {
            HAS_TERMS | flag(terms.is_held, HELD) | flag(terms.will.is_some(), HAS_WILL)
        });
        out.byte(terms_flags | flag(form == DigestForm::Second, SECOND_DIGEST));
        if let Some(terms) = terms {
            out.number(terms.owner.number().into());
            out.number(terms.expiry_s.into());
        }
        out.field(self.changes);
        write_payloads(&self.payloads, out);
        if let Some(will) = terms.and_then(|terms| terms.will.as_ref()) {
            will.write(out);
        }
    }

    fn decode(reader: &mut FieldReader<'a>) -> Result<RecordedPatch<'a>, Damaged> {
        let (token, digest, flags) = (reader.word()?, reader.word()?, reader.byte()?);
        if flags & !(HAS_TERMS | HELD | HAS_WILL | SECOND_DIGEST) != 0 {
            return Err(Damaged("a record changes a session in an unknown form"));
        }
        let digest_before = match flags & SECOND_DIGEST {
            0 => (digest, DigestForm::First),
            _ => (digest, DigestForm::Second),
        };
        let owner_and_expiry = match flags & HAS_TERMS {
            0 => None,
            _ => Some((Client::from_number(reader.number32()?), reader.number32()?)),
        };
        let (changes, payloads) = (reader.field()?, read_payloads(reader)?);
        let terms = match owner_and_expiry {
            None => None,
            Some((owner, expiry_s)) => Some(Terms {
                owner,
                is_held: flags & HELD != 0,
                expiry_s,
                will: read_will(reader, flags)?,
            }),
        };
        Ok(RecordedPatch {
            token,
            digest_before,
            changes,
            payloads,
            terms,
        })
    }
}

fn write_payloads(payloads: &[&[u8]], out: &mut FieldWriter<'_>) {
    out.number(payloads.len() as u64);
    payloads.iter().for_each(|payload| out.field(payload));
}

fn read_payloads<'a>(reader: &mut FieldReader<'a>) -> Result<Vec<&'a [u8]>, Damaged> {
    // If the count is damaged, this fails before it uses much memory: each payload consumes at least one byte of `reader`.
    let count = reader.number()?;
    (0..count).map(|_| reader.field()).collect()
}

fn read_will(reader: &mut FieldReader<'_>, flags: u8) -> Result<Option<Box<Will>>, Damaged> {
    match flags & HAS_WILL {
        0 => Ok(None),
        _ => Ok(Some(Box::new(Will::read(reader)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a claim's offset and of [`ChangedBy`].
    const FENCE_BYTES: usize = 9;

    #[test]
    fn patch_in_a_form_of_a_later_build_is_refused() {
        let patch = RecordedPatch {
            token: 7,
            digest_before: (9, DigestForm::NEWEST),
            changes: b"",
            payloads: Vec::new(),
            terms: None,
        };
        let mut bytes = Vec::new();
        patch.encode(&mut FieldWriter(&mut bytes));
        let flags_index = 2 * size_of::<u64>();
        assert_eq!(bytes[flags_index], SECOND_DIGEST);
        assert!(RecordedPatch::decode(&mut FieldReader(&bytes)).is_ok());
        bytes[flags_index] |= SECOND_DIGEST << 1;
        assert!(RecordedPatch::decode(&mut FieldReader(&bytes)).is_err());
    }

    #[test]
    fn session_record_is_read_as_it_was_written() {
        let will = Will {
            delay_s: 7,
            topic: b"last/words".as_slice().into(),
            data: b"gone".as_slice().into(),
            ..Will::default()
        };
        let state = |will| {
            SessionChange::State(RecordedState {
                terms: Terms {
                    owner: Client::NOBODY,
                    is_held: true,
                    expiry_s: 60,
                    will,
                },
                bytes: b"stored",
                payloads: alloc::vec![b"large"],
            })
        };
        let claim = |will| SessionChange::Claim {
            clean: true,
            expiry_s: u32::MAX,
            owner: Client::NOBODY,
            token: 7,
            will,
        };
        let patch = |form, terms: Option<Option<Box<Will>>>| {
            SessionChange::Patch(RecordedPatch {
                token: 7,
                digest_before: (u64::MAX, form),
                changes: b"changes",
                payloads: alloc::vec![b"large"],
                terms: terms.map(|will| Terms {
                    owner: Client::NOBODY,
                    is_held: false,
                    expiry_s: 60,
                    will,
                }),
            })
        };
        let fence = |changed_by| {
            Some(Fence {
                claim: 1 << 40,
                changed_by,
            })
        };
        for (change, fence) in [
            (claim(None), None),
            (claim(Some(Box::new(will.clone()))), None),
            (state(None), None),
            (
                state(Some(Box::new(will.clone()))),
                fence(ChangedBy::Holder),
            ),
            (state(None), fence(ChangedBy::Steward)),
            (patch(DigestForm::First, None), None),
            (patch(DigestForm::Second, None), fence(ChangedBy::Holder)),
            (patch(DigestForm::First, Some(None)), None),
            (
                patch(DigestForm::Second, Some(Some(Box::new(will)))),
                fence(ChangedBy::Closing),
            ),
            (SessionChange::End { token: 9 }, None),
            (SessionChange::End { token: 9 }, fence(ChangedBy::Closing)),
            (SessionChange::End { token: 9 }, fence(ChangedBy::Operator)),
        ] {
            let record = SessionRecord {
                name: b"sensor-7",
                change,
                fence,
            };
            let mut bytes = Vec::new();
            record.encode().write(&mut bytes, 300);
            let (offset_delta, read) = SessionRecord::decode(&bytes)
                .expect("it is whole")
                .expect("it is of a session");
            assert_eq!(offset_delta, 300);
            assert_eq!(alloc::format!("{read:?}"), alloc::format!("{record:?}"));
            let without_fence = bytes.len() - FENCE_BYTES;
            for cut in 1..bytes.len() {
                let is_whole = record.fence.is_some() && cut == without_fence;
                let read = SessionRecord::decode(&bytes[..cut]);
                assert_eq!(read.is_ok(), is_whole, "{cut}");
            }
        }
    }
}
