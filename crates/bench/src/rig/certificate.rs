//! A certificate for the servers of a scenario, made by the `openssl` of the host: all of them show the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::client::tls::NAME;

/// A certificate for `localhost` with an ECDSA key (P-256), and where it lies.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM.
    pub chain: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

impl Certificate {
    /// Makes one in this directory.
    ///
    /// # Errors
    /// When there is no `openssl`.
    pub fn make(directory: &Path) -> Result<Certificate> {
        let (chain, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        let status = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "30"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-subj", &format!("/CN={NAME}")])
            .args(["-addext", &format!("subjectAltName=DNS:{NAME}")])
            // Otherwise it would be the certificate of an authority, which no server may use.
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

    /// The product's settings.
    pub fn settings(&self) -> String {
        let (chain, key) = (self.chain.display(), self.key.display());
        format!("[tls]\ncertificate = \"{chain}\"\nkey = \"{key}\"\n")
    }
}
