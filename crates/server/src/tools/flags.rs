//! Flags that several tools share: the server, the token, the TLS roots and the client certificate; and the environment variables and
//! profiles that replace them.

use std::path::PathBuf;

use clap::Args;

use super::profile::{Profile, ProfileFlag};
use super::values::Usage;
use crate::http_client::server::{DEFAULT_SERVER, SERVER_VARIABLE, Server, TOKEN_VARIABLE};
use crate::http_client::servers::Servers;
use crate::http_client::tls::{CA_FLAG, CERT_FLAG, CERT_KEY_FLAG, ClientCertificate, Trust};

/// The environment variable for the file of roots. Ignored for servers without TLS.
const CA_VARIABLE: &str = "CRORE_CA";

/// Flags of the tools that connect to a data port.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// Server, port 8800 by default; https:// uses TLS; of several the first that answers is used
    /// [default: $CRORE_SERVER, or http://127.0.0.1:8800]
    #[arg(short, long, alias = "url", value_name = "URL")]
    server: Vec<Server>,

    /// The token that says who you are [default: $CRORE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    #[command(flatten)]
    profile: ProfileFlag,

    #[command(flatten)]
    tls: TlsFlags,
}

impl Connect {
    /// The servers that the flags, the profile or the environment variable name, at least one. In a profile and in the variable, the
    /// servers are separated by spaces.
    ///
    /// # Errors
    /// A value is faulty. The error names its flag or variable, and the remedy.
    pub fn servers(&self) -> anyhow::Result<Servers> {
        let profile = self.profile.read()?;
        let token = profile.token(
            self.token.as_deref(),
            TOKEN_VARIABLE,
            SERVER_VARIABLE,
            !self.server.is_empty(),
        )?;
        let all = |urls: &str| urls.split_whitespace().map(str::parse).collect();
        let named = match &self.server[..] {
            [] => from_profile(&profile, SERVER_VARIABLE, all)?.unwrap_or_default(),
            flags => flags.to_vec(),
        };
        let named = match named.is_empty() {
            true => vec![DEFAULT_SERVER.parse().expect("a literal URL")],
            false => named,
        };
        let ready = |server: Server| self.tls.apply(server.with_token(token.clone()), &profile);
        let ready: Result<Vec<Server>, String> = named.into_iter().map(ready).collect();
        Ok(Servers::new(ready.map_err(anyhow::Error::msg)?))
    }
}

/// The server that the flag, the profile or this environment variable names.
pub fn server_of(
    flag: Option<&Server>,
    profile: &Profile,
    variable: &'static str,
    parse: fn(&str) -> Result<Server, String>,
) -> Result<Option<Server>, Usage> {
    match flag {
        Some(server) => Ok(Some(server.clone())),
        None => from_profile(profile, variable, parse),
    }
}

/// The parsed value of the profile or of this environment variable.
fn from_profile<T>(
    profile: &Profile,
    variable: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Usage> {
    let Some((place, text)) = profile.value(variable)? else {
        return Ok(None);
    };
    let parsed = parse(&text).map(Some);
    parsed.map_err(|message| Usage::new(format!("{place}: {message}")))
}

/// Flags for servers with TLS.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// CA certificates (PEM) to trust instead of the host's [default: $CRORE_CA]
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,

    /// Client certificate (PEM), for a server with tls.client_ca
    #[arg(long, value_name = "FILE", global = true)]
    cert: Option<PathBuf>,

    /// Private key of --cert (PEM, without a passphrase)
    #[arg(long, value_name = "FILE", global = true)]
    cert_key: Option<PathBuf>,
}

impl TlsFlags {
    /// Sets the roots and the client certificate of a server with TLS.
    ///
    /// # Errors
    /// TLS flags are given for a server without TLS, a certificate is given without its key (or the reverse), or a file is faulty. The
    /// error names the remedy.
    pub fn apply(&self, server: Server, profile: &Profile) -> Result<Server, String> {
        let given = [
            (CA_FLAG, &self.ca),
            (CERT_FLAG, &self.cert),
            (CERT_KEY_FLAG, &self.cert_key),
        ];
        if !server.is_https() {
            return match given.into_iter().find(|(_, file)| file.is_some()) {
                Some((flag, _)) => Err(format!(
                    "{flag} is for servers with TLS, and {server} is none; write https://"
                )),
                None => Ok(server),
            };
        }
        let certificate = match (&self.cert, &self.cert_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
            (Some(_), None) => {
                return Err(incomplete(CERT_FLAG, CERT_KEY_FLAG, "the file of its key"));
            }
            (None, Some(_)) => {
                return Err(incomplete(
                    CERT_KEY_FLAG,
                    CERT_FLAG,
                    "the certificate's file",
                ));
            }
        };
        let default = profile.value(CA_VARIABLE).map_err(|it| it.to_string())?;
        let (roots, key) = match (&self.ca, default) {
            (None, Some((place, file))) if place == CA_VARIABLE => (Some(file.into()), CA_VARIABLE),
            (None, Some((_, file))) => (Some(file.into()), CA_FLAG),
            (roots, _) => (roots.clone(), CA_FLAG),
        };
        let trust = Trust::new(roots.as_deref(), key)?;
        Ok(server.with_trust(match certificate {
            Some(files) => trust.with_certificate(&files)?,
            None => trust,
        }))
    }
}

fn incomplete(given: &str, other: &str, message: &str) -> String {
    format!("{given} is of no use alone; name {message} with {other}")
}
