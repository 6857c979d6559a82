//! An HTTP endpoint of the operator that the server calls: its URL and root certificates, requests with a timeout, and log lines about failures.
//!
//! The server follows no redirects: they could lead to an address that the operator has not configured.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::http::{Connection, Head};
use super::server::{Server, without_credentials};
use super::tls::Trust;

/// The minimum time between two log lines with the same reason.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// The maximum number of different reasons that are logged within [`LOG_EVERY`].
const LOGGED_MAX: usize = 16;

/// The settings of an endpoint, with their keys for error messages.
pub struct EndpointSettings<'a> {
    /// The endpoint's name in log lines.
    pub name: &'a str,
    pub url: &'a str,
    pub url_key: &'static str,
    /// The PEM file with the root certificates to trust.
    pub ca: Option<&'a Path>,
    pub ca_key: &'static str,
    /// Whether the server may connect only to addresses of the internet, not to private ones.
    pub public_only: bool,
}

/// A request to an endpoint.
pub struct Request<'a> {
    pub method: &'static str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<&'a [u8]>,
    /// The maximum size of the answer's body.
    pub answer_bytes_max: usize,
}

/// An endpoint, and how long it may take to answer.
pub struct Endpoint {
    name: String,
    server: Server,
    timeout: Duration,
    /// The reasons that were logged within the last [`LOG_EVERY`], and when.
    recent_reasons: Mutex<Vec<(String, Instant)>>,
}

impl Endpoint {
    /// Checks the settings of an endpoint, and reads its file of root certificates.
    ///
    /// # Errors
    /// The key in the settings, what is wrong with its value, and the remedy.
    pub fn new(
        settings: &EndpointSettings<'_>,
        timeout: Duration,
    ) -> Result<Endpoint, (&'static str, String)> {
        let &EndpointSettings {
            name,
            url,
            url_key,
            ca,
            ca_key,
            public_only,
        } = settings;
        let is_http = ["http://", "https://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        let server = match is_http {
            true => Server::parse(url, |secure| if secure { 443 } else { 80 }),
            false => Err(format!("`{}` is not offered", without_credentials(url))),
        };
        let remedy = "write https://HOST:PORT/PATH, or http:// within a network of your own";
        let server = server.map_err(|fault| (url_key, format!("{fault}; {remedy}")))?;
        let server = match (server.is_https(), ca) {
            (true, ca) => {
                let trust = Trust::new(ca, ca_key).map_err(|message| (ca_key, message))?;
                server.with_trust(trust)
            }
            (false, None) => server,
            (false, Some(_)) => {
                let message =
                    format!("is for servers with TLS, and {server} is none; write https://");
                return Err((ca_key, message));
            }
        };
        Ok(Endpoint {
            name: name.to_string(),
            server: match public_only {
                true => server.with_public_addresses_only(),
                false => server,
            },
            timeout,
            recent_reasons: Mutex::default(),
        })
    }

    /// Sends a request, and reads the whole answer. Uses `reusable_connection` if that is still open. Blocks for at most the timeout,
    /// and for the look-up of the name.
    ///
    /// # Errors
    /// Why there is no answer, as text for the log.
    pub fn exchange(
        &self,
        request: &Request<'_>,
        reusable_connection: &mut Option<Connection>,
    ) -> Result<(Head, Vec<u8>), String> {
        let (head, body) = self.try_exchange(request, reusable_connection)?;
        let body = body.map_err(|error| self.failure_text(&error))?;
        Ok((head, body))
    }

    /// As [`Endpoint::exchange`], for an answer of which only the head matters: a body that is too long, or does not come in time, is no error.
    ///
    /// # Errors
    /// Why there is no answer, as text for the log.
    pub fn exchange_head(
        &self,
        request: &Request<'_>,
        reusable_connection: &mut Option<Connection>,
    ) -> Result<Head, String> {
        let (head, _) = self.try_exchange(request, reusable_connection)?;
        Ok(head)
    }

    fn failure_text(&self, error: &io::Error) -> String {
        use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            WouldBlock | TimedOut => format!("no answer within {} s", self.timeout.as_secs()),
            UnexpectedEof => "it closed the connection before the end of its answer".to_string(),
            _ => error.to_string(),
        }
    }

    /// The head, and the body or why it is not known. If it is known, the connection is kept.
    fn try_exchange(
        &self,
        request: &Request<'_>,
        reusable_connection: &mut Option<Connection>,
    ) -> Result<(Head, io::Result<Vec<u8>>), String> {
        let answered = self.begin_exchange(request, reusable_connection);
        let (mut connection, head) = answered.map_err(|error| self.failure_text(&error))?;
        let body = connection.read_whole_body(request.answer_bytes_max);
        if body.is_ok() {
            *reusable_connection = Some(connection);
        }
        Ok((head, body))
    }

    /// Sends a request, and reads the head of its answer.
    fn begin_exchange(
        &self,
        request: &Request<'_>,
        reusable_connection: &mut Option<Connection>,
    ) -> io::Result<(Connection, Head)> {
        let deadline = Instant::now() + self.timeout;
        let mut connection = match reusable_connection
            .take()
            .and_then(Connection::into_reusable)
        {
            Some(connection) => connection,
            None => Connection::open_with_deadline(&self.server, deadline).map_err(|error| {
                // Otherwise the log would say that the endpoint has not answered.
                match error.kind() {
                    io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                        io::Error::other(format!("cannot connect to it: {error}"))
                    }
                    _ => error,
                }
            })?,
        };
        connection.set_deadline(deadline);
        let head = connection.request(
            &self.server,
            request.method,
            self.server.url_path(),
            request.headers,
            request.body,
        )?;
        Ok((connection, head))
    }

    /// Logs a failure: each reason once in [`LOG_EVERY`], and at most [`LOGGED_MAX`] reasons in that time.
    pub fn log_failure(&self, reason: &str) {
        let mut recent_reasons = self
            .recent_reasons
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        recent_reasons.retain(|(_, last)| last.elapsed() < LOG_EVERY);
        if recent_reasons.len() < LOGGED_MAX
            && !recent_reasons.iter().any(|(known, _)| known == reason)
        {
            recent_reasons.push((reason.to_string(), Instant::now()));
            tracing::warn!("{} at {}: {reason}", self.name, self.server);
        }
    }
}
