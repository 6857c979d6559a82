//! What carries the packets of a swarm.

/// What carries the packets, and what the server's TCP is.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// A TUN device for each thread, to the kernel's TCP
    #[default]
    Tun,
    /// A pair of virtual interfaces, to the kernel's TCP
    Veth,
    /// A pair of virtual interfaces, to Crore's own TCP over AF_XDP (docs/XDP.md), with a queue and a shard for each thread
    Xdp,
}

impl Transport {
    /// The name in flags and results.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tun => "tun",
            Transport::Veth => "veth",
            Transport::Xdp => "xdp",
        }
    }
}
