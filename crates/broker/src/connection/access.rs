//! Whose request or connection it is, and whether they may do what they ask for.
//!
//! Over HTTP that is found for each request anew, since a proxy's connection carries the requests of many: what the request
//! came with is read when its head is there, before its body is, and looked up or asked about. While the answer is out the
//! request waits as it came, with all that stands behind it. A stream, a waiting poll and an MQTT client keep what was found
//! for as long as they last, and end with it.
//!
//! Invariants: no request is carried out before its credentials are answered for; what cannot be answered for is refused,
//! also where nobody needs credentials; what was found for one request is forgotten before the next.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crore_wire::form;
use crore_wire::http::head::{Head, Method};
use crore_wire::http::{cookie, origin};

use super::close_code;
use super::http::Flow;
use super::judge::Door;
use crate::access::{Credential, Denied, Digest, Grants, Known, Question, Refusal, Right, Verdict};
use crate::conn::{CLOSING, ConnId, HttpSpill, PAUSED, Spill, State, TURNED_AWAY};
use crate::io::Io;
use crate::mail::Verb;
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

use crore_wire::mqtt::ReasonCode;

/// Whose request it is: nobody's that is known, or what was found.
pub type Who = Result<Option<Known>, Refusal>;

/// What came with a request, read.
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

impl Shard {
    /// Whether the connection's client may do this on all that `filter`, perhaps a topic, matches.
    pub(crate) fn may(&self, slot: u32, right: Right, filter: &[u8]) -> Result<(), Denied> {
        let access = &self.world.settings.access;
        if !access.closed {
            return Ok(());
        }
        let pass = self.passes.get(slot);
        if let Some((grants, until_unix_s)) = pass {
            if until_unix_s <= self.now.unix_s {
                return Err(Denied::Expired);
            }
            if grants.cover(right, filter) {
                return Ok(());
            }
        }
        let wild = memchr::memchr2(b'+', b'#', filter).is_some();
        let everybody =
            || access.anonymous.cover(right, filter) || self.world.rules.opens(right, filter);
        if (!wild || access.anonymous_wildcards) && everybody() {
            return Ok(());
        }
        Err(match pass {
            Some(_) => Denied::Lacks(right),
            None => Denied::Nobody(right),
        })
    }

    /// Whether it may do all of this with each of these.
    pub(super) fn may_all(
        &self,
        slot: u32,
        rights: &[Right],
        names: &[Vec<u8>],
    ) -> Result<(), Denied> {
        let each = |right: &Right| {
            names
                .iter()
                .try_for_each(|name| self.may(slot, *right, name))
        };
        rights.iter().try_for_each(each)
    }

    /// Whether it may publish anything at all.
    pub(super) fn may_publish_some(&self, slot: u32) -> Result<(), Denied> {
        let access = &self.world.settings.access;
        let right = Right::Publish;
        let some = |grants: &Grants| grants.iter().any(|(rights, _)| rights.has(right));
        let pass = self.passes.get(slot);
        let granted = pass.is_some_and(|(grants, _)| some(grants));
        if !access.closed || granted || some(&access.anonymous) || self.world.rules.open(right) {
            return Ok(());
        }
        Err(match pass {
            Some(_) => Denied::Lacks(right),
            None => Denied::Nobody(right),
        })
    }

    /// Who is known on this connection; empty for nobody.
    pub fn user_of(&self, conn: ConnId) -> &str {
        let known = self.is_current(conn).then(|| self.passes.get(conn.slot));
        known.flatten().map_or("", |(grants, _)| grants.user())
    }

    /// Finds out whose request begins here. False while that is asked elsewhere: then the request waits.
    pub(super) fn knows_who<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        kept: &mut HttpSpill,
        io: &mut I,
    ) -> bool {
        let closed = self.world.settings.access.closed;
        if !closed || kept.who.is_some() || self.conns.get(slot).is(TURNED_AWAY) {
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
            // Nothing of a body is read for somebody who may be nobody.
            self.pause_for_verdict(slot, io);
        }
        kept.who.is_some()
    }

    /// What is known of a credential; none when that is asked elsewhere now.
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
            return Some(Err(Refusal::TooLong));
        }
        let digest: Digest = credential.digest(&access.key);
        if let Some((_, grants)) = access.operator.as_ref().filter(|(own, _)| *own == digest) {
            let (grants, until_unix_s) = (Arc::clone(grants), u32::MAX);
            return Some(Ok(Some(Known {
                grants,
                until_unix_s,
            })));
        }
        if let Some(known) = self.verdicts.get(digest, self.now.unix_s) {
            return Some(Ok(Some(known.clone())));
        }
        let question = Question::of(credential, digest, self.verdicts.round());
        match io.question(self.id_of(slot), question) {
            true => None,
            false => Some(Err(Refusal::Busy)),
        }
    }

    /// Somebody has looked at a credential.
    pub(crate) fn verdict(&mut self, conn: ConnId, verdict: Verdict) {
        let Verdict {
            digest,
            found,
            believed_until_unix_s: until_unix_s,
            round,
        } = verdict;
        if let Ok(known) = &found
            && round == self.verdicts.round()
        {
            let most = self.world.settings.access.verdicts_per_shard;
            self.verdicts
                .keep(digest, known.clone(), until_unix_s, most);
        }
        if !self.is_current(conn) {
            return;
        }
        let row = self.conns.get_mut(conn.slot);
        match row.state {
            State::Waiting if row.spill != NONE => {
                let Spill::Http(spill) = self.spills.get_mut(row.spill) else {
                    return;
                };
                if core::mem::take(&mut spill.asked) {
                    spill.who = Some(found.map(Some));
                    row.state = State::Http;
                    self.resumed.push_back(conn);
                }
            }
            State::Mqtt => self.mqtt_verdict(conn, found.map(Some)),
            _ => {}
        }
    }

    /// From here on the request or connection is this client's.
    ///
    /// # Errors
    /// Why what it came with is worth nothing.
    pub(super) fn enter_as(&mut self, slot: u32, who: Option<Who>) -> Result<(), Refusal> {
        match who {
            None | Some(Ok(None)) => Ok(()),
            Some(Ok(Some(known))) if known.until_unix_s <= self.now.unix_s => Err(Refusal::Expired),
            Some(Ok(Some(known))) => {
                self.passes.set(slot, known);
                Ok(())
            }
            Some(Err(refusal)) => Err(refusal),
        }
        .inspect_err(|refusal| {
            self.stats.refused += 1;
            self.stats.oversized += u64::from(*refusal == Refusal::TooLong);
        })
    }

    /// Answers a request whose credentials are worth nothing.
    pub(super) fn refuse_credentials(&mut self, slot: u32, refusal: Refusal) -> Flow {
        self.respond_reason(slot, refusal.status(), refusal.reason());
        Flow::Next
    }

    /// Answers a request for which there is no grant.
    pub(super) fn deny(&mut self, slot: u32, denied: Denied) -> Flow {
        self.stats.denied += 1;
        self.respond_reason(slot, denied.status(), denied.reason());
        Flow::Next
    }

    /// What the request came with: the header, else the query, else a cookie.
    fn credential(&self, head: &Head<'_>) -> Result<Option<Came>, Refusal> {
        let access = &self.world.settings.access;
        let mut fields = head.headers("authorization");
        if let Some(field) = fields.next() {
            return match fields.next() {
                Some(_) => Err(Refusal::Malformed),
                None => authorization(field).map(Some),
            };
        }
        let mut tokens = form::pairs(head.query)
            .filter(|(key, _)| !access.query.is_empty() && *key == access.query.as_bytes());
        if let Some((_, value)) = tokens.next() {
            let mut token = Vec::with_capacity(value.len());
            form::decode(value, &mut token).map_err(|_| Refusal::Malformed)?;
            return match (tokens.next(), token.is_empty()) {
                (None, false) => Ok(Some(Came::Token(token))),
                _ => Err(Refusal::Malformed),
            };
        }
        if access.cookie.is_empty() || !self.sends_cookies(head) {
            return Ok(None);
        }
        let token = cookie::value(head.headers("cookie"), access.cookie.as_bytes());
        let token = token.filter(|token| !token.is_empty());
        Ok(token.map(|token| Came::Token(token.to_vec())))
    }

    /// Whether cookies are the page's own doing: a browser sends them from any page, so that those of another site count
    /// only when it is allowed by its name. `null` is nobody's: any site's sandboxed frame says it.
    fn sends_cookies(&self, head: &Head<'_>) -> bool {
        let Some(from) = head.header("origin") else {
            return true;
        };
        let listed = &self.world.settings.http.allowed_origins;
        origin::same_origin(from, head.host().unwrap_or_default())
            || from != b"null" && listed.iter().any(|allowed| allowed.as_bytes() == from)
    }

    /// What somebody came with is over: ends what lasts. False when there is nothing to end.
    pub(super) fn lapse<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        let row = self.conns.get(slot);
        if row.is(CLOSING) {
            return false;
        }
        if matches!(row.state, State::Sse | State::WebSocket | State::Mqtt) {
            self.because(Reason::Refused);
        }
        match self.conns.get(slot).state {
            State::Poll => self.answer_status(slot, 401, Denied::Expired.reason(), io),
            State::Sse | State::WebSocket => {
                self.end_stream(slot, close_code::EXPIRED, Denied::Expired.reason(), io);
            }
            State::Mqtt => {
                self.reply.clear();
                self.mqtt_end(slot, ReasonCode::MAXIMUM_CONNECT_TIME, io);
            }
            // What waits for a home is looked at again when it has its answer.
            _ => return false,
        }
        self.stats.lapsed += 1;
        true
    }

    /// Does not read a connection while somebody looks at what it came with.
    pub(super) fn pause_for_verdict<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        row.flags |= PAUSED;
        self.update_interest(slot, io);
    }

    /// The user of a connection, for what is kept by it.
    pub(super) fn grants_of(&self, slot: u32) -> Option<&Arc<Grants>> {
        self.passes.get(slot).map(|(grants, _)| grants)
    }
}

/// What a request needs on each topic that it names. Followers of interest and the lines of a batch are looked at where
/// they are read.
pub(super) fn rights(door: Door, verb: Option<Verb>, method: Method) -> &'static [Right] {
    match (door, verb) {
        (Door::Interest, _) => &[Right::Interest],
        (Door::Subscribe, _) => &[Right::Subscribe],
        (Door::PubSub, _) => &[Right::Subscribe, Right::Publish],
        (Door::Publish, None) => &[Right::Publish],
        (Door::Publish, Some(_)) if method == Method::Post => &[Right::Publish],
        (Door::Publish, Some(Verb::Info)) => &[Right::Info],
        (Door::Publish, Some(_)) => &[Right::Manage],
    }
}

/// The value of `Authorization` (RFC 6750 section 2.1, RFC 7617 section 2).
fn authorization(field: &[u8]) -> Result<Came, Refusal> {
    let at = memchr::memchr(b' ', field).ok_or(Refusal::Malformed)?;
    let (scheme, value) = (&field[..at], field[at..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") && !value.is_empty() {
        return Ok(Came::Token(value.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err(Refusal::Malformed);
    }
    let decoded = STANDARD.decode(value).map_err(|_| Refusal::Malformed)?;
    let colon = memchr::memchr(b':', &decoded).ok_or(Refusal::Malformed)?;
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
