//! The parts of every scenario: its flags, a server of its own, the tools, and samples of the server and the kernel.

pub mod args;
mod audience;
pub mod bare;
mod certificate;
mod directory;
mod kind;
mod moment;
mod nats;
mod peers;
mod ports;
mod server;
mod tools;

pub use args::RunArgs;
pub use audience::Audience;
pub use certificate::Certificate;
pub use directory::Directory;
pub use kind::Kind;
pub use moment::{Moment, bottleneck, pause, per_connection, wait_for_freed_sockets, watch};
pub use nats::Nats;
pub use peers::{program, versions};
pub use ports::hold_ports;
pub use server::{Server, Setting, server_program, within};
pub use tools::{Publisher, Subscriber, count, is_clean, locals, number, topics};
