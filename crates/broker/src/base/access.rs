//! The data types of access control: rights, grants, revocations and credentials.
//!
//! Nothing is verified here. A shard reads a [`Credential`] from a request and looks for the verifier's answer in a cache
//! (`budget::verdict_cache`). Without a cached answer the shard sends a [`Question`] to the verifier, and the answer
//! ([`Verdict`](crate::base::verdict::Verdict)) arrives as an input. The shard then stores the grants in the connection's row
//! (entry) of `budget::connection_grants`.
//!
//! Invariants: without a verdict, credentials grant nothing. A subscription by filter needs a granted filter that covers the whole
//! filter. Credentials are compared only by a keyed cryptographic hash, whose key never leaves the process.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::base::work::{FILTERS_PER_STEP, Steps};
pub use crore_settings::rights::{Right, Rights};
use crore_wire::topic::{self, TopicError};

/// The maximum number of filters of one client. A token has room for fewer, so only the access callback or a file can exceed this.
const FILTERS_MAX: usize = 1_000;
/// Longest filter, in bytes: the longest topic name that the settings allow.
const FILTER_BYTES_MAX: usize = 1_000;
/// Longest info about a member, in bytes.
pub const INFO_BYTES_MAX: usize = 1 << 10;
/// Longest user name, in bytes.
const USER_BYTES_MAX: usize = 255;

/// Why `Grants::new` fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// A user's name is longer than 255 bytes or has a control character.
    User,
    /// There are more than 1,000 filters.
    TooMany,
    /// One of the filters is malformed.
    Filter(Right, TopicError),
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrantError::User => {
                f.write_str("the user's name has more than 255 bytes or a control character")
            }
            GrantError::TooMany => write!(f, "more than {FILTERS_MAX} filters are granted"),
            GrantError::Filter(right, error) => {
                write!(f, "in `{}`: the filter {error}", right.name())
            }
        }
    }
}

impl core::error::Error for GrantError {}

/// The token that grants come from, and its age. Revocations name both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenIssue {
    /// The token's number ([`Revoked::token_number`]); 0 without a token.
    pub token: u64,
    /// The Unix second of the token's `iat` claim; 0 if the token has no `iat`. `u32::MAX` without a token, since a password has no age.
    pub issued_unix_s: u32,
}

impl TokenIssue {
    /// No token.
    pub const NONE: TokenIssue = TokenIssue {
        token: 0,
        issued_unix_s: u32::MAX,
    };
    const BYTES: usize = 12;

    fn bytes(self) -> [u8; TokenIssue::BYTES] {
        let mut bytes = [0; TokenIssue::BYTES];
        bytes[..8].copy_from_slice(&self.token.to_le_bytes());
        bytes[8..].copy_from_slice(&self.issued_unix_s.to_le_bytes());
        bytes
    }
}

/// The grants of a client, the user's name, and the `info`: what others are told of the client while it is present. All are in one allocation,
/// since each of a million connections may have its own grants.
///
/// Layout: the [`TokenIssue`] (12 bytes), the length of the name (1 byte), the name. Then, for each filter: its rights (1 byte), its length (2 bytes), its
/// text. An entry without rights is the info.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Grants(Box<[u8]>);

impl Default for Grants {
    fn default() -> Self {
        Grants::new("", []).expect("an empty name and no filters are valid")
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        list.entry(&self.user());
        list.entries(self.iter()).finish()
    }
}

impl Grants {
    /// The grants of `user` (empty for a client without a name). `granted` may name a filter several times: the rights are joined.
    ///
    /// # Errors
    /// When the name or a filter is malformed, or there are too many filters.
    pub fn new<'a>(
        user: &str,
        granted: impl IntoIterator<Item = (Right, &'a str)>,
    ) -> Result<Grants, GrantError> {
        if user.len() > USER_BYTES_MAX || user.chars().any(char::is_control) {
            return Err(GrantError::User);
        }
        let mut filters: Vec<(&str, Rights)> = Vec::new();
        for (right, filter) in granted {
            topic::check_filter(filter.as_bytes(), FILTER_BYTES_MAX)
                .map_err(|error| GrantError::Filter(right, error))?;
            match filters.iter().position(|(known, _)| *known == filter) {
                Some(at) => filters[at].1 = filters[at].1.with(right),
                None if filters.len() == FILTERS_MAX => return Err(GrantError::TooMany),
                None => filters.push((filter, right.into())),
            }
        }
        let mut bytes = Vec::with_capacity(
            TokenIssue::BYTES
                + 1
                + user.len()
                + filters
                    .iter()
                    .map(|(filter, _)| 3 + filter.len())
                    .sum::<usize>(),
        );
        bytes.extend_from_slice(&TokenIssue::NONE.bytes());
        bytes.push(user.len() as u8);
        bytes.extend_from_slice(user.as_bytes());
        for (filter, rights) in filters {
            bytes.push(rights.bits());
            bytes.extend_from_slice(&(filter.len() as u16).to_le_bytes());
            bytes.extend_from_slice(filter.as_bytes());
        }
        Ok(Grants(bytes.into_boxed_slice()))
    }

    /// The same grants, issued by this token.
    #[must_use]
    pub fn with_issue(mut self, issue: TokenIssue) -> Grants {
        self.0[..TokenIssue::BYTES].copy_from_slice(&issue.bytes());
        self
    }

    /// The token that the grants come from.
    pub fn issue(&self) -> TokenIssue {
        let (token, issued) = self.0[..TokenIssue::BYTES].split_at(8);
        TokenIssue {
            token: u64::from_le_bytes(token.try_into().expect("8 bytes")),
            issued_unix_s: u32::from_le_bytes(issued.try_into().expect("4 bytes")),
        }
    }

    /// The same grants, with this info: JSON of at most [`INFO_BYTES_MAX`] bytes.
    #[must_use]
    pub fn with_info(self, info: &str) -> Grants {
        let len = u16::try_from(info.len()).expect("it is shorter");
        let no_rights = Rights::default().bits();
        let [low, high] = len.to_le_bytes();
        Grants(
            [&self.0, &[no_rights, low, high][..], info.as_bytes()]
                .concat()
                .into(),
        )
    }

    /// What others are told of the client while it is present, as JSON; empty if they are told nothing.
    pub fn info(&self) -> &[u8] {
        let mut info = self.entries().filter(|(rights, _)| rights.is_empty());
        info.next().map_or(&[], |(_, info)| info)
    }

    /// The user's name; empty for a client without a name.
    pub fn user(&self) -> &str {
        let name = &self.name_and_grants()[1..=self.name_len()];
        core::str::from_utf8(name).expect("it was a string")
    }

    /// The bytes from the length of the name on.
    fn name_and_grants(&self) -> &[u8] {
        &self.0[TokenIssue::BYTES..]
    }

    fn name_len(&self) -> usize {
        usize::from(self.0[TokenIssue::BYTES])
    }

    /// Each filter with its rights.
    pub fn iter(&self) -> impl Iterator<Item = (Rights, &str)> {
        let text = |filter| core::str::from_utf8(filter).expect("it was a string");
        (self.filters()).map(move |(rights, filter)| (rights, text(filter)))
    }

    fn filters(&self) -> impl Iterator<Item = (Rights, &[u8])> {
        self.entries().filter(|(rights, _)| !rights.is_empty())
    }

    fn entries(&self) -> impl Iterator<Item = (Rights, &[u8])> {
        let mut rest = &self.name_and_grants()[1 + self.name_len()..];
        core::iter::from_fn(move || {
            let [rights, low, high, text @ ..] = rest else {
                return None;
            };
            let (filter, after) = text.split_at(usize::from(u16::from_le_bytes([*low, *high])));
            rest = after;
            Some((Rights::from_bits(*rights), filter))
        })
    }

    /// Whether this right is granted for all topics that `filter` matches. `filter` may be a topic. Adds the compared filters to `steps`.
    pub fn covers(&self, right: Right, filter: &[u8], steps: &Steps) -> bool {
        let mut compared = 0;
        let covers = |(rights, granted): (Rights, &[u8])| {
            compared += 1;
            rights.has(right) && topic::covers(granted, filter)
        };
        let is_covered = self.filters().any(covers);
        steps.add(compared / FILTERS_PER_STEP);
        is_covered
    }

    /// Whether nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// The tokens and users that the operator has revoked. A revocation ends at a Unix second (`u32::MAX`: never).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// The revoked tokens, sorted by number.
    pub tokens: Vec<RevokedToken>,
    /// The revoked users, sorted by name.
    pub users: Vec<RevokedUser>,
}

/// The revocation of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevokedToken {
    /// The token's number ([`Revoked::token_number`]).
    pub number: u64,
    /// The Unix second in which the revocation ends.
    pub end_unix_s: u32,
}

/// The revocation of a user's credentials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevokedUser {
    /// The user's name.
    pub name: Box<str>,
    /// Tokens that were issued before this Unix second are revoked; `u32::MAX`: all tokens, and passwords.
    pub issued_before_unix_s: u32,
    /// The Unix second in which the revocation ends.
    pub end_unix_s: u32,
}

impl Revoked {
    /// The number of a token. `name` is its `jti` claim, or a hash of its bytes if it has no `jti`. The hash is cryptographic, so that nobody can make a
    /// token with the number of another token.
    pub fn token_number(name: &[u8]) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&blake3::hash(name).as_bytes()[..8]);
        u64::from_le_bytes(number)
    }

    /// Whether these grants are revoked at this Unix second.
    pub fn has(&self, grants: &Grants, now_unix_s: u32) -> bool {
        if self.tokens.is_empty() && self.users.is_empty() {
            return false;
        }
        let issue = grants.issue();
        // The list is sorted, so the entries of one user are adjacent.
        let first = self
            .users
            .partition_point(|user| *user.name < *grants.user());
        let entries_of_user = self.users[first..].iter();
        let mut entries_of_user = entries_of_user.take_while(|user| *user.name == *grants.user());
        // A password's `issued_unix_s` is `u32::MAX`, so only an entry for all credentials revokes it.
        let is_revoked = |user: &RevokedUser| {
            let before_unix_s = user.issued_before_unix_s;
            now_unix_s < user.end_unix_s
                && (before_unix_s == u32::MAX || issue.issued_unix_s < before_unix_s)
        };
        let first = self
            .tokens
            .partition_point(|revoked| revoked.number < issue.token);
        let entries_of_token = self.tokens[first..].iter();
        let mut entries_of_token =
            entries_of_token.take_while(|revoked| revoked.number == issue.token);
        entries_of_user.any(is_revoked)
            || issue.token != 0 && entries_of_token.any(|revoked| now_unix_s < revoked.end_unix_s)
    }
}

/// A client whose credentials were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedClient {
    /// The user's name and grants.
    pub grants: Arc<Grants>,
    /// The Unix second at which the credentials expire; `u32::MAX` for never.
    pub until_unix_s: u32,
}

/// The credentials of a request. They are compared by their digests only.
#[derive(Clone, Copy)]
pub enum Credential<'a> {
    /// A token.
    Token(&'a [u8]),
    /// A name and a password.
    Password {
        /// The name.
        user: &'a [u8],
        /// The password.
        password: &'a [u8],
    },
}

/// Identifies a credential in caches. It is a keyed hash: without the process's key, nobody can construct two credentials with the same digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 16]);

impl Credential<'_> {
    /// The bytes of the token, or of the user's name and the password.
    pub(crate) fn len(&self) -> usize {
        match self {
            Credential::Token(token) => token.len(),
            Credential::Password { user, password } => user.len() + password.len(),
        }
    }

    /// The keyed hash of the credential (BLAKE3).
    pub fn digest(&self, key: &[u8; 32]) -> Digest {
        let mut mac = blake3::Hasher::new_keyed(key);
        match self {
            Credential::Token(token) => {
                mac.update(b"t");
                mac.update(token);
            }
            Credential::Password { user, password } => {
                mac.update(b"p");
                mac.update(&(user.len() as u64).to_le_bytes());
                mac.update(user);
                mac.update(password);
            }
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&mac.finalize().as_bytes()[..16]);
        Digest(digest)
    }
}

/// The bytes of all existing questions of a shard. They are charged to the shard's memory, though the verifier holds them.
#[derive(Debug, Default)]
pub struct QuestionBytes(Arc<AtomicUsize>);

impl QuestionBytes {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bytes of one question, which count until the question is dropped.
pub(crate) struct CountedBytes {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl CountedBytes {
    pub(crate) fn new(total: &QuestionBytes, bytes: usize) -> CountedBytes {
        total.0.fetch_add(bytes, Ordering::Relaxed);
        let total = Arc::clone(&total.0);
        CountedBytes { total, bytes }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A credential for the verifier to check.
pub struct Question {
    /// The credential's digest, repeated in the answer.
    pub digest: Digest,
    /// The user's name; `None` for a token.
    pub user: Option<Box<[u8]>>,
    /// The token or the password.
    pub secret: Box<[u8]>,
    /// The generation of the shard's settings, repeated in the answer (`VerdictCache::settings_generation`).
    pub settings_generation: u32,
    /// The number of the party that asks: the client's address, or the connection if the address is unknown.
    pub asker: u64,
    _counted_bytes: CountedBytes,
}

impl Question {
    /// Asks about this credential. Its bytes are added to `total` until the question is dropped.
    pub fn new(
        credential: Credential<'_>,
        digest: Digest,
        settings_generation: u32,
        asker: u64,
        total: &QuestionBytes,
    ) -> Question {
        let bytes = size_of::<Question>() + credential.len();
        let (user, secret) = match credential {
            Credential::Token(token) => (None, token),
            Credential::Password { user, password } => (Some(user.into()), password),
        };
        Question {
            digest,
            user,
            secret: secret.into(),
            settings_generation,
            asker,
            _counted_bytes: CountedBytes::new(total, bytes),
        }
    }
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not be printed.
        f.write_str(match self {
            Credential::Token(_) => "a token",
            Credential::Password { .. } => "a password",
        })
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not be printed.
        f.debug_struct("Question")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_right_is_granted_apart() {
        let granted = [
            (Right::Publish, "in/#"),
            (Right::Subscribe, "out/+/x"),
            (Right::Info, "in/#"),
        ];
        let grants = Grants::new("ann", granted).unwrap();
        let steps = Steps::default();
        assert_eq!(grants.user(), "ann");
        assert_eq!(grants.iter().count(), 2, "a filter stands there once");
        for &right in Right::ALL {
            let inside = matches!(right, Right::Publish | Right::Info);
            assert_eq!(grants.covers(right, b"in/1", &steps), inside, "{right:?}");
            assert_eq!(
                grants.covers(right, b"out/1/x", &steps),
                right == Right::Subscribe,
                "{right:?}"
            );
        }
        assert!(grants.covers(Right::Subscribe, b"out/+/x", &steps));
        assert!(!grants.covers(Right::Subscribe, b"out/#", &steps));
        assert!(!Grants::default().covers(Right::Publish, b"in/1", &steps));
    }

    #[test]
    fn info_grants_nothing_and_stays_with_the_grants() {
        let grants = Grants::new("ann", [(Right::Info, "a/#")]).unwrap();
        assert_eq!(grants.info(), b"");
        let grants = grants.with_info("{\"n\":1}");
        assert_eq!(grants.info(), b"{\"n\":1}");
        assert_eq!((grants.iter().count(), grants.user()), (1, "ann"));
        let nobody = Grants::default().with_info("\"#\"");
        assert!(nobody.is_empty());
        for &right in Right::ALL {
            assert!(!nobody.covers(right, b"a", &Steps::default()), "{right:?}");
        }
    }

    #[test]
    fn revoked_token_or_user_is_found_and_nobody_else() {
        let grants = |user: &str, name: &str, issued_unix_s| {
            let token = Revoked::token_number(name.as_bytes());
            Grants::new(user, [(Right::Info, "a/#")])
                .unwrap()
                .with_issue(TokenIssue {
                    token,
                    issued_unix_s,
                })
        };
        let user = |name: &str, issued_before_unix_s, end_unix_s| RevokedUser {
            name: name.into(),
            issued_before_unix_s,
            end_unix_s,
        };
        let revoked = Revoked {
            tokens: alloc::vec![RevokedToken {
                number: Revoked::token_number(b"leaked"),
                end_unix_s: 50,
            }],
            users: alloc::vec![user("ann", 100, 50), user("bob", u32::MAX, u32::MAX)],
        };
        let has = |grants: &Grants| revoked.has(grants, 49);
        assert!(
            !revoked.has(&grants("eve", "leaked", 5), 50),
            "the entry is over"
        );
        assert!(
            !revoked.has(&grants("ann", "x", 5), 50),
            "the entry is over"
        );
        assert!(has(&grants("eve", "leaked", 5)));
        assert!(!has(&grants("eve", "another", 5)));
        assert!(has(&grants("ann", "x", 99)) && !has(&grants("ann", "x", 100)));
        assert!(has(&grants("ann", "x", 0)), "one without a time");
        let password = |user| Grants::new(user, []).unwrap();
        assert!(!has(&password("ann")) && has(&password("bob")));
        assert!(!has(&password("")), "an anonymous client");
        assert_eq!(grants("ann", "x", 9).user(), "ann");
        assert_eq!(grants("ann", "x", 9).iter().count(), 1);
        assert!(!Revoked::default().has(&grants("ann", "leaked", 0), 0));
    }

    #[test]
    fn invalid_filter_or_name_cannot_be_granted() {
        let wrong = Grants::new("", [(Right::Publish, "a/#/b")]);
        assert_eq!(
            wrong,
            Err(GrantError::Filter(Right::Publish, TopicError::Misplaced))
        );
        assert_eq!(Grants::new("a\n", []), Err(GrantError::User));
        assert_eq!(Grants::new(&"x".repeat(256), []), Err(GrantError::User));
        let many: Vec<_> = (0..=FILTERS_MAX).map(|n| alloc::format!("t/{n}")).collect();
        let many = many.iter().map(|filter| (Right::Info, filter.as_str()));
        assert_eq!(Grants::new("", many), Err(GrantError::TooMany));
    }

    #[test]
    fn digests_depend_on_the_kind_and_on_where_the_name_ends() {
        let key = [7; 32];
        let password = |user, password| Credential::Password { user, password }.digest(&key);
        let token = Credential::Token(b"ab").digest(&key);
        assert_eq!(token, Credential::Token(b"ab").digest(&key));
        assert_ne!(token, Credential::Token(b"ab").digest(&[8; 32]));
        assert_ne!(password(b"a", b"bc"), password(b"ab", b"c"));
        assert_ne!(token, password(b"", b"ab"));
    }
}
