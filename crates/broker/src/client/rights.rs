//! Rights of connections: which client uses a connection, and whether the client may do what it requests. Each protocol reads its
//! credentials in its own module.
//!
//! A stream, a waiting poll and a client with a session keep the verdict (accepted with an identity, or refused) on their
//! credential while they last, and end when it expires.
//!
//! Invariant: a client with a refused credential is refused, even where no credential is needed.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::access::{Credential, Digest, Grants, Question, Right, VerifiedClient};
use crate::base::ids::ConnId;
use crate::base::notices::Notice;
use crate::base::reason::Reason;
use crate::base::verdict::{Identity, Verdict};
use crate::budget::admission::Party;
use crate::client::parts::{Census, Clients, Connections, Gate, Queues};
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::row::PAUSED;
use crate::client::types::ProtocolTypes;
use crate::io::Io;

/// The bytes that are copied in the time in which one byte of a credential is hashed and copied.
const HASH_WORK: usize = 3;

impl<P: ProtocolTypes> Clients<P> {
    /// Whether the connection's client has this right on every topic that `filter` matches. A topic name is a filter too.
    pub(crate) fn check_right(&self, slot: u32, right: Right, filter: &[u8]) -> Result<(), Reason> {
        let access = &self.ctx.world.settings.access;
        if !access.closed {
            return Ok(());
        }
        let steps = &self.meter.work.steps;
        let identity = self.conns.grants.get(slot);
        if let Some((grants, until_unix_s)) = identity {
            if until_unix_s <= self.ctx.wall_s() {
                return Err(Reason::Expired);
            }
            if self.is_revoked(grants) {
                return Err(Reason::Revoked);
            }
            if grants.covers(right, filter, steps) {
                return Ok(());
            }
        }
        let has_wildcard = memchr::memchr2(b'+', b'#', filter).is_some();
        let is_open_to_everybody = || {
            access.anonymous.covers(right, filter, steps)
                || self.ctx.world.rules.grants_everybody(right, filter, steps)
        };
        match is_open_to_everybody() {
            true if !has_wildcard || access.anonymous_wildcards => Ok(()),
            true if identity.is_none() => Err(Reason::WildcardsNeedCredentials),
            _ if identity.is_some() => Err(Reason::not_granted(right)),
            _ => Err(Reason::needs_credentials(right)),
        }
    }

    /// Whether the operator has revoked the credential of these grants.
    pub(crate) fn is_revoked(&self, grants: &Grants) -> bool {
        let revoked = &self.ctx.world.settings.access.revoked;
        revoked.has(grants, self.ctx.wall_s())
    }

    /// Why the connection's credential is not valid any more, or `None`. `changed`: the revoked credentials may have changed since
    /// the last call.
    pub(crate) fn lost_credential(&self, slot: u32, changed: bool) -> Option<Reason> {
        let (grants, until_unix_s) = self.conns.grants.get(slot)?;
        if until_unix_s <= self.ctx.wall_s() {
            return Some(Reason::Expired);
        }
        (changed && self.is_revoked(grants)).then_some(Reason::Revoked)
    }

    /// Reports to the operator's log that a client was refused for a missing right.
    pub(crate) fn report_denied(&mut self, slot: u32, denied: Reason, name: &[u8]) {
        let identity = self.conns.grants.get(slot);
        let user = identity.map(|(grants, _)| grants.user());
        let user = user.unwrap_or("an anonymous client");
        let named = [user.as_bytes(), b" asked for ", name].concat();
        let reason = alloc::format!("{}: ", denied.text());
        let notices = &mut self.meter.notices;
        notices.note_with_reason(Notice::Denied, &reason, &named);
    }

    /// Whether the client has each of these rights on each of these topics or filters.
    pub(crate) fn check_rights(
        &self,
        slot: u32,
        rights: &[Right],
        names: &[Vec<u8>],
    ) -> Result<(), Reason> {
        let check_on_all_names = |right: &Right| {
            names
                .iter()
                .try_for_each(|name| self.check_right(slot, *right, name))
        };
        rights.iter().try_for_each(check_on_all_names)
    }

    /// Whether the client may publish to any topic.
    pub(crate) fn check_may_publish_anywhere(&self, slot: u32) -> Result<(), Reason> {
        let access = &self.ctx.world.settings.access;
        let right = Right::Publish;
        let has_any = |grants: &Grants| grants.iter().any(|(rights, _)| rights.has(right));
        let identity = self.conns.grants.get(slot);
        let granted = identity.is_some_and(|(grants, _)| has_any(grants));
        if !access.closed
            || granted
            || has_any(&access.anonymous)
            || self.ctx.world.rules.any_grants_everybody(right)
        {
            return Ok(());
        }
        Err(match identity {
            Some(_) => Reason::not_granted(right),
            None => Reason::needs_credentials(right),
        })
    }

    /// Whether everybody may publish or subscribe to something.
    pub(crate) fn is_something_open(&self) -> bool {
        let (everybody, rules) = (
            &self.ctx.world.settings.access.anonymous,
            &self.ctx.world.rules,
        );
        let opens = |right| {
            everybody.iter().any(|(rights, _)| rights.has(right))
                || rules.any_grants_everybody(right)
        };
        opens(Right::Publish) || opens(Right::Subscribe)
    }

    /// Records which client the request or connection belongs to from now on.
    ///
    /// # Errors
    /// Why the credential was refused.
    pub(crate) fn set_identity(
        &mut self,
        slot: u32,
        identity: Option<Identity>,
    ) -> Result<(), Reason> {
        if let Some(known) = identity.map_or(Ok(None), |who| self.check_identity(who))? {
            self.conns.grants.set(slot, known);
        }
        Ok(())
    }

    /// Checks a verdict, which may have been given some time ago.
    ///
    /// # Errors
    /// Why the credential is refused.
    pub(crate) fn check_identity(&self, identity: Identity) -> Identity {
        match identity? {
            Some(known) if known.until_unix_s <= self.ctx.wall_s() => Err(Reason::TokenExpired),
            // The verdict may have been given before the revocation.
            Some(known) if self.is_revoked(&known.grants) => Err(Reason::CredentialsRevoked),
            known => Ok(known),
        }
    }
}

/// The name of the connection's user. Empty for an anonymous client.
pub fn user_of<P: ProtocolTypes>(conns: &Connections<P>, conn: ConnId) -> &str {
    let current = conns.is_current(conn);
    let known = current.then(|| conns.grants.get(conn.slot));
    known.flatten().map_or("", |(grants, _)| grants.user())
}

/// The verdict on a credential, if it is known; `None` if the verifier was asked, so that the verdict arrives later.
pub(crate) fn look_up_credential<P: ProtocolTypes, I: Io>(
    clients: &Clients<P>,
    census: &Census,
    gate: &mut Gate,
    slot: u32,
    credential: Credential<'_>,
    io: &mut I,
) -> Option<Identity> {
    let access = &clients.ctx.world.settings.access;
    let bytes = credential.len();
    if bytes > access.token_bytes {
        return Some(Err(Reason::TokenTooLong));
    }
    clients.meter.work.steps.add_bytes(HASH_WORK * bytes);
    let digest: Digest = credential.digest(&access.key);
    if let Some((_, grants)) = access.operator.as_ref().filter(|(own, _)| *own == digest) {
        let (grants, until_unix_s) = (Arc::clone(grants), u32::MAX);
        return Some(Ok(Some(VerifiedClient {
            grants,
            until_unix_s,
        })));
    }
    let (now_s, wall_s) = (clients.ctx.now.unix_s, clients.ctx.wall_s());
    if let Some(known) = gate.verdict_cache().get(digest, now_s, wall_s) {
        return Some(Ok(Some(known.clone())));
    }
    if !clients.has_memory_for(census, slot, bytes) {
        return Some(Err(Reason::VerifierBusy));
    }
    let asker = Party::of_connection(clients.conns.get(slot).consumer.client, slot).number();
    let settings_generation = gate.verdict_cache().settings_generation();
    let question_bytes = gate.question_bytes();
    let question = Question::new(
        credential,
        digest,
        settings_generation,
        asker,
        question_bytes,
    );
    match io.ask_verifier(clients.conns.id_of(slot), question) {
        true => None,
        false => Some(Err(Reason::VerifierBusy)),
    }
}

/// Handles a verdict from the verifier: caches it, and tells the connection's protocol.
pub(crate) fn handle_verdict<P: Protocols>(
    clients: &mut Clients<P>,
    queues: &mut Queues,
    gate: &mut Gate,
    conn: ConnId,
    verdict: Verdict,
) {
    let Verdict {
        digest,
        found,
        believed_until_s,
        settings_generation,
    } = verdict;
    if let Ok(known) = &found
        && settings_generation == gate.verdict_cache().settings_generation()
    {
        let verdicts_max = clients.ctx.world.settings.access.verdicts_per_shard;
        gate.verdict_cache()
            .insert(digest, known.clone(), believed_until_s, verdicts_max);
    }
    if !clients.conns.is_current(conn) {
        return;
    }
    let (state, who) = (clients.conns.get(conn.slot).consumer.state, found.map(Some));
    protocol_of!(P, state, handle_verdict(clients, queues, conn, who));
}

/// Stops reading a connection until the verdict on its credential arrives.
pub(crate) fn pause_for_verdict<P: ProtocolTypes, I: Io>(
    conns: &mut Connections<P>,
    slot: u32,
    io: &mut I,
) {
    let row = conns.get_mut(slot);
    row.link.flags |= PAUSED;
    conns.update_interest(slot, io);
}

/// The grants of the connection's user.
pub(crate) fn grants_of<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
) -> Option<&Arc<Grants>> {
    conns.grants.get(slot).map(|(grants, _)| grants)
}
