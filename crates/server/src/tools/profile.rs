//! Profiles: named servers with their tokens, in a file of the user, so that `crore pub --profile live` needs no further flags.
//!
//! A profile has values that can replace the tools' environment variables. The first of these sources that has a value is used:
//!
//! 1. a flag,
//! 2. the profile that `--profile` names,
//! 3. an environment variable,
//! 4. the profile that `CRORE_PROFILE` names.
//!
//! A token must not go to another server, so other rules hold for it (see [`Profile::token`]).

use std::collections::BTreeMap;
use std::env::VarError;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::values::Usage;

const BAD_TOKEN_CHARACTER: &str = "has a character that no header may carry: a space, a control character, or one that is not ASCII";
/// The environment variable that names a profile.
const PROFILE_VARIABLE: &str = "CRORE_PROFILE";
/// The path of the file below the user's configuration directory.
const FILE_BELOW_CONFIGURATION: &str = "crore/profiles.toml";
/// The permission bits of the group and of others. A file with tokens should have none of these bits.
const GROUP_AND_OTHERS: u32 = 0o077;

/// The flag of the tools that connect to a server.
#[derive(Clone, Debug, Default, Args)]
pub struct ProfileFlag {
    /// Server and token of a profile in ~/.config/crore/profiles.toml
    #[arg(long, value_name = "NAME", global = true, help_heading = "Connection")]
    profile: Option<String>,
}

/// A profile in the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    server: Option<String>,
    token: Option<String>,
    ca: Option<String>,
    admin_url: Option<String>,
    admin_token: Option<String>,
}

impl Entry {
    /// The key that stands for this environment variable, and its value in this profile.
    fn key_and_value(&self, variable: &str) -> Option<(&'static str, &String)> {
        let (key, value) = match variable {
            "CRORE_SERVER" => ("server", &self.server),
            "CRORE_TOKEN" => ("token", &self.token),
            "CRORE_CA" => ("ca", &self.ca),
            "CRORE_ADMIN_URL" => ("admin_url", &self.admin_url),
            "CRORE_ADMIN_TOKEN" => ("admin_token", &self.admin_token),
            _ => return None,
        };
        Some((key, value.as_ref()?))
    }
}

/// The profile in use. It has no values if no profile is named.
#[derive(Debug, Default)]
pub struct Profile {
    name: String,
    entry: Entry,
    /// Whether the flag `--profile` names the profile.
    is_explicit: bool,
}

impl ProfileFlag {
    /// Reads the profile that the flag or `CRORE_PROFILE` names.
    pub fn read(&self) -> Result<Profile, Usage> {
        let is_explicit = self.profile.is_some();
        let named = match &self.profile {
            Some(name) => Some(name.clone()),
            None => read_variable(PROFILE_VARIABLE)?.filter(|name| !name.is_empty()),
        };
        let Some(name) = named else {
            return Ok(Profile::default());
        };
        let file = profiles_path().ok_or_else(|| {
            Usage::new(format!(
                "there is no profile {name}, since neither XDG_CONFIG_HOME nor HOME is set"
            ))
        })?;
        let entry = read_entry(&name, &file).map_err(Usage::new)?;
        Ok(Profile {
            name,
            entry,
            is_explicit,
        })
    }
}

impl Profile {
    /// Like [`Profile::value`], for a value that must not go to another server, such as a token. If the command uses the server of the profile,
    /// the value comes from the profile only. If the profile names a server, but a flag or the environment names the one in use, the value comes
    /// from the environment only.
    fn value_for_server(
        &self,
        name: &'static str,
        server_variable: &'static str,
        is_server_given: bool,
    ) -> Result<Option<(String, String)>, Usage> {
        if self.entry.key_and_value(server_variable).is_none() {
            return self.value(name);
        }
        let is_server_from_environment =
            !self.is_explicit && read_variable(server_variable)?.is_some();
        match is_server_given || is_server_from_environment {
            true => Ok(read_variable(name)?.map(|value| (name.to_string(), value))),
            false => Ok(self.of_profile(name)),
        }
    }

    fn of_profile(&self, name: &str) -> Option<(String, String)> {
        let (key, value) = self.entry.key_and_value(name)?;
        Some((format!("{key} of profile {}", self.name), value.clone()))
    }

    /// The value for this environment variable. With `--profile` the profile comes before the environment, otherwise after it. The first text in
    /// the result names the source, for error messages.
    pub fn value(&self, name: &'static str) -> Result<Option<(String, String)>, Usage> {
        let of_profile = self.of_profile(name);
        if self.is_explicit && of_profile.is_some() {
            return Ok(of_profile);
        }
        let of_variable = read_variable(name)?.map(|value| (name.to_string(), value));
        Ok(of_variable.or(of_profile))
    }

    /// The token of `--token`, of the profile or of this environment variable. If the profile names a server, that server gets only the profile's
    /// token, and no other server gets that token. `is_server_given` tells whether a flag names the server. Whitespace around a token is ignored,
    /// since a shell often reads the token from a file that ends with a line end.
    ///
    /// # Errors
    /// The token is empty, or has characters that a header cannot carry (RFC 6750 section 2.1). The error does not show the token.
    pub fn token(
        &self,
        flag: Option<&str>,
        name: &'static str,
        server_variable: &'static str,
        is_server_given: bool,
    ) -> Result<Option<String>, Usage> {
        let wrong = |source: &str, message: &str| {
            Usage::new(format!(
                "{source} {message}; write a token, such as `crore token mint` prints, or leave it out"
            ))
        };
        let (source, text) = match flag {
            Some(text) => ("--token".to_string(), text.to_string()),
            None => match self
                .value_for_server(name, server_variable, is_server_given)
                .map_err(|_| wrong(name, BAD_TOKEN_CHARACTER))?
            {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let token = text.trim();
        if token.is_empty() {
            return Err(wrong(&source, "is empty"));
        }
        match token.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Some(token.to_string())),
            false => Err(wrong(&source, BAD_TOKEN_CHARACTER)),
        }
    }
}

/// An environment variable, if it is set. The error does not show its value, which may be secret.
fn read_variable(name: &str) -> Result<Option<String>, Usage> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Usage::new(format!("{name} is not UTF-8"))),
    }
}

/// The path of the file of profiles, according to the XDG Base Directory Specification.
fn profiles_path() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).filter(|it| !it.is_empty());
    let configuration = directory("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || directory("HOME").map(|home| Path::new(&home).join(".config"));
    Some(configuration.or_else(home)?.join(FILE_BELOW_CONFIGURATION))
}

fn read_entry(name: &str, file: &Path) -> Result<Entry, String> {
    let shown = file.display();
    let help = "write a table with server, token, ca, admin_url and admin_token, each optional";
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("profile {name}: {shown}: {error}; {help}, such as [{name}]"))?;
    let wrong = |error: toml::de::Error| {
        // The parser's message is not shown, since it may quote a token.
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        format!("{shown}: line {line} cannot be used; {help}, such as [{name}]")
    };
    let all: BTreeMap<String, Entry> = toml::from_str(&text).map_err(wrong)?;
    let found = all.get(name).cloned().ok_or_else(|| {
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        format!(
            "there is no profile {name} in {shown}; it has {}",
            names.join(", ")
        )
    })?;
    let mode = std::fs::metadata(file).map_or(0, |it| it.permissions().mode());
    if mode & GROUP_AND_OTHERS != 0 && (found.token.is_some() || found.admin_token.is_some()) {
        tracing::warn!("{shown} has tokens, and others may read it: chmod 600 {shown}");
    }
    Ok(found)
}
