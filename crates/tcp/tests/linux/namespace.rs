//! The namespace of a test, with devices between the kernel and our side.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use crate::sys::tun::{self, Interface, Tun};

/// A link of the kernel to a side of ours.
#[derive(Clone, Copy)]
pub struct Subnet {
    pub number: u8,
    pub is_v6: bool,
    /// The size of a packet that the kernel sends on it.
    pub packet_bytes: u16,
}

impl Subnet {
    /// The link of most tests.
    pub fn first(is_v6: bool) -> Subnet {
        Subnet {
            number: 0,
            is_v6,
            packet_bytes: 1_500,
        }
    }

    /// The kernel's address.
    pub fn kernel(&self) -> IpAddr {
        self.address(1)
    }

    /// The address of ours.
    pub fn ours(&self) -> IpAddr {
        self.address(2)
    }

    fn address(&self, host: u8) -> IpAddr {
        match self.is_v6 {
            false => self.v4(host).into(),
            true => {
                let net = 0xfd64 + u16::from(self.number);
                Ipv6Addr::new(net, 0, 0, 0, 0, 0, 0, host.into()).into()
            }
        }
    }

    fn v4(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 64 + self.number, 0, host)
    }

    /// Makes the device of this link in the thread's namespace.
    fn device(&self) -> std::io::Result<Tun> {
        let name = format!("tun{}", self.number);
        let device = Tun::make(&name)?;
        let interface = Interface {
            address: (self.v4(1), Ipv4Addr::new(255, 255, 0, 0)),
            packet_bytes: self.packet_bytes,
            queue_packets: 10_000,
        };
        tun::set_up(&name, &interface)?;
        if self.is_v6 {
            let address = format!("{}/64", self.kernel());
            let asked = ["-6", "addr", "add", &address, "dev", &name, "nodad"];
            if !Command::new("ip").args(asked).status()?.success() {
                return Err(std::io::Error::other("no address of IPv6"));
            }
        }
        Ok(device)
    }
}

/// Whether nothing that a test needs may be missing on this machine.
pub fn is_required() -> bool {
    std::env::var_os("CRORE_TOOLS").is_some_and(|value| value == "required")
}

/// A namespace with a device for each of these links; `None` if the rights are missing. The calling thread, and what it starts later, is in the
/// namespace. Between two links the kernel is a router.
pub fn namespace(links: &[Subnet]) -> Option<Vec<Tun>> {
    let make = || -> std::io::Result<Vec<Tun>> {
        tun::unshare_network()?;
        tun::raise_loopback()?;
        if links.len() > 1 {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
            fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
        }
        links.iter().map(Subnet::device).collect()
    };
    match make() {
        Ok(devices) => Some(devices),
        Err(error) if is_required() => {
            panic!("no namespace with a device: {error}, and CRORE_TOOLS=required")
        }
        Err(error) => {
            eprintln!(
                "left out: our TCP against that of Linux, which needs a namespace with a device: {error}"
            );
            None
        }
    }
}

/// Makes the kernel drop one in `one_in` of the packets in each direction. `false` if the program for it is missing.
pub fn lossy(one_in: u32) -> bool {
    let rules = format!(
        "table inet loss {{\n\
         chain in {{ type filter hook input priority 0; iif tun0 numgen random mod {one_in} 0 drop; }}\n\
         chain out {{ type filter hook output priority 0; oif tun0 numgen random mod {one_in} 0 drop; }}\n}}\n"
    );
    let child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        assert!(!is_required(), "nft is missing, and CRORE_TOOLS=required");
        eprintln!("left out: a link that drops packets, which needs nft");
        return false;
    };
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(rules.as_bytes())
        .expect("nft reads");
    let status = child.wait().expect("nft ends");
    assert!(status.success(), "nft has refused the rules");
    true
}
