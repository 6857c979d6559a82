//! Authentication and authorization: who sent a request or holds a connection, and whether they may do what they ask for.
//!
//! Over HTTP each request is authenticated anew, since one connection of a proxy carries the requests of many clients. The
//! credential is read when the head of the request is there, before its body, and looked up or asked about. Until the verdict
//! comes, the request waits as it was received, with all bytes behind it. A stream, a waiting poll and an MQTT client keep
//! their verdict for as long as they last, and end when it expires.
//!
//! Invariants: no request is carried out before there is a verdict on its credential; a credential without a verdict is refused,
//! even where no credential is needed; the verdict on one request is forgotten before the next.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crore_wire::form;
use crore_wire::http::cookie;
use crore_wire::http::head::{Head, Method};

use super::task::{Door, Flow};
use crate::base::access::{Credential, Digest, Grants, Known, Question, Right, Verdict, Who};
use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::budget::admission::Party;
use crate::conn::io::Io;
use crate::conn::{CLOSING, PAUSED, State, TURNED_AWAY};
use crate::mail::Verb;
use crate::protocol::front::Front;
use crate::protocol::side::{HttpSpill, Spill};

/// The credential of a request, parsed.
enum Came {
    Token(Vec<u8>),
    Password { user: Vec<u8>, password: Vec<u8> },
}

impl Came {
    fn credential(&self) -> Credential<'_> {
        match self {
            Came::Token(token) => Credential::Token(token),
            Came::Password { user, password } => Credential::Password { user, password },
        }
    }
}

impl Front {
    /// Whether the connection's client has this right on every topic that `filter` matches; a plain topic name is a filter too.
    pub(crate) fn may(&self, slot: u32, right: Right, filter: &[u8]) -> Result<(), Reason> {
        let access = &self.world.settings.access;
        if !access.closed {
            return Ok(());
        }
        let steps = &self.work.steps;
        let pass = self.conns.pass(slot);
        if let Some((grants, until_unix_s)) = pass {
            if until_unix_s <= self.wall_s() {
                return Err(Reason::Expired);
            }
            if grants.cover(right, filter, steps) {
                return Ok(());
            }
        }
        let wild = memchr::memchr2(b'+', b'#', filter).is_some();
        let everybody = || {
            access.anonymous.cover(right, filter, steps)
                || self.world.rules.opens(right, filter, steps)
        };
        if (!wild || access.anonymous_wildcards) && everybody() {
            return Ok(());
        }
        Err(match pass {
            Some(_) => right.lacks(),
            None => right.needs(),
        })
    }

    /// Whether the client has all of these rights on each of these topics or filters.
    pub(super) fn may_all(
        &self,
        slot: u32,
        rights: &[Right],
        names: &[Vec<u8>],
    ) -> Result<(), Reason> {
        let each = |right: &Right| {
            names
                .iter()
                .try_for_each(|name| self.may(slot, *right, name))
        };
        rights.iter().try_for_each(each)
    }

    /// Whether it may publish anything at all.
    pub(super) fn may_publish_some(&self, slot: u32) -> Result<(), Reason> {
        let access = &self.world.settings.access;
        let right = Right::Publish;
        let some = |grants: &Grants| grants.iter().any(|(rights, _)| rights.has(right));
        let pass = self.conns.pass(slot);
        let granted = pass.is_some_and(|(grants, _)| some(grants));
        if !access.closed || granted || some(&access.anonymous) || self.world.rules.open(right) {
            return Ok(());
        }
        Err(match pass {
            Some(_) => right.lacks(),
            None => right.needs(),
        })
    }

    /// The name of the connection's user; empty for an anonymous client.
    pub fn user_of(&self, conn: ConnId) -> &str {
        let known = self
            .conns
            .is_current(conn)
            .then(|| self.conns.pass(conn.slot));
        known.flatten().map_or("", |(grants, _)| grants.user())
    }

    /// Looks up the client whose request begins here. False while the verdict is awaited: then the request waits.
    pub(super) fn knows_who<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        kept: &mut HttpSpill,
        io: &mut I,
    ) -> bool {
        let closed = self.world.settings.access.closed;
        // These are answered alike whoever asks; a browser asks by OPTIONS, with the query of the request that it is to send.
        let open = !closed || matches!(head.method, Method::Options | Method::Other);
        if open || kept.who.is_some() || self.conns.get(slot).is(TURNED_AWAY) {
            return true;
        }
        kept.who = match self.credential(head) {
            Err(refusal) => Some(Err(refusal)),
            Ok(None) => Some(Ok(None)),
            Ok(Some(came)) => self.found(slot, came.credential(), io),
        };
        if kept.who.is_none() {
            kept.asked = true;
            self.conns.get_mut(slot).state = State::Waiting;
            // No body is read before the verdict: the client may be refused.
            self.pause_for_verdict(slot, io);
        }
        kept.who.is_some()
    }

    /// The verdict on a credential; `None` while it is being asked for.
    pub(super) fn found<I: Io>(
        &mut self,
        slot: u32,
        credential: Credential<'_>,
        io: &mut I,
    ) -> Option<Who> {
        let access = &self.world.settings.access;
        let bytes = match credential {
            Credential::Token(token) => token.len(),
            Credential::Password { user, password } => user.len() + password.len(),
        };
        if bytes > access.token_bytes {
            return Some(Err(Reason::TokenTooLong));
        }
        let digest: Digest = credential.digest(&access.key);
        if let Some((_, grants)) = access.operator.as_ref().filter(|(own, _)| *own == digest) {
            let (grants, until_unix_s) = (Arc::clone(grants), u32::MAX);
            return Some(Ok(Some(Known {
                grants,
                until_unix_s,
            })));
        }
        let (now_s, wall_s) = (self.now.unix_s, self.wall_s());
        if let Some(known) = self.gate.verdicts().get(digest, now_s, wall_s) {
            return Some(Ok(Some(known.clone())));
        }
        let asker = Party::without_name(self.conns.get(slot).client, slot).number();
        let round = self.gate.verdicts().round();
        let question = Question::of(credential, digest, round, asker);
        match io.question(self.conns.id_of(slot), question) {
            true => None,
            false => Some(Err(Reason::VerifierBusy)),
        }
    }

    /// The verdict on a credential has come.
    pub(crate) fn verdict(&mut self, conn: ConnId, verdict: Verdict) {
        let Verdict {
            digest,
            found,
            believed_until_s,
            round,
        } = verdict;
        if let Ok(known) = &found
            && round == self.gate.verdicts().round()
        {
            let most = self.world.settings.access.verdicts_per_shard;
            self.gate
                .verdicts()
                .keep(digest, known.clone(), believed_until_s, most);
        }
        if !self.conns.is_current(conn) {
            return;
        }
        self.verdict_came(conn, found.map(Some));
    }

    /// The verdict on a request's credential has come: the request goes on.
    pub(super) fn http_verdict(&mut self, conn: ConnId, who: Who) {
        let Some(Spill::Http(spill)) = self.conns.spill_mut(conn.slot) else {
            return;
        };
        if core::mem::take(&mut spill.asked) {
            spill.who = Some(who);
            self.conns.get_mut(conn.slot).state = State::Http;
            self.resume_later(conn);
        }
    }

    /// From here on the request or connection is this client's.
    ///
    /// # Errors
    /// Why the credential was refused.
    pub(super) fn enter_as(&mut self, slot: u32, who: Option<Who>) -> Result<(), Reason> {
        match who {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(known))) if known.until_unix_s <= self.wall_s() => {
                Err(Reason::TokenExpired)
            }
            Some(Ok(Some(known))) => {
                self.conns.set_pass(slot, known);
                Ok(())
            }
            Some(Err(refusal)) => Err(refusal),
        }
        .inspect_err(|refusal| {
            self.stats.refused += 1;
            self.stats.oversized += u64::from(*refusal == Reason::TokenTooLong);
        })
    }

    /// Answers a request whose credential was refused.
    pub(super) fn refuse_credentials(&mut self, slot: u32, refusal: Reason) -> Flow {
        self.respond_reason(slot, refusal);
        Flow::Next
    }

    /// Answers a request that the client has no grant for.
    pub(super) fn deny(&mut self, slot: u32, denied: Reason) -> Flow {
        self.stats.denied += 1;
        self.respond_reason(slot, denied);
        Flow::Next
    }

    /// The request's credential: from the header, else the query, else a cookie.
    fn credential(&self, head: &Head<'_>) -> Result<Option<Came>, Reason> {
        let access = &self.world.settings.access;
        let mut fields = head.headers("authorization");
        if let Some(field) = fields.next() {
            return match fields.next() {
                Some(_) => Err(Reason::CredentialsMalformed),
                None => authorization(field).map(Some),
            };
        }
        let mut tokens = form::pairs(head.query)
            .filter(|(key, _)| !access.query.is_empty() && *key == access.query.as_bytes());
        if let Some((_, value)) = tokens.next() {
            let mut token = Vec::with_capacity(value.len());
            form::decode(value, &mut token).map_err(|_| Reason::CredentialsMalformed)?;
            return match (tokens.next(), token.is_empty()) {
                (None, false) => Ok(Some(Came::Token(token))),
                _ => Err(Reason::CredentialsMalformed),
            };
        }
        if access.cookie.is_empty() || !self.sends_cookies(head) {
            return Ok(None);
        }
        let token = cookie::value(head.headers("cookie"), access.cookie.as_bytes());
        let token = token.filter(|token| !token.is_empty());
        Ok(token.map(|token| Came::Token(token.to_vec())))
    }

    /// The client's credential has expired: ends a stream, a poll or an MQTT client. False when there is none to end.
    pub(crate) fn lapse<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        let ended = !self.conns.get(slot).is(CLOSING) && self.end_for(slot, Reason::Expired, io);
        self.stats.lapsed += u64::from(ended);
        ended
    }

    /// Stops reading a connection until the verdict on its credential comes.
    pub(super) fn pause_for_verdict<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        row.flags |= PAUSED;
        self.conns.update_interest(slot, io);
    }

    /// The grants of the connection's user.
    pub(super) fn grants_of(&self, slot: u32) -> Option<&Arc<Grants>> {
        self.conns.pass(slot).map(|(grants, _)| grants)
    }
}

/// The rights that a request needs on each topic that it names. Follows of interest and lines of a batch are checked where
/// they are read.
pub(super) fn rights(door: Door, verb: Option<Verb>, method: Method) -> &'static [Right] {
    match (door, verb) {
        (Door::Interest, _) => &[Right::Interest],
        (Door::Subscribe | Door::History, _) => &[Right::Subscribe],
        (Door::PubSub, _) => &[Right::Subscribe, Right::Publish],
        (Door::Publish, None) => &[Right::Publish],
        (Door::Publish, Some(_)) if method == Method::Post => &[Right::Publish],
        (Door::Publish, Some(Verb::Info)) => &[Right::Info],
        (Door::Publish, Some(_)) => &[Right::Manage],
    }
}

/// The value of `Authorization` (RFC 6750 section 2.1, RFC 7617 section 2).
fn authorization(field: &[u8]) -> Result<Came, Reason> {
    let at = memchr::memchr(b' ', field).ok_or(Reason::CredentialsMalformed)?;
    let (scheme, value) = (&field[..at], field[at..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") && !value.is_empty() {
        return Ok(Came::Token(value.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err(Reason::CredentialsMalformed);
    }
    let decoded = STANDARD
        .decode(value)
        .map_err(|_| Reason::CredentialsMalformed)?;
    let colon = memchr::memchr(b':', &decoded).ok_or(Reason::CredentialsMalformed)?;
    Ok(Came::Password {
        user: decoded[..colon].to_vec(),
        password: decoded[colon + 1..].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_takes_one_token_or_a_password() {
        let token = |field: &[u8]| match authorization(field) {
            Ok(Came::Token(token)) => Some(token),
            _ => None,
        };
        assert_eq!(token(b"Bearer a.b.c").as_deref(), Some(&b"a.b.c"[..]));
        assert_eq!(token(b"bearer  a.b.c ").as_deref(), Some(&b"a.b.c"[..]));
        match authorization(b"Basic YTpiOmM=") {
            Ok(Came::Password { user, password }) => {
                assert_eq!((&user[..], &password[..]), (&b"a"[..], &b"b:c"[..]));
            }
            _ => panic!("a name and a password"),
        }
        for wrong in [
            &b"Bearer"[..],
            b"Bearer ",
            b"Digest a",
            b"Basic YQ==",
            b"Basic !",
            b"",
        ] {
            assert!(authorization(wrong).is_err(), "{wrong:?}");
        }
    }
}
