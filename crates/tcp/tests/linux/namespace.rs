//! The namespace of a test, with a device between the kernel and our side.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use crate::sys::tun::{self, Interface, Tun};

const KERNEL_V4: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
const KERNEL_V6: Ipv6Addr = Ipv6Addr::new(0xfd64, 0, 0, 0, 0, 0, 0, 1);

/// The kernel's address and ours.
pub fn addresses(is_v6: bool) -> [IpAddr; 2] {
    match is_v6 {
        false => [KERNEL_V4.into(), Ipv4Addr::new(10, 64, 0, 2).into()],
        true => [
            KERNEL_V6.into(),
            Ipv6Addr::new(0xfd64, 0, 0, 0, 0, 0, 0, 2).into(),
        ],
    }
}

/// Whether nothing that a test needs may be missing on this machine.
pub fn is_required() -> bool {
    std::env::var_os("CRORE_TOOLS").is_some_and(|value| value == "required")
}

/// A namespace with a device; `None` if the rights are missing. The calling thread, and what it starts later, is in the namespace.
pub fn namespace(is_v6: bool) -> Option<Tun> {
    let make = || -> std::io::Result<Tun> {
        tun::unshare_network()?;
        tun::raise_loopback()?;
        let device = Tun::make("tun0")?;
        let interface = Interface {
            address: (KERNEL_V4, Ipv4Addr::new(255, 255, 0, 0)),
            packet_bytes: 1_500,
            queue_packets: 10_000,
        };
        tun::set_up("tun0", &interface)?;
        if is_v6 {
            let address = format!("{KERNEL_V6}/64");
            let asked = ["-6", "addr", "add", &address, "dev", "tun0", "nodad"];
            if !Command::new("ip").args(asked).status()?.success() {
                return Err(std::io::Error::other("no address of IPv6"));
            }
        }
        Ok(device)
    };
    match make() {
        Ok(device) => Some(device),
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
