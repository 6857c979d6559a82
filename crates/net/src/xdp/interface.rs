//! What must be known of a network interface before its frames can be sent and received.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys::check;

/// The hardware address of an Ethernet interface.
pub type Mac = [u8; 6];

/// `ETHTOOL_GDRVINFO`: the name of the driver.
const DRIVER_REQUEST: u32 = 0x03;
/// `ETHTOOL_GCHANNELS`: the number of queues.
const CHANNELS_REQUEST: u32 = 0x3c;
/// `SIOCETHTOOL`.
const ETHTOOL_REQUEST: libc::Ioctl = 0x8946;
/// `ARPHRD_ETHER`.
const ETHERNET_TYPE: u16 = 1;
/// Drivers of interfaces whose packets may come from this machine, or from another virtual machine on it.
const LOCAL_DRIVERS: [&str; 6] = ["veth", "bridge", "macvlan", "ipvlan", "tun", "virtio_net"];

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its hardware address.
    pub mac: Mac,
    /// Bytes of the largest packet, from the IP header on.
    pub mtu: u16,
    /// The number of queues that receive.
    pub queues: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether its packets may come from this machine, and have only the beginning of a checksum then.
    pub is_local: bool,
}

impl Interface {
    /// Looks for an interface of this name.
    ///
    /// # Errors
    /// If there is none, or if it is not of Ethernet, is down or has no address.
    pub fn find(name: &str) -> io::Result<Interface> {
        let fault = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let c_name = CString::new(name).map_err(|_| fault("its name has a zero"))?;
        if c_name.as_bytes_with_nul().len() > libc::IFNAMSIZ {
            return Err(fault("its name is too long"));
        }
        let mut found = None;
        let mut is_up = false;
        let mut addresses = Vec::new();
        for_each_address(|entry| {
            // SAFETY: the name ends with a zero.
            if unsafe { libc::strcmp(entry.ifa_name, c_name.as_ptr()) } != 0 {
                return;
            }
            is_up = entry.ifa_flags as libc::c_int & libc::IFF_UP != 0;
            // SAFETY: the list has an address of the family that it names, or none.
            let family = unsafe { entry.ifa_addr.as_ref() }.map(|it| i32::from(it.sa_family));
            if family == Some(libc::AF_PACKET) {
                // SAFETY: an address of this family.
                let link = unsafe { entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
                found = Some(link);
            }
            // SAFETY: an address of the list.
            addresses.extend(unsafe { ip(entry.ifa_addr) });
        })?;
        let link = found.ok_or_else(|| fault("there is no such interface"))?;
        if link.sll_hatype != ETHERNET_TYPE || link.sll_halen != 6 {
            return Err(fault("it is not of Ethernet"));
        }
        if !is_up {
            return Err(fault("it is down"));
        }
        if addresses.is_empty() {
            return Err(fault("it has no address"));
        }
        let requests = Requests::new(&c_name)?;
        let [m1, m2, m3, m4, m5, m6, ..] = link.sll_addr;
        Ok(Interface {
            index: link.sll_ifindex as u32,
            mac: [m1, m2, m3, m4, m5, m6],
            mtu: requests.mtu()?,
            queues: requests.queues(),
            addresses,
            is_local: requests.is_local(),
        })
    }
}

/// Calls `handle` with each entry of the kernel's list of addresses.
fn for_each_address(mut handle: impl FnMut(&libc::ifaddrs)) -> io::Result<()> {
    let mut list = ptr::null_mut();
    // SAFETY: the call writes a pointer to `list`.
    check(unsafe { libc::getifaddrs(&raw mut list) })?;
    let mut next = list;
    // SAFETY: the pointer is null, or one to an entry of the list, which is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        handle(entry);
        next = entry.ifa_next;
    }
    // SAFETY: the list is the one that was made above, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(())
}

/// The IP address; `None` if it is one of another family.
///
/// # Safety
/// The pointer is null or points to an address of the family that it names.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: see above.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Requests about one interface.
struct Requests {
    socket: OwnedFd,
    request: libc::ifreq,
}

impl Requests {
    fn new(name: &CString) -> io::Result<Requests> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // SAFETY: all bytes may be zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(name.as_bytes_with_nul()) {
            *place = *byte as libc::c_char;
        }
        Ok(Requests { socket, request })
    }

    fn mtu(&self) -> io::Result<u16> {
        let mut request = self.request;
        // SAFETY: the kernel reads the name and writes a number to the request.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
        // SAFETY: the kernel has written this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    /// The numbers that a request to the driver answers; `None` if the driver does not know the request.
    fn ask_driver<const N: usize>(&self, number: u32) -> Option<[u32; N]> {
        let mut answer = [0; N];
        answer[0] = number;
        let mut request = self.request;
        request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
        // SAFETY: the kernel writes the structure of this request to `answer`, which is no smaller and lives until the call is over.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), ETHTOOL_REQUEST, &raw mut request) };
        check(result).is_ok().then_some(answer)
    }

    /// The number of queues that receive and transmit. A driver that does not tell has one.
    fn queues(&self) -> u32 {
        // `struct ethtool_channels`: after four maxima the numbers of queues that receive, transmit, do something else, and do both.
        let channels = self.ask_driver::<9>(CHANNELS_REQUEST);
        channels.map_or(1, |it| (it[5].min(it[6]) + it[8]).max(1))
    }

    fn is_local(&self) -> bool {
        // `struct ethtool_drvinfo`, whose first text is the driver's name.
        let info = self.ask_driver::<49>(DRIVER_REQUEST);
        info.is_some_and(|info| {
            let bytes = info[1..].iter().flat_map(|word| word.to_ne_bytes());
            let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
            LOCAL_DRIVERS.iter().any(|driver| driver.as_bytes() == name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_that_cannot_be_used_is_refused_with_the_reason() {
        for (name, reason) in [
            ("none-such", "no such interface"),
            ("a-name-that-is-too-long", "too long"),
            ("lo", "not of Ethernet"),
        ] {
            let error = Interface::find(name).expect_err(name).to_string();
            assert!(error.contains(reason), "{name}: {error}");
        }
    }
}
