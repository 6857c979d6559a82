//! Profiles: named servers with their tokens, in a file of the user, so that `crore pub --profile live` needs no further flags.
//!
//! A profile has values that can replace the tools' environment variables. The first of these sources that has a value is used: a flag, the
//! profile that `--profile` names, an environment variable, the profile that `CRORE_PROFILE` names.

use std::collections::BTreeMap;
use std::env::VarError;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::values::Usage;

const NO_TOKEN: &str = "has a character that no header may carry: a space, a control character, or one that is not ASCII";
/// The environment variable that names a profile.
const VARIABLE: &str = "CRORE_PROFILE";
/// The path of the file below the user's configuration directory.
const FILE: &str = "crore/profiles.toml";
/// The permission bits of the group and of others. A file with tokens must have none of these bits.
const OTHERS: u32 = 0o077;

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
    /// The key of the profile that replaces this environment variable, and the value of the key.
    fn of(&self, variable: &str) -> Option<(&'static str, &String)> {
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
            None => variable(VARIABLE)?.filter(|name| !name.is_empty()),
        };
        let Some(name) = named else {
            return Ok(Profile::default());
        };
        let file = file().ok_or_else(|| {
            Usage::new(format!(
                "there is no profile {name}, since neither XDG_CONFIG_HOME nor HOME is set"
            ))
        })?;
        let entry = entry(&name, &file).map_err(Usage::new)?;
        Ok(Profile {
            name,
            entry,
            is_explicit,
        })
    }
}

impl Profile {
    /// Like [`Profile::value`], for a value that belongs to the server, such as its token. If the profile names a server, the value comes
    /// from the same source as the server: the profile, or the environment.
    fn value_for_server(
        &self,
        name: &'static str,
        server_variable: &'static str,
        is_server_given: bool,
    ) -> Result<Option<(String, String)>, Usage> {
        if self.entry.of(server_variable).is_none() {
            return self.value(name);
        }
        let is_of_variable = !self.is_explicit && variable(server_variable)?.is_some();
        match is_server_given || is_of_variable {
            true => Ok(variable(name)?.map(|value| (name.to_string(), value))),
            false => Ok(self.of_profile(name)),
        }
    }

    fn of_profile(&self, name: &str) -> Option<(String, String)> {
        let (key, value) = self.entry.of(name)?;
        Some((format!("{key} of profile {}", self.name), value.clone()))
    }

    /// The value of this environment variable or of the profile's key for it, whichever comes first. The first text in the result names the
    /// source, for error messages.
    pub fn value(&self, name: &'static str) -> Result<Option<(String, String)>, Usage> {
        let of_profile = self.of_profile(name);
        if self.is_explicit && of_profile.is_some() {
            return Ok(of_profile);
        }
        let of_variable = variable(name)?.map(|value| (name.to_string(), value));
        Ok(of_variable.or(of_profile))
    }

    /// The token of `--token`, of the profile or of this environment variable. A token of the profile or the variable must come from the
    /// same source as the server, so that no server gets the token of another. `is_server_given` tells whether a flag names the server.
    /// Whitespace around a token is ignored, since files with a token often end with a line end.
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
        let wrong = |place: &str, what: &str| {
            Usage::new(format!(
                "{place} {what}; write a token, such as `crore token mint` prints, or leave it out"
            ))
        };
        let (place, text) = match flag {
            Some(text) => ("--token".to_string(), text.to_string()),
            None => match self
                .value_for_server(name, server_variable, is_server_given)
                .map_err(|_| wrong(name, NO_TOKEN))?
            {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let token = text.trim();
        if token.is_empty() {
            return Err(wrong(&place, "is empty"));
        }
        match token.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Some(token.to_string())),
            false => Err(wrong(&place, NO_TOKEN)),
        }
    }
}

/// An environment variable, if it is set. The error does not show its value, which may be secret.
fn variable(name: &str) -> Result<Option<String>, Usage> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Usage::new(format!("{name} is not UTF-8"))),
    }
}

/// The path of the file of profiles, according to the XDG Base Directory Specification.
fn file() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).filter(|it| !it.is_empty());
    let configuration = directory("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || directory("HOME").map(|home| Path::new(&home).join(".config"));
    Some(configuration.or_else(home)?.join(FILE))
}

fn entry(name: &str, file: &Path) -> Result<Entry, String> {
    let shown = file.display();
    let form = "write a table with server, token, ca, admin_url and admin_token, each optional";
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("profile {name}: {shown}: {error}; {form}, such as [{name}]"))?;
    let wrong = |error: toml::de::Error| {
        // The parser's message is not shown, since it may quote a token.
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        format!("{shown}: line {line} cannot be used; {form}, such as [{name}]")
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
    if mode & OTHERS != 0 && (found.token.is_some() || found.admin_token.is_some()) {
        tracing::warn!("{shown} has tokens, and others may read it: chmod 600 {shown}");
    }
    Ok(found)
}
