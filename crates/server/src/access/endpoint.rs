//! An HTTP endpoint of the operator's that the server calls: its address, the roots to trust there, and the log of its failures.
//!
//! Redirects are not followed: whoever answers at another address was not named by the operator.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::http_client::http::{Connection, Head};
use crate::http_client::server::{Server, without_password};
use crate::http_client::tls::Trust;

/// How often one reason of a failure is logged, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Reasons that are logged within that time, at most.
const TOLD_MAX: usize = 16;

/// Where the settings name an endpoint.
pub struct Place<'a> {
    /// Its name in log lines.
    pub name: &'static str,
    /// The URL, and the key in the settings.
    pub url: (&'a str, &'static str),
    /// The PEM file with the roots to trust, and the key in the settings.
    pub ca: (Option<&'a Path>, &'static str),
}

/// A request to an endpoint.
pub struct Request<'a> {
    pub method: &'static str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<&'a [u8]>,
    /// Bytes of the answer's body at most.
    pub answer_bytes_max: usize,
}

/// An endpoint, and how long it may take to answer.
pub struct Endpoint {
    name: &'static str,
    server: Server,
    timeout: Duration,
    /// The reasons that were logged lately, and when.
    told: Mutex<Vec<(String, Instant)>>,
}

impl Endpoint {
    /// The endpoint at a URL. The file of roots is read here.
    ///
    /// # Errors
    /// The key in the settings, and its fault with the remedy.
    pub fn new(place: &Place<'_>, timeout: Duration) -> Result<Endpoint, (&'static str, String)> {
        let (url, url_key) = place.url;
        let (roots, ca_key) = place.ca;
        let is_url = ["http://", "https://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        let server = match is_url {
            true => Server::parse(url, |secure| if secure { 443 } else { 80 }),
            false => Err(format!("`{}` is not offered", without_password(url))),
        };
        let remedy = "write https://HOST:PORT/PATH, or http:// within a network of your own";
        let server = server.map_err(|what| (url_key, format!("{what}; {remedy}")))?;
        let server = match (server.is_secure(), roots) {
            (true, roots) => {
                let trust = Trust::new(roots, ca_key).map_err(|what| (ca_key, what))?;
                server.with_trust(trust)
            }
            (false, None) => server,
            (false, Some(_)) => {
                let what = format!("is for servers with TLS, and {server} is none; write https://");
                return Err((ca_key, what));
            }
        };
        Ok(Endpoint {
            name: place.name,
            server,
            timeout,
            told: Mutex::default(),
        })
    }

    /// Sends a request, over `kept` if that connection is still open, and reads the whole answer. Blocks for the timeout at most.
    ///
    /// # Errors
    /// Why there is no answer, in words for the log.
    pub fn exchange(
        &self,
        request: &Request<'_>,
        kept: &mut Option<Connection>,
    ) -> Result<(Head, Vec<u8>), String> {
        use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
        self.try_exchange(request, kept)
            .map_err(|error| match error.kind() {
                WouldBlock | TimedOut => format!("no answer within {} s", self.timeout.as_secs()),
                UnexpectedEof => "it closed the connection without an answer".to_string(),
                _ => error.to_string(),
            })
    }

    fn try_exchange(
        &self,
        request: &Request<'_>,
        kept: &mut Option<Connection>,
    ) -> io::Result<(Head, Vec<u8>)> {
        let end = Instant::now() + self.timeout;
        let mut connection = match kept.take().and_then(Connection::reusable) {
            Some(connection) => connection,
            None => Connection::open_within(&self.server, self.timeout)?,
        };
        connection.set_end(end);
        let head = connection.request(
            &self.server,
            request.method,
            self.server.target(),
            request.headers,
            request.body,
        )?;
        let answer = connection.whole_body(request.answer_bytes_max)?;
        *kept = Some(connection);
        Ok((head, answer))
    }

    /// Logs a failure. Each reason is logged once in a while, since requests repeat it.
    pub fn tell(&self, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(_, last)| last.elapsed() < TELL_EVERY);
        if told.len() < TOLD_MAX && !told.iter().any(|(known, _)| known == why) {
            told.push((why.to_string(), Instant::now()));
            tracing::warn!("{} at {}: {why}", self.name, self.server);
        }
    }
}
