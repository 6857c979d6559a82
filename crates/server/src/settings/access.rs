//! `[access]`: the rights of clients. Where the table stands in the file, even an empty one, only granted actions are permitted.
//!
//! Keys, passwords and the callback are read here as text; `access::Checks` makes verifiers of them.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use crore_broker::access::{Credential, Digest, GrantError, Grants, Right, Rights};
use serde::{Deserialize, Serialize, Serializer};

use super::problems::{Check, ranges};
use super::units::{seconds, size};

/// A token of more bytes than a request head may have comes nowhere.
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// An hour: a client that lost a right keeps it for so long at most, with a token that has not expired.
const MAX_CACHE_S: u32 = 3_600;
/// Each takes some 100 bytes.
const MAX_CACHE_ENTRIES: usize = 10_000_000;
/// Past a minute no client waits for an answer.
const MAX_QUESTIONS: usize = 1 << 20;
/// Clocks that are further apart than that are wrong.
const MAX_LEEWAY_S: u32 = 300;
/// More threads than this would fight for the memory that each password takes.
const MAX_THREADS: usize = 256;
/// A client does not wait for longer.
const MAX_TIMEOUT_S: u32 = 60;

/// Stands for a secret when settings are printed.
const HIDDEN: &str = "(hidden)";

/// Text that is never printed.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = if self.0.is_empty() { "" } else { HIDDEN };
        serializer.serialize_str(shown)
    }
}

/// `[access]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    pub anonymous_wildcards: bool,
    pub cookie: String,
    pub query: String,
    #[serde(with = "size")]
    pub token_bytes: usize,
    pub audience: String,
    pub issuer: String,
    #[serde(with = "seconds")]
    pub leeway_s: u32,
    #[serde(with = "seconds")]
    pub cache_s: u32,
    pub cache_entries: usize,
    pub questions_max: usize,
    pub password_threads: usize,
    #[serde(skip_serializing_if = "Lists::is_empty")]
    pub anonymous: Lists,
    #[serde(rename = "key", skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    #[serde(rename = "user", skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
}

impl Default for Access {
    fn default() -> Self {
        let shards = crore_broker::settings::Settings::default().access;
        Access {
            anonymous_wildcards: shards.anonymous_wildcards,
            cookie: shards.cookie,
            query: shards.query,
            token_bytes: shards.token_bytes,
            audience: String::new(),
            issuer: String::new(),
            leeway_s: 5,
            cache_s: 60,
            cache_entries: 100_000,
            questions_max: 1_024,
            password_threads: 0,
            anonymous: Lists::default(),
            keys: Vec::new(),
            users: Vec::new(),
            callback: None,
        }
    }
}

/// Filters by right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lists {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribe: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manage: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub info: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interest: Vec<String>,
}

impl Lists {
    /// As the shards want them.
    ///
    /// # Errors
    /// An entry that is no filter.
    pub fn grants(&self, user: &str) -> Result<Grants, GrantError> {
        let of = |right, list: &'_ [String]| -> Vec<(Right, String)> {
            list.iter().map(|filter| (right, filter.clone())).collect()
        };
        let all = [
            of(Right::Publish, &self.publish),
            of(Right::Subscribe, &self.subscribe),
            of(Right::Manage, &self.manage),
            of(Right::Info, &self.info),
            of(Right::Interest, &self.interest),
        ]
        .concat();
        Grants::new(
            user,
            all.iter().map(|(right, filter)| (*right, filter.as_str())),
        )
    }

    fn is_empty(&self) -> bool {
        *self == Lists::default()
    }
}

/// `[[access.key]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Key {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub alg: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// `[[access.user]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    pub name: String,
    pub password: Secret,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subscribe: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manage: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub info: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interest: Vec<String>,
}

impl User {
    /// The filters that are granted.
    pub fn lists(&self) -> Lists {
        Lists {
            publish: self.publish.clone(),
            subscribe: self.subscribe.clone(),
            manage: self.manage.clone(),
            info: self.info.clone(),
            interest: self.interest.clone(),
        }
    }
}

/// `[access.callback]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Callback {
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    #[serde(with = "seconds")]
    pub timeout_s: u32,
    #[serde(with = "seconds")]
    pub cache_s: u32,
    pub concurrency: usize,
}

impl Default for Callback {
    fn default() -> Self {
        Callback {
            url: String::new(),
            ca: None,
            timeout_s: 2,
            cache_s: 60,
            concurrency: 8,
        }
    }
}

/// Secrets of this process alone: the key of its caches, and the token by which it asks itself.
static OWN: LazyLock<([u8; 32], String)> = LazyLock::new(|| {
    let random = || [(); 4].map(|()| crore_net::memory::random_u64());
    let key = random().map(u64::to_le_bytes).concat();
    let token = random().iter().map(|part| format!("{part:016x}")).collect();
    (key.try_into().expect("four times eight bytes"), token)
});

/// The token by which the process asks itself over its own data port. It may read everything.
pub fn operator_token() -> &'static str {
    &OWN.1
}

/// The operator's: all that may be read.
fn operator(key: &[u8; 32]) -> (Digest, Arc<Grants>) {
    let reads = ["#", "$SYS/#"].map(|filter| (Right::Subscribe, filter));
    let grants = Grants::new("", reads).expect("these are filters");
    (
        Credential::Token(operator_token().as_bytes()).digest(key),
        Arc::new(grants),
    )
}

/// The settings of access that the shards need.
pub fn for_shards(access: Option<&Access>) -> crore_broker::settings::Access {
    let defaults = crore_broker::settings::Settings::default().access;
    let Some(access) = access else {
        return defaults;
    };
    crore_broker::settings::Access {
        closed: true,
        anonymous: access.anonymous.grants("").unwrap_or_default(),
        anonymous_wildcards: access.anonymous_wildcards,
        cookie: access.cookie.clone(),
        query: access.query.clone(),
        token_bytes: access.token_bytes,
        key: OWN.0,
        operator: Some(operator(&OWN.0)),
        ..defaults
    }
}

impl Access {
    /// Checks all but keys, passwords and the callback, which are checked where they are read.
    pub fn check(&self, check: &mut Check) {
        let callback = self.callback.clone().unwrap_or_default();
        ranges! { check, "access", self;
            token_bytes: 64..=MAX_TOKEN_BYTES;
            leeway_s: 0..=MAX_LEEWAY_S;
            cache_s: 0..=MAX_CACHE_S;
            cache_entries: 0..=MAX_CACHE_ENTRIES;
            questions_max: 1..=MAX_QUESTIONS;
            password_threads: 0..=MAX_THREADS;
        }
        ranges! { check, "access.callback", callback;
            timeout_s: 1..=MAX_TIMEOUT_S;
            cache_s: 0..=MAX_CACHE_S;
            concurrency: 1..=MAX_THREADS;
        }
        for (path, name) in [
            ("access.cookie", &self.cookie),
            ("access.query", &self.query),
        ] {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            if !name.bytes().all(plain) {
                let what = format!(
                    "`{name}` is no name; write letters, digits, _, - and ., or \"\" for none"
                );
                check.fail(path, what);
            }
        }
        if let Err(error) = self.anonymous.grants("") {
            let what = format!("{error}; write topic filters such as \"news/#\"");
            check.fail("access.anonymous", what);
        }
    }
}

/// `open = ["subscribe"]` in a rule.
pub mod open {
    use super::{Right, Rights};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(rights: &Rights, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(rights.iter().map(Right::name))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rights, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names.iter().try_fold(Rights::default(), |rights, name| {
            let right = Right::ALL.into_iter().find(|right| right.name() == name);
            let right = right.ok_or_else(|| {
                let all = Right::ALL.map(Right::name).join(", ");
                D::Error::custom(format!("`{name}` is no right; write some of {all}"))
            })?;
            Ok(rights.with(right))
        })
    }
}
