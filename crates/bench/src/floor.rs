//! The floor: a reference server that only moves bytes. It shows the least that a delivery can cost on a machine.
//!
//! The floor has one thread and one epoll set, and makes one `send` for each delivery. So its cost is the cost of the kernel alone, and the
//! results of other servers are given as a ratio to it. The floor does not batch, store or check anything. Do not make it faster: results
//! from before and after the change could not be compared.
//! results could not be compared with later ones.
//!
//! A subscriber sends the same HTTP upgrade as to any server and gets a fixed 101. The last number in the
//! request target is the subscriber's number. A publisher sends `PUSH\n`, then records:
//! `u32` number of a subscriber (or [`EVERYBODY`]), `u32` length, and a complete WebSocket frame of that
//! length, all little-endian. If a socket is full the floor blocks until it is writable, so nothing is dropped.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::report;
use crate::sys::{self, Epoll, Interest};

/// The number in a record that is for all subscribers.
pub const EVERYBODY: u32 = u32::MAX;
/// The first bytes that a publisher sends.
pub const PUSH: &[u8] = b"PUSH\n";

/// The answer to every upgrade. Its accept value matches the key that the load tools always send.
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// Subscribers' numbers must be below this, because they index an array.
const NUMBER_MAX: usize = 16 << 20;
/// Size of one read, in bytes. A frame may have at most half of it.
const BUFFER_BYTES: usize = 256 << 10;
/// The maximum number of events of one wait.
const EVENTS: usize = 256;
/// The listener's epoll key. The key of a connection is its descriptor.
const LISTENER: u64 = u64::MAX;
/// Stands for a missing descriptor.
const NONE: i32 = -1;

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
    /// The index in `all`, and the subscriber's number (`NUMBER_MAX` if it has none).
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
    numbers: Vec<i32>,
    /// Descriptors of all subscribers.
    all: Vec<i32>,
    /// Incomplete records of publishers, each with the publisher's descriptor.
    rests: Vec<(i32, Vec<u8>)>,
}

impl Floor {
    /// Listens on `address`.
    pub fn bind(address: SocketAddr) -> Result<Floor> {
        let (listener, address) = sys::listen(address)?;
        let epoll = Epoll::new(EVENTS)?;
        epoll.add(listener, Interest::IN, LISTENER)?;
        Ok(Floor {
            address,
            listener,
            epoll,
            roles: vec![],
            numbers: vec![],
            all: vec![],
            rests: vec![],
        })
    }

    /// Serves until `stop` is set.
    pub fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        while !stop.load(Ordering::Relaxed) {
            let count = self.epoll.wait(Duration::from_secs(1))?;
            for event in 0..count {
                match self.epoll.ready(event).key {
                    LISTENER => self.accept()?,
                    fd => self.readable(fd as i32, &mut buffer)?,
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

    fn readable(&mut self, fd: i32, buffer: &mut [u8]) -> Result<()> {
        let role = self.roles[fd as usize];
        let held = self.take_rest(fd, buffer);
        match sys::receive(fd, &mut buffer[held..]) {
            Ok(Some(0)) => self.close(fd),
            Ok(Some(count)) => match role {
                Role::Subscriber(..) => {}
                Role::Publisher => self.records(fd, &buffer[..held + count])?,
                Role::Unknown => match buffer[..count].strip_prefix(PUSH) {
                    Some(records) => {
                        self.roles[fd as usize] = Role::Publisher;
                        self.records(fd, records)?;
                    }
                    None => self.subscribe(fd, &buffer[..count]),
                },
            },
            Ok(None) if held > 0 => self.rests.push((fd, buffer[..held].to_vec())),
            Ok(None) => {}
            Err(_) => self.close(fd),
        }
        Ok(())
    }

    fn subscribe(&mut self, fd: i32, request: &[u8]) {
        let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or(b"");
        let number = last_number(target).unwrap_or(NUMBER_MAX);
        if number < NUMBER_MAX {
            if self.numbers.len() <= number {
                self.numbers.resize(number + 1, NONE);
            }
            self.numbers[number] = fd;
        }
        self.roles[fd as usize] = Role::Subscriber(self.all.len() as u32, number as u32);
        self.all.push(fd);
        deliver(fd, SWITCHING);
    }

    fn records(&mut self, fd: i32, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while let Some((head, after)) = rest.split_first_chunk::<8>() {
            let target = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            ensure!(length <= BUFFER_BYTES / 2, "a record of {length} bytes");
            let Some((frame, after)) = after.split_at_checked(length) else {
                break;
            };
            if target == EVERYBODY {
                self.all
                    .iter()
                    .for_each(|subscriber| deliver(*subscriber, frame));
            } else if let Some(subscriber) = self.numbers.get(target as usize) {
                deliver(*subscriber, frame);
            }
            rest = after;
        }
        if !rest.is_empty() {
            self.rests.push((fd, rest.to_vec()));
        }
        Ok(())
    }

    fn take_rest(&mut self, fd: i32, buffer: &mut [u8]) -> usize {
        let Some(place) = self.rests.iter().position(|(owner, _)| *owner == fd) else {
            return 0;
        };
        let (_, rest) = self.rests.swap_remove(place);
        buffer[..rest.len()].copy_from_slice(&rest);
        rest.len()
    }

    fn close(&mut self, fd: i32) {
        if let Role::Subscriber(place, number) = self.roles[fd as usize] {
            self.all.swap_remove(place as usize);
            if let Some(moved) = self.all.get(place as usize)
                && let Role::Subscriber(old_place, _) = &mut self.roles[*moved as usize]
            {
                *old_place = place;
            }
            if self.numbers.get(number as usize) == Some(&fd) {
                self.numbers[number as usize] = NONE;
            }
        }
        self.roles[fd as usize] = Role::Unknown;
        sys::close(fd);
    }
}

/// Delivers the bytes with one `send`, or with several if the socket is full.
fn deliver(fd: i32, mut bytes: &[u8]) {
    if fd == NONE {
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
    fn the_last_number_names_the_subscriber() {
        assert_eq!(last_number(b"/sub?topic=/p/s123/-"), Some(123));
        assert_eq!(last_number(b"/sub/7"), Some(7));
        assert_eq!(last_number(b"/sub/news"), None);
    }
}
