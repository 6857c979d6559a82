//! The flags of the tools: the server, the token, the roots to trust by TLS, and the certificate for a server that
//! asks for a certificate; and the variables that stand for them.

use std::env::VarError;
use std::path::PathBuf;

use clap::Args;

use super::values::{self, Usage};
use crate::client::server::{DEFAULT_SERVER, SERVER_VARIABLE, Server, TOKEN_VARIABLE};
use crate::client::tls::{CA_FLAG, CERT_FLAG, CERT_KEY_FLAG, Shown, Trust};

/// The variable for the file of roots; it counts for servers with TLS only.
const CA_VARIABLE: &str = "CRORE_CA";

/// Flags of the clients of a data port.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// The server, on port 8800 unless the URL says another; https:// speaks TLS
    /// [default: $CRORE_SERVER, or http://127.0.0.1:8800]
    #[arg(short, long, alias = "url", value_name = "URL")]
    server: Option<Server>,

    /// The token that says who you are [default: $CRORE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    #[command(flatten)]
    tls: TlsFlags,
}

impl Connect {
    /// The server that the flags and the variables name.
    ///
    /// # Errors
    /// A value that cannot serve, with its flag or variable and the remedy.
    pub fn server(&self) -> anyhow::Result<Server> {
        let token = values::token(self.token.as_deref(), TOKEN_VARIABLE)?;
        let server = named(self.server.as_ref(), SERVER_VARIABLE, str::parse)?;
        let server = server.unwrap_or_else(|| DEFAULT_SERVER.parse().expect("a literal URL"));
        let server = self.tls.apply(server.with_token(token));
        server.map_err(anyhow::Error::msg)
    }
}

/// The server that a flag names, or else a variable.
///
/// # Errors
/// The variable is no URL.
pub fn named(
    flag: Option<&Server>,
    variable: &str,
    parse: fn(&str) -> Result<Server, String>,
) -> Result<Option<Server>, Usage> {
    let wrong = |what: String| Usage::new(format!("{variable}: {what}"));
    match (flag, std::env::var(variable)) {
        (Some(server), _) => Ok(Some(server.clone())),
        (None, Ok(url)) => parse(&url).map(Some).map_err(wrong),
        (None, Err(VarError::NotPresent)) => Ok(None),
        (None, Err(error)) => Err(wrong(error.to_string())),
    }
}

/// Flags for servers with TLS.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Roots to trust by TLS, as PEM, instead of this host's [default: $CRORE_CA]
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,

    /// Certificates to show to a server that asks for one, as PEM (tls.client_ca)
    #[arg(long, value_name = "FILE", global = true)]
    cert: Option<PathBuf>,

    /// Key of --cert, as PEM, without a passphrase
    #[arg(long, value_name = "FILE", global = true)]
    cert_key: Option<PathBuf>,
}

impl TlsFlags {
    /// The server, spoken to by TLS as they say where its URL says so.
    ///
    /// # Errors
    /// Flags for TLS where there is none, one of two that need each other, or a file that cannot serve; with the remedy.
    pub fn apply(&self, server: Server) -> Result<Server, String> {
        let given = [
            (CA_FLAG, &self.ca),
            (CERT_FLAG, &self.cert),
            (CERT_KEY_FLAG, &self.cert_key),
        ];
        if !server.is_secure() {
            return match given.into_iter().find(|(_, file)| file.is_some()) {
                Some((flag, _)) => Err(format!(
                    "{flag} is for servers with TLS, and {server} is none; write https://"
                )),
                None => Ok(server),
            };
        }
        let shown = match (&self.cert, &self.cert_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(Shown { certificate, key }),
            (Some(_), None) => return Err(lacks(CERT_FLAG, CERT_KEY_FLAG, "the file of its key")),
            (None, Some(_)) => {
                return Err(lacks(CERT_KEY_FLAG, CERT_FLAG, "the certificate's file"));
            }
        };
        let of_variable = std::env::var_os(CA_VARIABLE).map(PathBuf::from);
        let (roots, key) = match (&self.ca, &of_variable) {
            (None, Some(file)) => (Some(file), CA_VARIABLE),
            (roots, _) => (roots.as_ref(), CA_FLAG),
        };
        let trust = Trust::new(roots.map(PathBuf::as_path), key)?;
        Ok(server.with_trust(match shown {
            Some(shown) => trust.showing(&shown)?,
            None => trust,
        }))
    }
}

fn lacks(given: &str, other: &str, what: &str) -> String {
    format!("{given} is of no use alone; name {what} with {other}")
}
