//! `[access]`: the rights of clients. If the file has this table, even an empty one, only granted actions are permitted.
//!
//! Keys, passwords and the callback are only text here; `access::CredentialVerifiers` parses them.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use clap::Args;
use crore_broker::access::{Credential, Digest, GrantError, Grants, Right};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use smart_default::SmartDefault;

use super::problems::Problems;

/// No request head can hold a larger token.
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// An hour. A client that loses a right may keep it for this time, with a token that has not expired.
const MAX_CACHE_S: u32 = 3_600;
/// Each entry takes some 150 bytes.
const MAX_CACHE_ENTRIES: usize = 10_000_000;
/// It would take more than a minute to verify a longer queue, and no client waits so long.
const MAX_QUESTIONS: usize = 1 << 20;
/// If two clocks differ by more, one of them is wrong.
pub const MAX_LEEWAY_S: u32 = 300;
/// A day. Keys that their issuer has withdrawn should not be used for longer.
const MAX_REFRESH_S: u32 = 86_400;
/// More threads would need too much memory for passwords.
const MAX_THREADS: usize = 256;
/// No client waits longer for the callback.
const MAX_TIMEOUT_S: u32 = 60;

/// Printed instead of a secret.
const HIDDEN: &str = "(hidden)";

/// Text that is never printed.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("writeOnly" = true))]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

thread_local! {
    static REVEALED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `serialize` with secrets in clear text: to compare settings, never to print them.
pub fn with_secrets<T>(serialize: impl FnOnce() -> T) -> T {
    REVEALED.set(true);
    let serialized = serialize();
    REVEALED.set(false);
    serialized
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match &self.0[..] {
            "" => "",
            secret if REVEALED.get() => secret,
            _ => HIDDEN,
        })
    }
}

/// `[access]`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Whether anonymous clients may use filters with wildcards to subscribe and to follow interest.
    pub anonymous_wildcards: bool,
    /// The cookie that may hold a token; `""` for none.
    #[default("crore_token")]
    #[schemars(extend("format" = "a name"))]
    pub cookie: String,
    /// The query parameter that may hold a token; `""` for none.
    #[default("token")]
    #[schemars(extend("format" = "a name"))]
    pub query: String,
    /// Bytes of a token, or of a user and a password. Longer ones get 401.
    #[default(4 << 10)]
    #[schemars(range(min = 64, max = MAX_TOKEN_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one request, which its own connection holds; `limits.memory_bytes` has the shares"))]
    pub token_bytes: usize,
    /// The value that a token's `aud` must have; `""`: any, or none.
    pub audience: String,
    /// The value that a token's `iss` must have; `""`: any, or none.
    pub issuer: String,
    /// The list of revoked tokens and users ([ACCESS.md](ACCESS.md#revoking)), which `crore admin revoke` writes; `""` for none. It is read at the start and
    /// at a reload.
    #[schemars(extend("format" = "a file"))]
    pub revoked: PathBuf,
    /// Seconds by which the clock of a token's issuer may differ.
    #[default(5)]
    #[schemars(range(max = MAX_LEEWAY_S))]
    pub leeway_s: u32,
    /// How long the result for a token or a password is used without verifying it again. A token still ends at its expiry.
    #[default(60)]
    #[schemars(range(max = MAX_CACHE_S))]
    pub cache_s: u32,
    /// Answers that are cached, some 150 bytes each. Besides, each shard caches its newest 4,096.
    #[default(100_000)]
    #[schemars(range(max = MAX_CACHE_ENTRIES))]
    #[schemars(extend("x-share" = "refusals, which anybody can cause, go before good answers; whoever is forgotten asks again, and questions have shares"))]
    pub cache_entries: usize,
    /// Credentials that wait to be verified. Tokens, passwords and the callback have a queue of this length each. If a queue is full, the
    /// answer is 503 (MQTT 0x89, 3.1.1: 3). [Shared](#shares).
    #[default(1_024)]
    #[schemars(range(min = 1, max = MAX_QUESTIONS))]
    #[schemars(extend("x-share" = "of an address: as many as are free"))]
    pub questions_max: usize,
    /// Threads that verify passwords. 0: a quarter of the cores.
    #[schemars(range(max = MAX_THREADS))]
    #[schemars(extend("x-share" = "addresses take turns"))]
    pub password_threads: usize,
    /// Rights of all clients: filters by right.
    #[serde(skip_serializing_if = "FiltersByRight::is_empty")]
    pub anonymous: FiltersByRight,
    /// Keys that sign tokens.
    #[serde(rename = "key", skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// Users with passwords.
    #[serde(rename = "user", skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// An endpoint that verifies the credentials which no key and no user of this file can verify.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Callback")]
    pub callback: Option<Callback>,
}

/// Filters by right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FiltersByRight {
    /// Filters of topics to which publishing is granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics that may be published to (repeatable)"
    )]
    pub publish: Vec<String>,
    /// Filters of topics to which subscribing is granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics that may be subscribed to (repeatable)"
    )]
    pub subscribe: Vec<String>,
    /// Filters of topics that may be created, deleted and purged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics that may be created, deleted and purged (repeatable)"
    )]
    pub manage: Vec<String>,
    /// Filters of topics whose state may be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics whose info may be read (repeatable)"
    )]
    pub info: Vec<String>,
    /// Filters of topics whose interest may be followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics whose interest may be followed (repeatable)"
    )]
    pub interest: Vec<String>,
    /// Filters of topics of which may be read and watched who is present.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics of which may be read who is present (repeatable)"
    )]
    pub presence: Vec<String>,
}

impl FiltersByRight {
    /// The rights of the user, in the form that the shards use.
    pub fn grants(&self, user: &str) -> Result<Grants, GrantError> {
        let all = self.by_right().into_iter().flat_map(|(right, list)| {
            let filters = list.iter().map(String::as_str);
            filters.map(move |filter| (right, filter))
        });
        Grants::new(user, all)
    }

    /// The filters of each right.
    pub fn by_right(&self) -> [(Right, &[String]); Right::ALL.len()] {
        [
            (Right::Publish, &self.publish),
            (Right::Subscribe, &self.subscribe),
            (Right::Manage, &self.manage),
            (Right::Info, &self.info),
            (Right::Interest, &self.interest),
            (Right::Presence, &self.presence),
        ]
    }

    fn is_empty(&self) -> bool {
        *self == FiltersByRight::default()
    }
}

/// `[[access.key]]`.
#[derive(Clone, Debug, SmartDefault, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Key {
    /// The key's name, if tokens name one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kid: String,
    /// The algorithm. Not for a JWKS file, which names the algorithms itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "`HS256`, `RS256`, `ES256` or `EdDSA`"))]
    pub alg: String,
    /// A secret of 32 to 255 bytes, a public key in PEM, or a JWKS. A public key in any form is refused as a secret
    /// ([ACCESS.md](ACCESS.md#keys)).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf", extend("format" = "a file"))]
    pub file: Option<PathBuf>,
    /// The secret itself, in place of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Secret")]
    pub secret: Option<Secret>,
    /// In place of a file: where the issuer publishes its JWKS. Redirects are not followed, and secrets in it are ignored.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "`https://HOST:PORT/PATH`, or `http`"))]
    pub url: String,
    /// PEM: the roots to trust at the URL; without it, those of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf", extend("format" = "a file"))]
    pub ca: Option<PathBuf>,
    /// How long keys of a URL are used before they are fetched again. If a token has an unknown `kid`, they are fetched at once.
    #[default(3_600)]
    #[serde(skip_serializing_if = "is_default_refresh")]
    #[schemars(range(min = 60, max = MAX_REFRESH_S))]
    pub refresh_s: u32,
}

fn is_default_refresh(refresh_s: &u32) -> bool {
    *refresh_s == Key::default().refresh_s
}

/// `[[access.user]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
// serde permits no `deny_unknown_fields` beside `flatten`. The table of settings rejects unknown keys instead.
#[serde(default)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The line that `crore token hash` prints.
    pub password: Secret,
    /// The user's rights.
    #[serde(flatten)]
    pub filters: FiltersByRight,
}

/// `[access.callback]`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Callback {
    /// The URL of the endpoint, without user, query and characters that a URL cannot have. The default port is 443, or 80 for `http`.
    #[schemars(extend("format" = "`https://HOST:PORT/PATH`, or `http`"))]
    pub url: String,
    /// PEM: the roots to trust by TLS; without it, those of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf", extend("format" = "a file"))]
    pub ca: Option<PathBuf>,
    /// How long an answer may take.
    #[default(2)]
    #[schemars(range(min = 1, max = MAX_TIMEOUT_S))]
    pub timeout_s: u32,
    /// How long an answer without `cache_s` is used.
    #[default(60)]
    #[schemars(range(max = MAX_CACHE_S))]
    pub cache_s: u32,
    /// Questions at once.
    #[default(8)]
    #[schemars(range(min = 1, max = MAX_THREADS))]
    #[schemars(extend("x-share" = "addresses take turns"))]
    pub concurrency: usize,
}

/// Random secrets of this process: the key of [`crore_broker::settings::Access::key`], and the token of [`operator_token`].
static OWN: LazyLock<([u8; 32], String)> = LazyLock::new(|| {
    let random = || [(); 4].map(|()| crore_net::memory::random_u64());
    let key = random().map(u64::to_le_bytes).concat();
    let token = random().iter().map(|part| format!("{part:016x}")).collect();
    (key.try_into().expect("four times eight bytes"), token)
});

/// The token with which the process connects to its own data port. It may subscribe to everything.
pub fn operator_token() -> &'static str {
    &OWN.1
}

/// The digest and the rights of [`operator_token`].
fn operator(key: &[u8; 32]) -> (Digest, Arc<Grants>) {
    let reads = ["#", "$SYS/#"].map(|filter| (Right::Subscribe, filter));
    let grants = Grants::new("", reads).expect("these are filters");
    (
        Credential::Token(operator_token().as_bytes()).digest(key),
        Arc::new(grants),
    )
}

/// The settings of access for the shards.
pub fn for_shards(access: Option<&Access>) -> crore_broker::settings::Access {
    let defaults = crore_broker::settings::Settings::default().access;
    let Some(access) = access else {
        // The key makes session ids too, which need no credentials.
        return crore_broker::settings::Access {
            key: OWN.0,
            ..defaults
        };
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
    /// Checks everything except keys, passwords and the callback, which `access::CredentialVerifiers` checks.
    pub fn check(&self, problems: &mut Problems) {
        for (path, name) in [
            ("access.cookie", &self.cookie),
            ("access.query", &self.query),
        ] {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            if !name.bytes().all(plain) {
                let what = format!(
                    "`{name}` is no name; write letters, digits, _, - and ., or \"\" for none"
                );
                problems.fail(path, what);
            }
        }
        if let Err(error) = self.anonymous.grants("") {
            let what = format!("{error}; write topic filters such as \"news/#\"");
            problems.fail("access.anonymous", what);
        }
    }
}
