//! Reads and writes the list of revoked tokens and users, in the file that `access.revoked` names.
//!
//! The file is a JSON array with an object for each entry. The admin API changes the file. The operator may also edit the file and then
//! reload. A missing file is an empty list.
//!
//! Invariants:
//! * A change by the admin API is on disk before the request is answered.
//! * If the file cannot be read, the list in force stays as it is. So damage to the file does not make a revoked credential valid again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use crore_broker::access::{Revoked, RevokedToken, RevokedUser};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::jwt::part;
use crate::settings::access::MAX_LEEWAY_S;

/// The maximum number of entries. It is limited because every publish with credentials searches the list.
const ENTRIES_MAX: usize = 100_000;
/// The maximum size of the file in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// The maximum length of the name in an id, in bytes. Names of users have the same limit.
const NAME_BYTES_MAX: usize = 255;

/// The prefixes of ids, which say what is revoked: a user, a token by its `jti`, or a token by its hash.
const USER: &str = "user:";
const JTI: &str = "jti:";
const SHA: &str = "sha256:";

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// What is revoked. `user:NAME` is a user. `jti:ID` is the token with this claim `jti`. `sha256:HEX` is a token without `jti`; HEX is
    /// the SHA-256 of the token's first two parts.
    pub id: String,
    /// Only for users. If it is set, only the user's tokens that were issued (`iat`) before this Unix second or that have no `iat` are
    /// revoked. Otherwise all credentials of the user are revoked.
    #[serde(default)]
    pub issued_before: Option<u32>,
    /// The Unix second at which the entry expires. Without it, the entry stays until it is removed.
    #[serde(default)]
    pub expires: Option<u32>,
}

impl Revocation {
    /// A revocation of a user.
    pub fn of_user(name: &str) -> Revocation {
        Revocation::named(format!("{USER}{name}"))
    }

    /// A revocation of the token with this `jti`.
    pub fn of_jti(jti: &str) -> Revocation {
        Revocation::named(format!("{JTI}{jti}"))
    }

    /// A revocation of a token. The entry expires when the token has expired at every server, even at one with the largest possible
    /// `access.leeway_s`. The token's signature is not verified.
    ///
    /// A connection of Centrifugo's protocol can outlive its token: `expire_at` moves the connection's end (0: it has none), and so does a renewal by the backend.
    /// So the entry also covers `expire_at`, and the entry of a token that has expired lasts long enough to end the open connections.
    pub fn of_token(token: &str, now_unix_s: u64) -> Result<Revocation, String> {
        let claims = part(token.as_bytes(), 1).ok_or("the token is no JWT of three parts")?;
        let second = |name: &str| claims.get(name).and_then(Value::as_f64);
        let (token_end, conn_end) = (second("exp"), second("expire_at"));
        let has_end = token_end.is_some() && conn_end != Some(0.0);
        let ends = [token_end, conn_end, Some(now_unix_s as f64)];
        let end = ends.into_iter().flatten().fold(0.0, f64::max);
        Ok(Revocation {
            expires: has_end.then(|| (end.ceil() as u32).saturating_add(MAX_LEEWAY_S)),
            ..Revocation::named(token_id(token.as_bytes(), &claims))
        })
    }

    fn named(id: String) -> Revocation {
        Revocation {
            id,
            issued_before: None,
            expires: None,
        }
    }

    /// Checks the id and the fields that the id allows.
    ///
    /// # Errors
    /// The fault of the entry, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        let id = self.id.escape_debug();
        let Some((kind, name)) = self.id.split_once(':') else {
            return Err(format!(
                "`{id}` is no id; write user:NAME, jti:ID or sha256:HEX"
            ));
        };
        let is_sha = |name: &str| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        match kind {
            "user" | "jti" if !is_name(name) => {
                Err(format!("`{id}`: a name has 1 to {NAME_BYTES_MAX} bytes"))
            }
            "sha256" if !is_sha(name) => Err(format!("`{id}`: a SHA-256 has 64 hex digits")),
            "jti" | "sha256" if self.issued_before.is_some() => {
                Err(format!("`{id}`: issued_before is for users"))
            }
            "user" | "jti" | "sha256" => Ok(()),
            _ => Err(format!(
                "`{id}` is no id; write user:NAME, jti:ID or sha256:HEX"
            )),
        }
    }

    /// Whether the entry has expired.
    pub fn is_over(&self, now_unix_s: u64) -> bool {
        self.expires.is_some_and(|end| u64::from(end) <= now_unix_s)
    }
}

/// Whether this can be the name of a user or a token in an entry.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

/// The id of the entry that revokes this token. It has the token's `jti`, or the token's hash if the token has no `jti` that can be a name.
pub fn token_id(token: &[u8], claims: &Map<String, Value>) -> String {
    match claims.get("jti").and_then(Value::as_str) {
        Some(jti) if is_name(jti) => format!("{JTI}{jti}"),
        _ => {
            // The hash leaves out the signature, because with some algorithms the same token can have several valid signatures.
            let signed = token.iter().rposition(|byte| *byte == b'.');
            let hash = digest(&SHA256, &token[..signed.unwrap_or(token.len())]);
            let hex: String = hash.as_ref().iter().map(|b| format!("{b:02x}")).collect();
            format!("{SHA}{hex}")
        }
    }
}

/// Reads the entries of a file, and leaves out expired ones.
pub fn read(path: &Path, now_unix_s: u64) -> Result<Vec<Revocation>, String> {
    let wrong = |message: String| format!("access.revoked: {}: {message}", path.display());
    let length = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(error.to_string())),
        Ok(metadata) => metadata.len(),
    };
    if length > FILE_BYTES_MAX {
        let message = format!("{length} bytes are too many for a list; at most {FILE_BYTES_MAX}");
        return Err(wrong(message));
    }
    let text = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut entries: Vec<Revocation> = serde_json::from_slice(&text).map_err(|error| {
        wrong(format!(
            "{error}; write a list such as [{{\"id\": \"user:ann\", \"expires\": 1900000000}}]"
        ))
    })?;
    entries.retain(|entry| !entry.is_over(now_unix_s));
    check(&entries).map_err(wrong)?;
    Ok(entries)
}

fn check(entries: &[Revocation]) -> Result<(), String> {
    if entries.len() > ENTRIES_MAX {
        return Err(format!(
            "{} entries are too many, at most {ENTRIES_MAX}; give entries an end (expires), or revoke users in place of their tokens",
            entries.len()
        ));
    }
    entries.iter().try_for_each(Revocation::check)
}

/// Replaces the file by this list, and syncs it to disk.
pub fn write(path: &Path, entries: &[Revocation]) -> Result<(), String> {
    let wrong = |message: String| format!("access.revoked: {}: {message}", path.display());
    check(entries).map_err(wrong)?;
    let replace = || -> io::Result<()> {
        let part = path.with_extension("new");
        // The former file is removed and not overwritten, because there may be a link at this path, which must not be followed.
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&part)?;
        serde_json::to_writer_pretty(&mut file, entries)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    replace().map_err(|error| wrong(format!("cannot be written: {error}")))
}

/// The entries in the form that the shards search.
pub fn revoked(entries: &[Revocation]) -> Revoked {
    let mut revoked = Revoked::default();
    for entry in entries {
        let end = entry.expires.unwrap_or(u32::MAX);
        match entry.id.strip_prefix(USER) {
            Some(name) => {
                revoked.users.push(RevokedUser {
                    name: name.into(),
                    issued_before_unix_s: entry.issued_before.unwrap_or(u32::MAX),
                    end_unix_s: end,
                });
            }
            None => revoked.tokens.push(RevokedToken {
                number: Revoked::token_number(entry.id.as_bytes()),
                end_unix_s: end,
            }),
        }
    }
    revoked.users.sort_unstable();
    revoked.tokens.sort_unstable();
    revoked
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    #[test]
    fn revoked_token_stays_revoked_as_long_as_a_server_may_accept_it() {
        let token = |claims: &str| format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims));
        let revoked = |claims: &str| Revocation::of_token(&token(claims), 900).expect("a token");
        let entry = revoked(r#"{"jti": "a", "exp": 1000.5}"#);
        assert_eq!(entry.id, "jti:a");
        let last_s = |entry: &Revocation| entry.expires.map(|end| end - MAX_LEEWAY_S);
        assert_eq!(last_s(&entry), Some(1001));
        assert!(!entry.is_over(1001 + 299) && entry.is_over(1001 + 300));
        // The connection of such a token may outlive the token.
        for (claims, end) in [
            (r#"{"exp": 1000, "expire_at": 2000}"#, Some(2000)),
            (r#"{"exp": 1000, "expire_at": 0}"#, None),
            (r#"{"exp": 1000, "expire_at": 950}"#, Some(1000)),
            (r#"{"exp": 100}"#, Some(900)),
            (r#"{"expire_at": 2000}"#, None),
        ] {
            assert_eq!(last_s(&revoked(claims)), end, "{claims}");
        }
        // No entry can have such a `jti`.
        for jti in [String::new(), "x".repeat(256)] {
            let entry = revoked(&format!(r#"{{"jti": "{jti}"}}"#));
            assert!(entry.id.starts_with("sha256:"), "{}", entry.id);
            assert_eq!(entry.check(), Ok(()));
        }
    }

    #[test]
    fn entry_of_another_form_is_refused_with_the_remedy() {
        let entry = |id: &str, issued_before| Revocation {
            issued_before,
            ..Revocation::named(id.to_string())
        };
        for (id, issued_before, words) in [
            ("ann", None, "write user:NAME"),
            ("name:ann", None, "write user:NAME"),
            ("user:", None, "1 to 255 bytes"),
            ("jti:x", Some(5), "issued_before is for users"),
            ("sha256:12", None, "64 hex digits"),
        ] {
            let refused = entry(id, issued_before).check().expect_err("it is wrong");
            assert!(refused.contains(words), "{id}: {refused}");
        }
        assert_eq!(entry("user:ann:x", Some(5)).check(), Ok(()));
    }
}
