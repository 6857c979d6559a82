//! Makes the certificate that all servers of a scenario present, with the host's `openssl`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::client::tls::NAME;

/// The files of a certificate for `localhost` with an ECDSA key (P-256).
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate chain (PEM).
    pub chain: PathBuf,
    /// The private key (PEM).
    pub key: PathBuf,
}

impl Certificate {
    /// Creates the files in this directory.
    ///
    /// # Errors
    /// If `openssl` is missing or fails.
    pub fn make(directory: &Path) -> Result<Certificate> {
        let (chain, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        let status = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "30"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-subj", &format!("/CN={NAME}")])
            .args(["-addext", &format!("subjectAltName=DNS:{NAME}")])
            // Without this argument the certificate would be a CA certificate, which a server must not use.
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&chain)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("openssl is not there; install it")?;
        ensure!(status.success(), "openssl has made no certificate");
        Ok(Certificate { chain, key })
    }

    /// The `[tls]` table of Crore's settings.
    pub fn settings(&self) -> String {
        let (chain, key) = (self.chain.display(), self.key.display());
        format!("[tls]\ncertificate = \"{chain}\"\nkey = \"{key}\"\n")
    }
}
