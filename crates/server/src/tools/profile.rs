//! Profiles: servers with their tokens by name, in a file of the user, so that `crore pub --profile live` needs no further flags.
//!
//! A profile stands for the variables of the tools. A flag wins over all. `--profile` wins over the variables, since somebody asked for it here; the
//! profile that `CRORE_PROFILE` names is a default, and a variable wins over it.

use std::collections::BTreeMap;
use std::env::VarError;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::values::Usage;

const NO_TOKEN: &str = "has a character that no header may carry: a space, a control character, or one that is not ASCII";
/// The variable that names a profile.
const VARIABLE: &str = "CRORE_PROFILE";
/// The file below the user's directory of configuration.
const FILE: &str = "crore/profiles.toml";
/// Bits of a mode by which others read or write a file.
const OTHERS: u32 = 0o077;

/// The flag of the tools that speak to a server.
#[derive(Clone, Debug, Default, Args)]
pub struct ProfileFlag {
    /// Server and token by a name in ~/.config/crore/profiles.toml
    #[arg(long, value_name = "NAME", global = true, help_heading = "Connection")]
    profile: Option<String>,
}

/// What the file says of a profile.
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
    /// The key that stands for a variable, and its value.
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

/// The values that stand for flags which are not given.
#[derive(Debug, Default)]
pub struct Profile {
    name: String,
    entry: Entry,
    /// A flag names it.
    is_asked_for: bool,
}

impl ProfileFlag {
    /// The profile that is named; one without values if none is.
    ///
    /// # Errors
    /// There is no such profile, or the file cannot be read.
    pub fn read(&self) -> Result<Profile, Usage> {
        let is_asked_for = self.profile.is_some();
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
            is_asked_for,
        })
    }
}

impl Profile {
    /// The same of a value that is for the server only which the same source names.
    fn beside(
        &self,
        name: &'static str,
        (server, is_given): (&'static str, bool),
    ) -> Result<Option<(String, String)>, Usage> {
        if self.entry.of(server).is_none() {
            return self.value(name);
        }
        let is_of_variable = !self.is_asked_for && variable(server)?.is_some();
        match is_given || is_of_variable {
            true => Ok(variable(name)?.map(|value| (name.to_string(), value))),
            false => Ok(self.of_profile(name)),
        }
    }

    fn of_profile(&self, name: &str) -> Option<(String, String)> {
        let (key, value) = self.entry.of(name)?;
        Some((format!("{key} of profile {}", self.name), value.clone()))
    }

    /// The value that stands for a flag which is not given, and where it is from: the profile, or this variable.
    ///
    /// # Errors
    /// The variable is not UTF-8.
    pub fn value(&self, name: &'static str) -> Result<Option<(String, String)>, Usage> {
        let of_profile = self.of_profile(name);
        if self.is_asked_for && of_profile.is_some() {
            return Ok(of_profile);
        }
        let of_variable = variable(name)?.map(|value| (name.to_string(), value));
        Ok(of_variable.or(of_profile))
    }

    /// The token of `--token`, else that of the profile or this variable, of which the one counts that names the server too: no server gets the token of another.
    /// `server` is the variable of the server, and whether a flag names the server. Spaces and line ends around a token are no part of it: files of tokens end in one.
    ///
    /// # Errors
    /// [`Usage`], where it is empty, or has characters that no header may carry (RFC 6750 section 2.1). It does not show the token.
    pub fn token(
        &self,
        flag: Option<&str>,
        name: &'static str,
        server: (&'static str, bool),
    ) -> Result<Option<String>, Usage> {
        let wrong = |place: &str, what: &str| {
            Usage::new(format!(
                "{place} {what}; write a token, such as `crore token mint` prints, or leave it out"
            ))
        };
        let (place, text) = match flag {
            Some(text) => ("--token".to_string(), text.to_string()),
            None => match self
                .beside(name, server)
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

/// A variable, if it is set. Its content may be a secret, and is not shown.
fn variable(name: &str) -> Result<Option<String>, Usage> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Usage::new(format!("{name} is not UTF-8"))),
    }
}

/// The file of profiles, by the XDG Base Directory Specification.
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
        // Its words may have a token, which is not shown.
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
