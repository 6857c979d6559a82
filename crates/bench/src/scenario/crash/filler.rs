//! Fills the server's disk with messages, and deletes the messages again. The content of these messages is not checked: they only take
//! space.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::client::link::{End, Link};

/// The number of topics of the messages.
const TOPICS: u32 = 16;
/// Bytes of a message.
const SIZE: usize = 64 << 10;
/// The maximum number of messages. The disk holds fewer.
const MESSAGES_MAX: u32 = 1 << 16;
/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout until the server accepts messages again.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// Interval between two attempts to publish.
const RETRY: Duration = Duration::from_millis(100);

/// Publishes until the server refuses a message because the disk is full.
///
/// # Errors
/// If the connection fails, or the disk does not become full.
pub fn fill(address: SocketAddr) -> Result<()> {
    let mut link = open(address)?;
    for number in 0..MESSAGES_MAX {
        match publish(&mut link, number % TOPICS)? {
            503 => return Ok(()),
            status => ensure!(status < 300, "a publish that fills the disk got {status}"),
        }
    }
    bail!("{MESSAGES_MAX} messages of {SIZE} B do not fill the disk");
}

/// Deletes the messages of `fill`.
///
/// # Errors
/// If the connection fails, or a topic cannot be deleted.
pub fn delete(address: SocketAddr) -> Result<()> {
    let mut link = open(address)?;
    for topic in 0..TOPICS {
        let request = format!("DELETE /pub/filler-{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (status, _) = link.ask(request.as_bytes()).map_err(failed)?;
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
    let began = Instant::now();
    let mut link = open(address)?;
    while publish(&mut link, 0)? == 503 {
        ensure!(
            began.elapsed() < RECOVERY_MAX,
            "no message is accepted {RECOVERY_MAX:?} after most of the log was deleted"
        );
        std::thread::sleep(RETRY);
    }
    Ok(())
}

fn open(address: SocketAddr) -> Result<Link> {
    Link::open(address, TIMEOUT).map_err(failed)
}

/// Publishes a message. Returns the status.
fn publish(link: &mut Link, topic: u32) -> Result<u16> {
    let head = format!(
        "POST /pub/filler-{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SIZE}\r\n\r\n"
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + SIZE, b'x');
    let (status, _) = link.ask(&request).map_err(failed)?;
    Ok(status)
}

fn failed(end: End) -> anyhow::Error {
    anyhow::anyhow!("the connection that fills the disk: {end:?}")
}
