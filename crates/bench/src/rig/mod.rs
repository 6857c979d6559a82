//! The parts that scenarios share: command line flags, servers, load tools, and samples of the server and the kernel.

pub mod args;
mod audience;
pub mod bare;
mod certificate;
mod deliveries;
mod directory;
mod kind;
mod nats;
mod peers;
mod ports;
mod sample;
mod server;
mod tools;
mod transport;

pub use args::RunArgs;
pub use audience::Audience;
pub use certificate::Certificate;
pub use deliveries::{
    DeliveryClients, Load, MESSAGE_BYTES, Receiver, Variant, Window, measure_deliveries, topic_name,
};
pub use directory::Directory;
pub use kind::ServerKind;
pub use nats::Nats;
pub use peers::{program, versions};
pub use ports::reserve_ports;
pub use sample::{Sample, bottleneck, pause, per_connection, wait_for_freed_sockets, watch};
pub use server::{Server, ServerOptions, in_control_group, server_program};
pub use tools::{
    Publisher, Subscriber, count_at, is_clean, local_address_pattern, number_at, topic_pattern,
};
pub use transport::Transport;
