//! The endpoint of a webhook: signs requests and sends them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::access::secret;
use crate::http_client::endpoint::{Endpoint, EndpointSettings, Request};
use crate::http_client::http::Connection;
use crate::settings::webhook::{Webhook, WebhookFormat};

/// The size of an answer after which the connection is closed. Only the status matters.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Limit of the size of a file with a secret.
const SECRET_BYTES_MAX: usize = 4 << 10;
/// A shorter secret can be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// A secret of Standard Webhooks begins with this. The rest is base64.
const SECRET_PREFIX: &str = "whsec_";

/// An endpoint.
pub struct WebhookEndpoint {
    endpoint: Endpoint,
    secret: hmac::Key,
    format: WebhookFormat,
    /// The value of `X-Pusher-Key`.
    key: String,
}

impl WebhookEndpoint {
    /// Reads the files that the settings of a webhook name.
    ///
    /// # Errors
    /// The key in the settings, and what is wrong with its value.
    pub fn new(number: usize, entry: &Webhook) -> Result<WebhookEndpoint, (String, String)> {
        let table = format!("webhook[{number}]");
        let settings = EndpointSettings {
            name: &format!("webhook {number}"),
            url: &entry.url,
            url_key: "url",
            ca: Some(entry.ca.as_path()).filter(|path| !path.as_os_str().is_empty()),
            ca_key: "ca",
            public_only: !entry.private,
        };
        let timeout = Duration::from_secs(entry.timeout_s.into());
        let endpoint = Endpoint::new(&settings, timeout)
            .map_err(|(key, message)| (format!("{table}.{key}"), message))?;
        let secret =
            read_secret(entry).map_err(|message| (format!("{table}.secret_file"), message))?;
        Ok(WebhookEndpoint {
            endpoint,
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            format: entry.format,
            key: entry.key.clone(),
        })
    }

    /// Sends a body once. Blocks. Returns the answer's status.
    ///
    /// # Errors
    /// The status if it is not 2xx, or why there is no answer.
    pub fn send(
        &self,
        id: &str,
        body: &[u8],
        connection: &mut Option<Connection>,
    ) -> Result<String, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let timestamp = now.unwrap_or_default().as_secs().to_string();
        let signature = match self.format {
            WebhookFormat::Standard => standard_signature(&self.secret, id, &timestamp, body),
            WebhookFormat::Pusher => hex(hmac::sign(&self.secret, body).as_ref()),
        };
        let signed: &[(&str, &str)] = match self.format {
            WebhookFormat::Standard => &[
                ("Webhook-Id", id),
                ("Webhook-Timestamp", &timestamp),
                ("Webhook-Signature", &signature),
            ],
            WebhookFormat::Pusher => &[
                ("X-Pusher-Key", &self.key),
                ("X-Pusher-Signature", &signature),
            ],
        };
        let headers = [&[("Content-Type", "application/json")], signed].concat();
        let request = Request {
            method: "POST",
            headers: &headers,
            body: Some(body),
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let answer = self.endpoint.exchange_head(&request, connection);
        let answer = answer.and_then(|head| match head.status {
            200..300 => Ok(head.status_text()),
            300..400 => Err(format!(
                "{}: redirects are not followed",
                head.status_text()
            )),
            _ => Err(head.status_text()),
        });
        answer.inspect_err(|reason| self.endpoint.log_failure(reason))
    }

    /// Logs that events are given up.
    pub fn log_given_up(&self, events: u64) {
        self.endpoint.log_failure(&format!(
            "{events} events had no good answer within retry_s and are given up; a resync follows"
        ));
    }
}

fn read_secret(entry: &Webhook) -> Result<Vec<u8>, String> {
    let path = &entry.secret_file;
    if path.as_os_str().is_empty() {
        return Err("is missing; name a file with a secret, such as `whsec_` and the output of `openssl rand -base64 32`".to_string());
    }
    let named = |message: &str| format!("{}: {message}", path.display());
    let read = std::fs::read(path).map_err(|error| named(&error.to_string()))?;
    let text = secret::without_line_end(secret::without_byte_order_mark(&read));
    let encoded = text.strip_prefix(SECRET_PREFIX.as_bytes());
    let bytes = match encoded {
        Some(encoded) => STANDARD
            .decode(encoded)
            .map_err(|_| named("is no base64 after `whsec_`"))?,
        None => text.to_vec(),
    };
    match bytes.len() {
        SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(bytes),
        len => Err(named(&format!(
            "has a secret of {len} bytes; write {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}"
        ))),
    }
}

/// The signature of Standard Webhooks, version 1.
fn standard_signature(secret: &hmac::Key, id: &str, timestamp: &str, body: &[u8]) -> String {
    let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat();
    format!(
        "v1,{}",
        STANDARD.encode(hmac::sign(secret, &signed).as_ref())
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_that_of_the_reference() {
        // The example of the reference implementations of Standard Webhooks.
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let signature = standard_signature(
            &key,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            b"{\"test\": 2432232314}",
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
