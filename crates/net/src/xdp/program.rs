//! The program that the kernel runs for each frame of an interface. It sends the frames of a queue to the queue's socket.
//!
//! The kernel removes the program from the interface when the last descriptor of its link is closed: also when this process is killed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::XdpSocket;
use crate::sys::check;

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
/// The verdict for a frame of a queue without socket: the kernel handles it.
const PASS_VERDICT: i32 = 2;
/// `bpf_redirect_map`.
const REDIRECT_MAP_HELPER: i32 = 51;
/// The offset of the queue's number in `struct xdp_md`.
const QUEUE_OFFSET: i16 = 16;

/// Sends all frames of some queues of an interface to sockets. The other queues stay the kernel's.
pub struct Redirect {
    map: OwnedFd,
    queues: u32,
    /// The program is attached as long as this is open.
    _link: OwnedFd,
}

impl Redirect {
    /// Attaches the program to an interface. No queue has a socket yet, so nothing changes.
    ///
    /// # Errors
    /// If this process may not (`CAP_NET_ADMIN` and `CAP_BPF`), or if the interface has another program.
    pub fn attach(interface: u32, queues: u32) -> io::Result<Redirect> {
        let map = create_map(queues)?;
        let program = load(&build_program(&map))?;
        // Program, interface, kind and flags.
        let attributes = [
            program.as_raw_fd() as u32,
            interface,
            ATTACH_TYPE,
            SKB_MODE_FLAG,
        ];
        let link = open_descriptor(command::LINK_CREATE, &attributes)?;
        Ok(Redirect {
            map,
            queues,
            _link: link,
        })
    }

    /// Sends the frames of a queue to this socket, which must be of this queue. When the socket is closed the kernel gets them again.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn send_to(&self, queue: u32, socket: &XdpSocket) -> io::Result<()> {
        if queue >= self.queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let value = socket.as_fd().as_raw_fd() as u32;
        // The map; the addresses of key and value; no flags.
        let (key, value) = (&raw const queue as u64, &raw const value as u64);
        let map = self.map.as_raw_fd() as u64;
        // SAFETY: key and value are of the sizes that the map was made with, and live until the call is over.
        check(unsafe { bpf(command::MAP_UPDATE_ELEM, &[map, key, value, 0]) })
    }
}

fn create_map(queues: u32) -> io::Result<OwnedFd> {
    let bytes = size_of::<u32>() as u32;
    open_descriptor(command::MAP_CREATE, &[MAP_TYPE, bytes, bytes, queues])
}

/// An instruction: the operation, the registers `destination` and `source`, an offset, and a number.
fn instruction(operation: u8, destination: u8, source: u8, offset: i16, number: i32) -> u64 {
    let [o1, o2] = offset.to_ne_bytes();
    let [n1, n2, n3, n4] = number.to_ne_bytes();
    u64::from_ne_bytes([operation, source << 4 | destination, o1, o2, n1, n2, n3, n4])
}

/// `return bpf_redirect_map(map, context->rx_queue_index, XDP_PASS)`.
fn build_program(map: &OwnedFd) -> [u64; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_LONG: u8 = 0x18;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// In place of a register: the number is a descriptor of a map.
    const MAP_DESCRIPTOR: u8 = 1;
    [
        instruction(LOAD_WORD, 2, 1, QUEUE_OFFSET, 0),
        // This one is as long as two.
        instruction(LOAD_LONG, 1, MAP_DESCRIPTOR, 0, map.as_raw_fd()),
        0,
        instruction(MOVE, 3, 0, 0, PASS_VERDICT),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP_HELPER),
        instruction(EXIT, 0, 0, 0, 0),
    ]
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
