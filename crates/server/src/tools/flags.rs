//! The flags by which the tools are told whom to trust by TLS, and what to show a server that asks for a certificate.

use std::path::PathBuf;

use clap::Args;

use crate::client::server::Server;
use crate::client::tls::{CA_FLAG, CERT_FLAG, CERT_KEY_FLAG, Shown, Trust};

/// Flags for servers with TLS.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsFlags {
    /// PEM file with the roots to trust by TLS, instead of this host's
    #[arg(long, value_name = "FILE", global = true)]
    ca: Option<PathBuf>,

    /// PEM file with the certificate to show to a server that asks for one (tls.client_ca), and those between it and a root
    #[arg(long, value_name = "FILE", global = true)]
    cert: Option<PathBuf>,

    /// PEM file with the key of --cert, without a passphrase
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
        let trust = Trust::new(self.ca.as_deref(), CA_FLAG)?;
        Ok(server.with_trust(match shown {
            Some(shown) => trust.showing(&shown)?,
            None => trust,
        }))
    }
}

fn lacks(given: &str, other: &str, what: &str) -> String {
    format!("{given} is of no use alone; name {what} with {other}")
}
