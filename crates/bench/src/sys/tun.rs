//! Creates network namespaces and TUN devices. Through a TUN device a program receives IP packets from the kernel and sends packets to it.
//!
//! Every packet begins with a header of [`PREFIX_BYTES`] (`IFF_VNET_HDR`). The header says that TCP checksums are not computed, because the
//! bytes never leave this machine's memory.

#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use crore_net::check;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket_with};
use rustix::process::{getgid, getuid};

/// The size of `struct virtio_net_hdr`, which comes before each packet.
pub const PREFIX_BYTES: usize = 10;
/// The header of a packet without TCP checksum: `VIRTIO_NET_HDR_F_NEEDS_CSUM`, the offset of the TCP header, and the offset of the
/// checksum in it. All fields are in host byte order.
pub const PREFIX: [u8; PREFIX_BYTES] = {
    let (start, offset) = (20u16.to_ne_bytes(), 16u16.to_ne_bytes());
    [1, 0, 0, 0, 0, 0, start[0], start[1], offset[0], offset[1]]
};

/// The file through which TUN devices are created.
const DEVICE: &str = "/dev/net/tun";

/// Moves the calling thread, and the threads and processes that it starts, into a new network namespace. Without root it also creates
/// a user namespace in which the caller is root, which only a single-threaded process may do.
pub fn unshare_network() -> io::Result<()> {
    match unshare(libc::CLONE_NEWNET) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let (user, group) = (getuid().as_raw(), getgid().as_raw());
            unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {group} 1"))
        }
        result => result,
    }
}

pub(super) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a plain system call without pointers.
    check(unsafe { libc::unshare(flags) })
}

/// A TUN device. It is deleted when its descriptor is closed.
pub struct Tun(OwnedFd);

impl Tun {
    /// Creates a device with this name in the thread's network namespace.
    pub fn make(name: &str) -> io::Result<Tun> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
        let device = Tun(file.into());
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let mut request = request(name);
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        control(&device.0, libc::TUNSETIFF, &mut request)?;
        // SAFETY: the argument of this request is a plain number.
        let result =
            unsafe { libc::ioctl(device.0.as_raw_fd(), libc::TUNSETOFFLOAD, libc::TUN_F_CSUM) };
        check(result).map(|()| device)
    }

    /// Reads one packet with its header; `None` if none waits.
    #[inline]
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Err(Errno::AGAIN) => Ok(None),
            count => Ok(Some(count?)),
        }
    }

    /// Sends one packet with its header to the kernel.
    #[inline]
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }

    /// Waits for a packet, at most `longest`.
    pub fn wait(&self, longest: Duration) {
        let longest = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&longest));
    }
}

/// The settings of an interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// The address and netmask of the interface. The kernel sends packets for all other addresses of that subnet to the interface.
    pub address: (Ipv4Addr, Ipv4Addr),
    /// The MTU in bytes.
    pub packet_bytes: u16,
    /// Length of the queue of packets to the program.
    pub queue_packets: u32,
}

/// Configures an interface in the thread's namespace and brings it up.
pub fn set_up(name: &str, interface: &Interface) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, super::SOCKET, None)?;
    let mut asked = request(name);
    asked.ifr_ifru.ifru_mtu = interface.packet_bytes.into();
    control(&socket, libc::SIOCSIFMTU, &mut asked)?;
    asked.ifr_ifru.ifru_metric = interface.queue_packets as libc::c_int;
    control(&socket, libc::SIOCSIFTXQLEN, &mut asked)?;
    asked.ifr_ifru.ifru_addr = address(interface.address.0);
    control(&socket, libc::SIOCSIFADDR, &mut asked)?;
    asked.ifr_ifru.ifru_netmask = address(interface.address.1);
    control(&socket, libc::SIOCSIFNETMASK, &mut asked)?;
    raise(&socket, name)
}

/// Brings up the loopback interface of the thread's namespace.
pub fn raise_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, super::SOCKET, None)?;
    raise(&socket, "lo")
}

fn raise(socket: impl AsFd, name: &str) -> io::Result<()> {
    let mut asked = request(name);
    asked.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(socket, libc::SIOCSIFFLAGS, &mut asked)
}

/// An empty request for the interface with this name.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: all zeroes is a valid `ifreq`: numbers, addresses and a pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte of the name stays 0.
    let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

/// An IPv4 address as the kernel's requests hold it.
fn address(address: Ipv4Addr) -> libc::sockaddr {
    let mut out = libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: [0; 14],
    };
    // The two bytes of the port come before the address.
    for (place, byte) in out.sa_data[2..].iter_mut().zip(address.octets()) {
        *place = byte as libc::c_char;
    }
    out
}

fn control(fd: impl AsFd, request: libc::Ioctl, argument: &mut libc::ifreq) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: each of these requests reads an `ifreq`, which `argument` is.
    check(unsafe { libc::ioctl(fd, request, &raw mut *argument) })
}
