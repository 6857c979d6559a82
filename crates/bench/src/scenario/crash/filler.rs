//! Fills the server's disk with messages, and deletes them again. These messages only take space; nobody checks their content.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::client::link::{Link, LinkError};

/// The number of topics of the messages.
const TOPICS: u32 = 16;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 64 << 10;
/// The maximum number of messages. The disk holds fewer.
const MESSAGES_MAX: u32 = 1 << 16;
/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout until the server accepts messages again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between two attempts to publish.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Publishes until the server refuses a message because the disk is full.
///
/// # Errors
/// If the connection fails, or the disk does not become full.
pub fn fill(address: SocketAddr) -> Result<()> {
    let mut link = connect(address)?;
    for number in 0..MESSAGES_MAX {
        match publish(&mut link, number % TOPICS)? {
            503 => return Ok(()),
            status => ensure!(status < 300, "a publish that fills the disk got {status}"),
        }
    }
    bail!("{MESSAGES_MAX} messages of {MESSAGE_BYTES} B do not fill the disk");
}

/// Deletes the messages of `fill`.
///
/// # Errors
/// If the connection fails, or a topic cannot be deleted.
pub fn delete(address: SocketAddr) -> Result<()> {
    let mut link = connect(address)?;
    for topic in 0..TOPICS {
        let request = format!("DELETE /pub/filler-{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (status, _) = link.request(request.as_bytes()).map_err(to_error)?;
        ensure!(
            [200, 404].contains(&status),
            "the deletion of a topic got {status}"
        );
    }
    Ok(())
}

/// Waits until the server accepts a publish again.
///
/// # Errors
/// If the connection fails, or the server does not recover.
pub fn wait_for_room(address: SocketAddr) -> Result<()> {
    let start = Instant::now();
    let mut link = connect(address)?;
    while publish(&mut link, 0)? == 503 {
        ensure!(
            start.elapsed() < RECOVERY_TIMEOUT,
            "no message is accepted {RECOVERY_TIMEOUT:?} after most of the log was deleted"
        );
        std::thread::sleep(RETRY_INTERVAL);
    }
    Ok(())
}

fn connect(address: SocketAddr) -> Result<Link> {
    Link::open(address, TIMEOUT).map_err(to_error)
}

/// Publishes a message. Returns the status.
fn publish(link: &mut Link, topic: u32) -> Result<u16> {
    let head = format!(
        "POST /pub/filler-{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MESSAGE_BYTES}\r\n\r\n"
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + MESSAGE_BYTES, b'x');
    let (status, _) = link.request(&request).map_err(to_error)?;
    Ok(status)
}

fn to_error(end: LinkError) -> anyhow::Error {
    anyhow::anyhow!("the connection that fills the disk: {end:?}")
}
