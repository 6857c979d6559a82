//! Connections that do not pass through the kernel's TCP: `crore-tcp` over sockets of `AF_XDP`.
//!
//! A [`XdpSocket`] serves one queue of an interface. It shares memory with the kernel (`umem`), and four rings in which the two hand each
//! other frames of it (`ring`). A program in the kernel decides which frames of the queue the socket gets ([`program`]). All are copied
//! by the kernel, which works with every driver. A [`TcpEndpoint`] has the connections of a shard, and an [`XdpTransport`] puts them beside those of
//! kernel sockets.
//!
//! # Why this is written here
//!
//! Four crates were judged in November 2026, by what they do, what they bring, and the processor time of a first build:
//!
//! | crate | loads the program | has rings | brings | build |
//! |---|---|---|---|---|
//! | `aya` 0.14 | yes, from an ELF file | no | 27 crates; pure Rust and well kept. The program itself needs nightly and a linker of LLVM, or a binary in the repository | 23 s |
//! | `xdp` 0.8 | no | yes | nothing: pure Rust without dependencies, kept by one author. Receiving, transmitting and filling are `unsafe`, since frames outlive the calls | 0.7 s |
//! | `xsk-rs` 0.11 | by libxdp | yes | libxdp and libbpf: a C compiler, libelf, and `bindgen` with libclang | not built |
//! | `libbpf-sys` 1.7 | yes | no | libbpf: a C compiler, libelf, zlib | not built |
//!
//! `rustix`, which this crate uses anyway, has the socket options, the address and the layout of the rings. What remains are the rings
//! themselves, in which no frame leaves its socket, so that nothing here is `unsafe` to call, and four calls of `bpf` for a program of some
//! dozens of instructions. For zero copy with metadata of the driver, or for frames in several parts, `xdp` is the one to judge again.

mod instructions;
mod interface;
mod next_hops;
pub mod program;
mod ring;
mod socket;
mod tcp_endpoint;
mod umem;
mod xdp_transport;

pub use interface::Interface;
pub use socket::{FrameSettings, MAX_FRAMES, Receiver, Transmitter, XdpSocket};
pub use tcp_endpoint::{EndpointLimits, TcpEndpoint};
pub use xdp_transport::XdpTransport;
