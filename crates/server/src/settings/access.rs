//! `[access]`: the rights of clients. If the file has this table, even an empty one, only granted actions are permitted.
//!
//! Keys, passwords and the callback's URL are only text here; `access::CredentialVerifiers` parses them.

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
/// An hour. If a client loses a right, a cached verification may still grant the right for this time.
const MAX_CACHE_S: u32 = 3_600;
/// Each entry takes some 150 bytes.
const MAX_CACHE_ENTRIES: usize = 10_000_000;
/// It would take more than a minute to verify a longer queue, and clients give up before that.
const MAX_QUESTIONS: usize = 1 << 20;
/// If two clocks differ by more, one of them is wrong.
pub const MAX_LEEWAY_S: u32 = 300;
/// A day. Keys that their issuer has withdrawn should not be used for longer.
const MAX_REFRESH_S: u32 = 86_400;
/// Each verification of a password needs much memory, so more threads would need too much. It also limits requests to the callback.
const MAX_THREADS: usize = 256;
/// A client does not wait longer for the callback.
const MAX_TIMEOUT_S: u32 = 60;

/// Printed instead of a secret.
const HIDDEN: &str = "(hidden)";

/// Text that is printed as [`HIDDEN`]. (An empty text has nothing to hide, and settings show it as `""`.)
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
    /// Whether this thread serializes secrets in clear text.
    static SERIALIZES_SECRETS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `serialize` with secrets in clear text: to compare settings, never to print them.
pub fn with_secrets<T>(serialize: impl FnOnce() -> T) -> T {
    SERIALIZES_SECRETS.set(true);
    let serialized = serialize();
    SERIALIZES_SECRETS.set(false);
    serialized
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match &self.0[..] {
            "" => "",
            secret if SERIALIZES_SECRETS.get() => secret,
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
    /// The maximum size of a token, or of a user's name and password together. If they are longer, the answer is 401.
    #[default(4 << 10)]
    #[schemars(range(min = 64, max = MAX_TOKEN_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one request, which its own connection holds; `limits.memory_bytes` has the shares"))]
    pub token_bytes: usize,
    /// The value that a token's `aud` must have; `""`: a token may have any value, or no `aud`.
    pub audience: String,
    /// The value that a token's `iss` must have; `""`: a token may have any value, or no `iss`.
    pub issuer: String,
    /// The file with the list of revoked tokens and users ([ACCESS.md](ACCESS.md#revoking)), which `crore admin revoke` writes; `""` for none. The server
    /// reads it at the start and at a reload.
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
    /// The maximum number of cached verification results, about 150 bytes each. In addition, each shard caches its newest 4,096.
    #[default(100_000)]
    #[schemars(range(max = MAX_CACHE_ENTRIES))]
    #[schemars(extend("x-share" = "a full cache drops refusals first, since anybody can cause them; a result that was dropped is computed again, within the shares of `access.questions_max`"))]
    pub cache_entries: usize,
    /// The maximum number of credentials that wait to be verified. Tokens, passwords and the callback have a queue of this length each. If a queue is full,
    /// the answer is 503 (MQTT 5: 0x89, MQTT 3.1.1: 3). [Shared](#shares).
    #[default(1_024)]
    #[schemars(range(min = 1, max = MAX_QUESTIONS))]
    #[schemars(extend("x-share" = "of an address: as many as are free"))]
    pub questions_max: usize,
    /// Threads that verify passwords. 0: a quarter of the cores.
    #[schemars(range(max = MAX_THREADS))]
    #[schemars(extend("x-share" = "addresses take turns"))]
    pub password_threads: usize,
    /// Rights that every client has, also without a token or password: filters by right.
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
    /// Filters of topics whose info may be read.
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
    /// Filters of topics whose presence (the list of subscribers) may be read and watched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("format" = "filters"))]
    #[arg(
        long,
        value_name = "FILTER",
        help = "Filter of topics whose presence may be read and watched (repeatable)"
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
    /// The key's id, for tokens that contain one (`kid`).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kid: String,
    /// The algorithm. Leave it out for a JWKS, which contains the algorithms of its keys.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "`HS256`, `RS256`, `ES256` or `EdDSA`"))]
    pub alg: String,
    /// A secret of 32 to 255 bytes, a public key in PEM, or a JWKS. With `alg = "HS256"` a file that contains a public key is refused, in whatever form
    /// ([ACCESS.md](ACCESS.md#keys)).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf", extend("format" = "a file"))]
    pub file: Option<PathBuf>,
    /// The secret itself, in place of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Secret")]
    pub secret: Option<Secret>,
    /// In place of a file: where the issuer publishes its JWKS. The server follows no redirects, and ignores secrets (symmetric keys) in the JWKS.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "`https://HOST:PORT/PATH`, or `http`"))]
    pub url: String,
    /// The root certificates to trust at the URL, in PEM. Without it, those of the host are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf", extend("format" = "a file"))]
    pub ca: Option<PathBuf>,
    /// How long the keys of a URL are used before they are fetched again. If a token has an unknown `kid`, they are fetched at once.
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
    /// The URL of the endpoint. It must contain neither a user nor a query. The default port is 443, or 80 for `http`.
    #[schemars(extend("format" = "`https://HOST:PORT/PATH`, or `http`"))]
    pub url: String,
    /// The root certificates to trust at the URL, in PEM. Without it, those of the host are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf", extend("format" = "a file"))]
    pub ca: Option<PathBuf>,
    /// How long an answer may take.
    #[default(2)]
    #[schemars(range(min = 1, max = MAX_TIMEOUT_S))]
    pub timeout_s: u32,
    /// How long the endpoint's answer is cached, if the answer itself has no `cache_s`.
    #[default(60)]
    #[schemars(range(max = MAX_CACHE_S))]
    pub cache_s: u32,
    /// The maximum number of requests to the endpoint at the same time. Further ones wait; addresses take turns, and each has at most half of the requests, and one at least.
    #[default(8)]
    #[schemars(range(min = 1, max = MAX_THREADS))]
    #[schemars(extend("x-share" = "of an address: half; they take turns"))]
    pub concurrency: usize,
}

/// Random secrets of this process, which no other process knows.
struct ProcessSecrets {
    /// [`crore_broker::settings::Access::key`].
    digest_key: [u8; 32],
    operator_token: String,
}

static PROCESS_SECRETS: LazyLock<ProcessSecrets> = LazyLock::new(|| {
    let random_words = || [(); 4].map(|()| crore_net::memory::random_u64());
    let key = random_words().map(u64::to_le_bytes).concat();
    let token = random_words().map(|word| format!("{word:016x}")).concat();
    ProcessSecrets {
        digest_key: key.try_into().expect("four times eight bytes"),
        operator_token: token,
    }
});

/// The token with which the process connects to its own data port. It permits subscriptions to all topics.
pub fn operator_token() -> &'static str {
    &PROCESS_SECRETS.operator_token
}

/// The digest and the rights of [`operator_token`].
fn operator_credential(digest_key: &[u8; 32]) -> (Digest, Arc<Grants>) {
    let all_topics = ["#", "$SYS/#"].map(|filter| (Right::Subscribe, filter));
    let grants = Grants::new("", all_topics).expect("these are filters");
    (
        Credential::Token(operator_token().as_bytes()).digest(digest_key),
        Arc::new(grants),
    )
}

/// Converts the settings of access to the form that the shards use.
pub fn for_shards(access: Option<&Access>) -> crore_broker::settings::Access {
    let defaults = crore_broker::settings::Settings::default().access;
    let digest_key = PROCESS_SECRETS.digest_key;
    let Some(access) = access else {
        // Without credentials the key is still needed, for session ids.
        return crore_broker::settings::Access {
            key: digest_key,
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
        key: digest_key,
        operator: Some(operator_credential(&digest_key)),
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
            let is_permitted = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            if !name.bytes().all(is_permitted) {
                let message = format!(
                    "`{name}` is no name; write letters, digits, _, - and ., or \"\" for none"
                );
                problems.fail(path, message);
            }
        }
        if let Err(error) = self.anonymous.grants("") {
            let message = format!("{error}; write topic filters such as \"news/#\"");
            problems.fail("access.anonymous", message);
        }
    }
}
