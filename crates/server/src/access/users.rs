//! Verifies the passwords of the users in the settings file, by their hashes: argon2 (RFC 9106) as PHC strings.
//!
//! Invariant: an unknown name costs as much time as a wrong password, so that the time does not tell which names exist.

use std::collections::HashMap;
use std::sync::Arc;

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use crore_broker::Reason;
use crore_broker::access::{Grants, VerifiedClient};

use crate::settings::access::Access;

/// The maximum memory of argon2 for one verification, in KiB. Each password thread may use that much.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// The maximum number of argon2's passes over that memory.
const PASSES_MAX: u32 = 100;

struct User {
    hash: PasswordHash,
    grants: Arc<Grants>,
}

/// All users, by name.
#[derive(Default)]
pub struct Users {
    users: HashMap<Box<[u8]>, User>,
    /// The hash against which passwords of unknown names are verified, so that the answer takes as long.
    stand_in: Option<PasswordHash>,
}

impl Users {
    /// Reads the users of the settings. Adds faults to `errors`, each with the path of the settings key.
    pub fn read(access: &Access, errors: &mut Vec<(String, String)>) -> Users {
        let mut all = Users::default();
        for (index, entry) in access.users.iter().enumerate() {
            let mut fail = |key: &str, message: String| {
                errors.push((format!("access.user[{}]{key}", index + 1), message));
            };
            if entry.name.is_empty() {
                fail(".name", "is missing; write the user's name".to_string());
                continue;
            }
            let grants = match entry.filters.grants(&entry.name) {
                Ok(grants) => Arc::new(grants),
                Err(error) => {
                    fail(
                        "",
                        format!("{error}; write topic filters such as \"news/#\""),
                    );
                    continue;
                }
            };
            match parse_hash(&entry.password.0) {
                Ok(hash) => {
                    all.stand_in.get_or_insert_with(|| hash.clone());
                    let name = entry.name.as_bytes().into();
                    if all.users.insert(name, User { hash, grants }).is_some() {
                        fail(
                            ".name",
                            format!("`{}` stands there twice; remove one", entry.name),
                        );
                    }
                }
                Err(message) => fail(".password", message),
            }
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.users.contains_key(name)
    }

    /// The user's rights, if the password is right. Takes tens of milliseconds and tens of megabytes, depending on the hash.
    ///
    /// # Errors
    /// [`Reason::WrongPassword`].
    pub fn verify(&self, name: &[u8], password: &[u8]) -> Result<VerifiedClient, Reason> {
        let user = self.users.get(name);
        let hash = user.map(|user| &user.hash).or(self.stand_in.as_ref());
        let right =
            hash.is_some_and(|hash| Argon2::default().verify_password(password, hash).is_ok());
        match user.filter(|_| right) {
            Some(user) => Ok(VerifiedClient {
                grants: Arc::clone(&user.grants),
                until_unix_s: u32::MAX,
            }),
            None => Err(Reason::WrongPassword),
        }
    }
}

fn parse_hash(text: &str) -> Result<PasswordHash, String> {
    let form = "write what `crore token hash` prints: $argon2id$...";
    let hash = PasswordHash::new(text).map_err(|_| format!("is no argon2 hash; {form}"))?;
    if !hash.algorithm.as_str().starts_with("argon2") {
        return Err(format!(
            "is hashed with {}, and only argon2 is offered; {form}",
            hash.algorithm
        ));
    }
    let cost = |name: &str| hash.params.get_decimal(name).unwrap_or(0);
    if cost("m") > MEMORY_KIB_MAX || cost("t") > PASSES_MAX {
        return Err(format!(
            "costs too much to verify: m is at most {MEMORY_KIB_MAX} KiB, t at most {PASSES_MAX}"
        ));
    }
    Ok(hash)
}
