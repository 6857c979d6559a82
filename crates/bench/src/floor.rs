//! The floor: a reference server that only moves bytes. It shows the least that a delivery can cost on a machine.
//!
//! The floor has one thread and one epoll set, and makes one `send` for each delivery. So its cost is the cost of the kernel alone, and the
//! results of other servers are given as a ratio to it. The floor does not batch, store or check anything. Do not make it faster: then results
//! from before and after the change could not be compared.
//!
//! A subscriber sends the same HTTP upgrade as to any server and gets a fixed 101. The last number in the
//! request target is the subscriber's number. A publisher sends `PUSH\n`, then records:
//! `u32` number of a subscriber (or [`ALL_SUBSCRIBERS`]), `u32` length, and a complete WebSocket frame of that
//! length, all little-endian. If a socket is full the floor blocks until it is writable, so nothing is dropped.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::report;
use crate::sys::{self, Epoll, Interest};

/// The number in a record that is for all subscribers.
pub const ALL_SUBSCRIBERS: u32 = u32::MAX;
/// The first bytes that a publisher sends.
pub const PUBLISHER_PREAMBLE: &[u8] = b"PUSH\n";

/// The answer to every upgrade. Its accept value matches the key that the load tools always send.
const UPGRADE_RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// The number of a subscriber is below this, because it is the index of an array.
const NUMBERS_MAX: usize = 16 << 20;
/// Size of one read, in bytes. A frame may have at most half of it.
const BUFFER_BYTES: usize = 256 << 10;
/// The maximum number of events that one wait returns.
const EVENTS_MAX: usize = 256;
/// The listener's epoll key. The key of a connection is its descriptor.
const LISTENER_KEY: u64 = u64::MAX;
/// Stands for a missing descriptor.
const NO_DESCRIPTOR: i32 = -1;

/// `crore-bench floor`
#[derive(clap::Args, Clone, Debug)]
pub struct FloorArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8800")]
    pub listen: SocketAddr,
}

/// Runs the floor until it is ended.
pub fn run(args: &FloorArgs) -> Result<ExitCode> {
    sys::raise_descriptor_limit();
    let mut floor = Floor::bind(args.listen)?;
    report::say(&format!("the floor listens on {}", floor.address));
    floor.serve(&AtomicBool::new(false))?;
    Ok(ExitCode::SUCCESS)
}

/// The role of a connection.
#[derive(Clone, Copy)]
enum Role {
    Unknown,
    /// The index in `subscriber_fds`, and the subscriber's number (`NUMBERS_MAX` if it has none).
    Subscriber(u32, u32),
    Publisher,
}

/// The server.
pub struct Floor {
    /// The address on which the server listens.
    pub address: SocketAddr,
    listener: i32,
    epoll: Epoll,
    /// The role of each connection, by descriptor.
    roles: Vec<Role>,
    /// Descriptors by subscriber number.
    fds_by_number: Vec<i32>,
    /// Descriptors of all subscribers.
    subscriber_fds: Vec<i32>,
    /// Incomplete records of publishers, each with the publisher's descriptor.
    incomplete_records: Vec<(i32, Vec<u8>)>,
}

impl Floor {
    /// Listens on `address`.
    pub fn bind(address: SocketAddr) -> Result<Floor> {
        let (listener, address) = sys::listen(address)?;
        let epoll = Epoll::new(EVENTS_MAX)?;
        epoll.add(listener, Interest::IN, LISTENER_KEY)?;
        Ok(Floor {
            address,
            listener,
            epoll,
            roles: vec![],
            fds_by_number: vec![],
            subscriber_fds: vec![],
            incomplete_records: vec![],
        })
    }

    /// Serves until `must_stop` is set.
    pub fn serve(&mut self, must_stop: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        while !must_stop.load(Ordering::Relaxed) {
            let count = self.epoll.wait(Duration::from_secs(1))?;
            for event in 0..count {
                match self.epoll.ready(event).key {
                    LISTENER_KEY => self.accept()?,
                    fd => self.read(fd as i32, &mut buffer)?,
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        while let Some(fd) = sys::accept(self.listener)? {
            if self.roles.len() <= fd as usize {
                self.roles.resize(fd as usize + 1, Role::Unknown);
            }
            self.roles[fd as usize] = Role::Unknown;
            self.epoll.add(fd, Interest::IN, fd as u64)?;
        }
        Ok(())
    }

    fn read(&mut self, fd: i32, buffer: &mut [u8]) -> Result<()> {
        let role = self.roles[fd as usize];
        let kept_bytes = self.take_rest(fd, buffer);
        match sys::receive(fd, &mut buffer[kept_bytes..]) {
            Ok(Some(0)) => self.close(fd),
            Ok(Some(count)) => match role {
                Role::Subscriber(..) => {}
                Role::Publisher => self.handle_records(fd, &buffer[..kept_bytes + count])?,
                Role::Unknown => match buffer[..count].strip_prefix(PUBLISHER_PREAMBLE) {
                    Some(records) => {
                        self.roles[fd as usize] = Role::Publisher;
                        self.handle_records(fd, records)?;
                    }
                    None => self.subscribe(fd, &buffer[..count]),
                },
            },
            Ok(None) if kept_bytes > 0 => self
                .incomplete_records
                .push((fd, buffer[..kept_bytes].to_vec())),
            Ok(None) => {}
            Err(_) => self.close(fd),
        }
        Ok(())
    }

    fn subscribe(&mut self, fd: i32, request: &[u8]) {
        let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or(b"");
        let number = last_number(target).unwrap_or(NUMBERS_MAX);
        if number < NUMBERS_MAX {
            if self.fds_by_number.len() <= number {
                self.fds_by_number.resize(number + 1, NO_DESCRIPTOR);
            }
            self.fds_by_number[number] = fd;
        }
        self.roles[fd as usize] = Role::Subscriber(self.subscriber_fds.len() as u32, number as u32);
        self.subscriber_fds.push(fd);
        deliver(fd, UPGRADE_RESPONSE);
    }

    fn handle_records(&mut self, fd: i32, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while let Some((head, remaining)) = rest.split_first_chunk::<8>() {
            let target = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            ensure!(length <= BUFFER_BYTES / 2, "a record of {length} bytes");
            let Some((frame, remaining)) = remaining.split_at_checked(length) else {
                break;
            };
            if target == ALL_SUBSCRIBERS {
                self.subscriber_fds
                    .iter()
                    .for_each(|subscriber| deliver(*subscriber, frame));
            } else if let Some(subscriber) = self.fds_by_number.get(target as usize) {
                deliver(*subscriber, frame);
            }
            rest = remaining;
        }
        if !rest.is_empty() {
            self.incomplete_records.push((fd, rest.to_vec()));
        }
        Ok(())
    }

    fn take_rest(&mut self, fd: i32, buffer: &mut [u8]) -> usize {
        let Some(index) = self
            .incomplete_records
            .iter()
            .position(|(owner, _)| *owner == fd)
        else {
            return 0;
        };
        let (_, rest) = self.incomplete_records.swap_remove(index);
        buffer[..rest.len()].copy_from_slice(&rest);
        rest.len()
    }

    fn close(&mut self, fd: i32) {
        if let Role::Subscriber(index, number) = self.roles[fd as usize] {
            self.subscriber_fds.swap_remove(index as usize);
            if let Some(moved_fd) = self.subscriber_fds.get(index as usize)
                && let Role::Subscriber(old_index, _) = &mut self.roles[*moved_fd as usize]
            {
                *old_index = index;
            }
            if self.fds_by_number.get(number as usize) == Some(&fd) {
                self.fds_by_number[number as usize] = NO_DESCRIPTOR;
            }
        }
        self.roles[fd as usize] = Role::Unknown;
        sys::close(fd);
    }
}

/// Delivers the bytes with one `send`, or with several if the socket is full.
fn deliver(fd: i32, mut bytes: &[u8]) {
    if fd == NO_DESCRIPTOR {
        return;
    }
    loop {
        match sys::send(fd, bytes) {
            Ok(count) if count == bytes.len() => return,
            Ok(0) => sys::wait_writable(fd),
            Ok(count) => bytes = &bytes[count..],
            // The connection has ended, which the next read reports.
            Err(_) => return,
        }
    }
}

/// The last run of digits in `target`.
fn last_number(target: &[u8]) -> Option<usize> {
    let mut runs = target.rsplit(|byte| !byte.is_ascii_digit());
    let digits = runs.find(|run| !run.is_empty())?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::last_number;

    #[test]
    fn last_number_of_the_target_is_the_subscriber() {
        assert_eq!(last_number(b"/sub?topic=/p/s123/-"), Some(123));
        assert_eq!(last_number(b"/sub/7"), Some(7));
        assert_eq!(last_number(b"/sub/news"), None);
    }
}
