//! The program that the kernel runs for each frame of an interface. It sends the segments of our listening addresses to the socket of their
//! queue, and leaves everything else to the kernel (`instructions.rs`).
//!
//! The kernel removes the program from the interface when the last descriptor of its link is closed: also when this process is killed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::instructions::{build_program, build_program_for_all};
use super::socket::XdpSocket;
use crate::sys::{Fd, check};

/// Commands of `bpf(2)`.
mod command {
    pub const MAP_CREATE: libc::c_int = 0;
    pub const MAP_UPDATE_ELEM: libc::c_int = 2;
    pub const PROG_LOAD: libc::c_int = 5;
    pub const LINK_CREATE: libc::c_int = 28;
}

/// `BPF_MAP_TYPE_XSKMAP`: from the number of a queue to its socket.
const MAP_TYPE: u32 = 17;
/// `BPF_PROG_TYPE_XDP`, and `BPF_XDP`, where such a program is attached.
const PROGRAM_TYPE: u32 = 6;
const ATTACH_TYPE: u32 = 37;
/// `XDP_FLAGS_SKB_MODE`: the kernel runs the program, whatever the driver is able to do.
const SKB_MODE_FLAG: u32 = 2;
/// `XDP_FLAGS_DRV_MODE`: the driver runs the program.
const DRIVER_MODE_FLAG: u32 = 4;
/// The largest number of addresses: each costs some instructions for every frame.
pub const ADDRESSES_MAX: usize = 64;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel makes a packet of the frame.
    Driver,
    /// In the kernel, with drivers that cannot.
    Kernel,
}

/// Sends the segments of some addresses to the sockets of their queues. Other frames, and queues without socket, stay the kernel's.
pub struct Redirect {
    map: OwnedFd,
    queues: u32,
    mode: Mode,
    /// The program is attached as long as this is open.
    _link: OwnedFd,
}

/// The sockets of a [`Redirect`], by queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueSockets {
    map: Fd,
    queues: u32,
}

impl Redirect {
    /// Attaches the program to an interface, for segments to these addresses, and messages about segments of theirs. No queue has a socket
    /// yet, so nothing changes.
    ///
    /// # Errors
    /// If this process may not (`CAP_NET_ADMIN`, `CAP_BPF` and `CAP_PERFMON`), if the interface has another program, or if there are more than
    /// [`ADDRESSES_MAX`] addresses.
    pub fn attach(interface: u32, queues: u32, addresses: &[SocketAddr]) -> io::Result<Redirect> {
        if addresses.len() > ADDRESSES_MAX {
            let what = format!("{} addresses, and at most {ADDRESSES_MAX}", addresses.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Redirect::attach_program(interface, queues, |map| build_program(map, addresses))
    }

    /// [`Redirect::attach`] for all frames. The kernel gets none of a queue that has a socket.
    ///
    /// # Errors
    /// As there.
    pub fn attach_for_all(interface: u32, queues: u32) -> io::Result<Redirect> {
        Redirect::attach_program(interface, queues, build_program_for_all)
    }

    fn attach_program(
        interface: u32,
        queues: u32,
        build: impl FnOnce(RawFd) -> Vec<u64>,
    ) -> io::Result<Redirect> {
        let map = create_map(queues)?;
        let program = load(&build(map.as_raw_fd()))?;
        let attach = |mode_flag| {
            // Program, interface, kind and flags.
            let program = program.as_raw_fd() as u32;
            let attributes = [program, interface, ATTACH_TYPE, mode_flag];
            open_descriptor(command::LINK_CREATE, &attributes)
        };
        let (link, mode) = match attach(DRIVER_MODE_FLAG) {
            Ok(link) => (link, Mode::Driver),
            // If the reason is not the driver, the second attempt fails for the same reason.
            Err(_) => (attach(SKB_MODE_FLAG)?, Mode::Kernel),
        };
        Ok(Redirect {
            map,
            queues,
            mode,
            _link: link,
        })
    }

    /// Where the program runs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The sockets by queue, for threads that have a descriptor of it in their table ([`QueueSockets::fd`]).
    pub fn queue_sockets(&self) -> QueueSockets {
        QueueSockets {
            map: Fd(self.map.as_raw_fd() as u32),
            queues: self.queues,
        }
    }
}

impl QueueSockets {
    /// The descriptor, which must be in the table of the thread that adds a socket.
    pub fn fd(&self) -> Fd {
        self.map
    }

    /// The number of queues.
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Sends the frames of a queue to this socket, which must be of this queue. When the socket is closed the kernel gets them again.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn add(&self, queue: u32, socket: &XdpSocket) -> io::Result<()> {
        let value = socket.as_fd().as_raw_fd() as u32;
        // The map; the addresses of key and value; no flags.
        let (key, value) = (&raw const queue as u64, &raw const value as u64);
        let map: BorrowedFd<'_> = self.map.lend();
        let map = map.as_raw_fd() as u64;
        // SAFETY: key and value are of the sizes that the map was made with, and live until the call is over.
        check(unsafe { bpf(command::MAP_UPDATE_ELEM, &[map, key, value, 0]) })
    }
}

fn create_map(queues: u32) -> io::Result<OwnedFd> {
    let bytes = size_of::<u32>() as u32;
    open_descriptor(command::MAP_CREATE, &[MAP_TYPE, bytes, bytes, queues])
}

fn load(program: &[u64]) -> io::Result<OwnedFd> {
    let license = c"MIT";
    let kind_and_count = [PROGRAM_TYPE, program.len() as u32];
    let attributes = [
        pair(kind_and_count),
        program.as_ptr() as u64,
        license.as_ptr() as u64,
    ];
    // SAFETY: the addresses are those of the program, whose number of instructions is given, and of a text that ends with a zero. Both live
    // until the call is over.
    let result = unsafe { bpf(command::PROG_LOAD, &attributes) };
    into_descriptor(result)
}

/// Two numbers that follow one another in memory.
fn pair([first, second]: [u32; 2]) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Makes a call whose attributes are four numbers, and that opens a descriptor.
fn open_descriptor(command: libc::c_int, attributes: &[u32; 4]) -> io::Result<OwnedFd> {
    let [a, b, c, d] = *attributes;
    // SAFETY: these commands take numbers only.
    let result = unsafe { bpf(command, &[pair([a, b]), pair([c, d])]) };
    into_descriptor(result)
}

/// The descriptor that a call has returned.
fn into_descriptor(result: libc::c_int) -> io::Result<OwnedFd> {
    check(result)?;
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// The system call.
///
/// # Safety
/// Addresses among the attributes must be right for the command.
unsafe fn bpf(command: libc::c_int, attributes: &[u64]) -> libc::c_int {
    let bytes = size_of_val(attributes);
    // SAFETY: the attributes live until the call is over, and their size is given. The caller vouches for the addresses in them.
    unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), bytes) as libc::c_int }
}
