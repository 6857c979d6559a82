//! Rights, grants, credentials and the verdicts about them, as plain values.
//!
//! Nothing is verified here. A shard reads a [`Credential`] from a request and looks for a recent answer about it
//! (`budget::verdicts`); without one it asks a [`Question`], and the [`Verdict`](crate::base::verdict::Verdict) comes back as an input. The rights of
//! the connection are then in a row of `budget::identities`, which exists only for a connection with credentials.
//!
//! Invariants: without a verdict nothing is granted; a subscription by filter needs a granted filter that covers all of
//! it; credentials are compared by a keyed cryptographic hash only, whose key never leaves the process.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use blake2::Blake2bMac;
use blake2::digest::{FixedOutput, KeyInit, Update, consts::U16};

use crate::base::work::{FILTERS_PER_STEP, Steps};
pub use crore_settings::rights::{Right, Rights};
use crore_wire::topic::{self, TopicError};

/// Filters of one grant. A token has a few thousand bytes at most, so only a callback or a file could bring more.
const FILTERS_MAX: usize = 1_000;
/// Bytes of one of them: the longest topic name that the settings allow.
const FILTER_BYTES_MAX: usize = 1_000;
/// Bytes of a user's name.
const USER_BYTES_MAX: usize = 255;

/// Why grants are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// A user's name is longer than 255 bytes or has a control character.
    User,
    /// More filters than 1,000.
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

/// The grants of a client, with the user's name: one run of bytes, since a million connections may have their own each.
///
/// Layout: the length of the name in a byte, the name, then for each filter its rights in a byte, its length in two, and the filter.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Grants(Box<[u8]>);

impl Default for Grants {
    fn default() -> Self {
        Grants(Box::new([0]))
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
    /// The grants of `user` (empty for a client without a name). A filter may occur several times.
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
            1 + user.len()
                + filters
                    .iter()
                    .map(|(filter, _)| 3 + filter.len())
                    .sum::<usize>(),
        );
        bytes.push(user.len() as u8);
        bytes.extend_from_slice(user.as_bytes());
        for (filter, rights) in filters {
            bytes.push(rights.bits());
            bytes.extend_from_slice(&(filter.len() as u16).to_le_bytes());
            bytes.extend_from_slice(filter.as_bytes());
        }
        Ok(Grants(bytes.into_boxed_slice()))
    }

    /// The user's name; empty for a client without a name.
    pub fn user(&self) -> &str {
        let name = &self.0[1..=usize::from(self.0[0])];
        core::str::from_utf8(name).expect("it was a string")
    }

    /// Each filter with its rights.
    pub fn iter(&self) -> impl Iterator<Item = (Rights, &str)> {
        let text = |filter| core::str::from_utf8(filter).expect("it was a string");
        (self.filters()).map(move |(rights, filter)| (rights, text(filter)))
    }

    fn filters(&self) -> impl Iterator<Item = (Rights, &[u8])> {
        let mut rest = &self.0[1 + usize::from(self.0[0])..];
        core::iter::from_fn(move || {
            let [rights, low, high, text @ ..] = rest else {
                return None;
            };
            let (filter, after) = text.split_at(usize::from(u16::from_le_bytes([*low, *high])));
            rest = after;
            Some((Rights::from_bits(*rights), filter))
        })
    }

    /// Whether the grants cover all that `filter` matches, which may be a topic. `steps` count the filters that are compared.
    pub fn cover(&self, right: Right, filter: &[u8], steps: &Steps) -> bool {
        let mut compared = 0;
        let granted = |(rights, granted): (Rights, &[u8])| {
            compared += 1;
            rights.has(right) && topic::covers(granted, filter)
        };
        let covers = self.filters().any(granted);
        steps.add(compared / FILTERS_PER_STEP);
        covers
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

/// A client whose credentials were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The user's name and grants.
    pub grants: Arc<Grants>,
    /// The Unix second at which the credentials expire; `u32::MAX` for never.
    pub until_unix_s: u32,
}

/// The credentials of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Identifies a credential in caches: without the process' key nobody can make two credentials with the same digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 16]);

impl Credential<'_> {
    /// Its keyed hash (BLAKE2b, RFC 7693 section 2.9).
    pub fn digest(&self, key: &[u8; 32]) -> Digest {
        let mut mac = Blake2bMac::<U16>::new_from_slice(key).expect("32 bytes are a key of it");
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
        Digest(mac.finalize_fixed().into())
    }
}

/// A credential for the verifier to check.
#[derive(Clone, PartialEq, Eq)]
pub struct Question {
    /// Identifies the question in the answer.
    pub digest: Digest,
    /// The user's name; none for a token.
    pub user: Option<Box<[u8]>>,
    /// The token or the password.
    pub secret: Box<[u8]>,
    /// The shard's settings under which it was asked; the answer repeats the number.
    pub round: u32,
    /// The address that asks, or the connection where that is not known.
    pub asker: u64,
}

impl Question {
    /// Asks about this credential.
    pub fn of(credential: Credential<'_>, digest: Digest, round: u32, asker: u64) -> Question {
        let (user, secret) = match credential {
            Credential::Token(token) => (None, token),
            Credential::Password { user, password } => (Some(user.into()), password),
        };
        Question {
            digest,
            user,
            secret: secret.into(),
            round,
            asker,
        }
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret.
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
            assert_eq!(grants.cover(right, b"in/1", &steps), inside, "{right:?}");
            assert_eq!(
                grants.cover(right, b"out/1/x", &steps),
                right == Right::Subscribe,
                "{right:?}"
            );
        }
        assert!(grants.cover(Right::Subscribe, b"out/+/x", &steps));
        assert!(!grants.cover(Right::Subscribe, b"out/#", &steps));
        assert!(!Grants::default().cover(Right::Publish, b"in/1", &steps));
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
