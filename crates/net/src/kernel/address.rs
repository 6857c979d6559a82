//! Socket addresses between Rust and C.
//!
//! IPv4 clients of a dual-stack listener arrive as `::ffff:a.b.c.d`; they are given back as the IPv4
//! addresses that they are, so that limits per address see one client as one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for the kernel to write an address of any family into.
pub(crate) struct Storage {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) length: libc::socklen_t,
}

impl Storage {
    pub(crate) fn empty() -> Storage {
        // SAFETY: `sockaddr_storage` is plain integers, for which zeroes are a valid value.
        let storage = unsafe { std::mem::zeroed() };
        Storage {
            storage,
            length: size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        }
    }

    pub(crate) fn of(address: SocketAddr) -> Storage {
        let mut out = Storage::empty();
        match address {
            SocketAddr::V4(v4) => out.put(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => out.put(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
        out
    }

    fn put<T: Copy>(&mut self, address: T) {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: `sockaddr_storage` is made to hold every address type: it is as large (asserted
        // above) and as aligned as any of them.
        unsafe { (&raw mut self.storage).cast::<T>().write(address) };
        self.length = size_of::<T>() as libc::socklen_t;
    }

    /// The address as Rust has it; `None` when the kernel wrote no IP address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says which type the kernel wrote; the storage is large and
                // aligned enough for it, and all its bits are valid.
                let v4 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe {
                    (&raw const self.storage)
                        .cast::<libc::sockaddr_in6>()
                        .read()
                };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(match ip.to_canonical() {
                    IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
                    IpAddr::V6(_) => {
                        SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()
                    }
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(address: &str) -> String {
        Storage::of(address.parse().unwrap())
            .address()
            .unwrap()
            .to_string()
    }

    #[test]
    fn addresses_survive_the_way_through_c() {
        for address in [
            "127.0.0.1:8800",
            "0.0.0.0:0",
            "[::]:65535",
            "[2001:db8::7]:1",
            "[fe80::1%3]:2",
        ] {
            assert_eq!(through(address), address);
        }
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        assert_eq!(through("[::ffff:10.1.2.3]:80"), "10.1.2.3:80");
    }

    #[test]
    fn no_address_is_none() {
        assert_eq!(Storage::empty().address(), None);
    }
}
