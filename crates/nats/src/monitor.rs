//! Asks NATS servers over HTTP, at their monitoring ports, whether they sync each batch before they acknowledge it.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::log_state::SyncInterval;

/// The time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Asks the servers at these URLs.
pub async fn query_all(urls: &[String]) -> Vec<SyncInterval> {
    let mut sync_intervals = Vec::new();
    for url in urls {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, query_sync_always(url)).await;
        let is_always = answer.unwrap_or_else(|_| Err("it does not answer".to_string()));
        sync_intervals.push(SyncInterval {
            url: url.clone(),
            is_always,
        });
    }
    sync_intervals
}

/// Whether the server at this URL has `sync_interval: always`.
async fn query_sync_always(url: &str) -> Result<bool, String> {
    let host = url
        .strip_prefix("http://")
        .ok_or("it must begin with http://")?;
    let host = host.trim_end_matches('/');
    let address = match host.contains(':') {
        true => host.to_string(),
        false => format!("{host}:8222"),
    };
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(&address).await.map_err(failed)?;
    // With HTTP/1.0 the server sends the answer without chunks, and then closes the connection.
    let request = format!("GET /varz HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = String::new();
    let mut limited = stream.take(ANSWER_BYTES_MAX);
    limited.read_to_string(&mut answer).await.map_err(failed)?;
    let (_, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("its answer has no body")?;
    let value: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let config = &value["jetstream"]["config"];
    match config.is_object() {
        true => Ok(config["sync_always"].as_bool().unwrap_or(false)),
        false => Err("it tells nothing of JetStream".to_string()),
    }
}
