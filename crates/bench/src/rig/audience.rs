//! Opens the subscribers of a server, and samples the server before and after.

use anyhow::Result;
use serde_json::Value;

use super::args::RunArgs;
use super::sample::{Sample, pause, per_connection};
use super::server::Server;
use super::tools::Subscriber;

/// A server and its subscribers.
pub struct Audience {
    /// The server.
    pub server: Server,
    /// The tool that holds the connections.
    pub subscriber: Subscriber,
    /// The number of connections.
    pub connections: u32,
    /// The sample before the first connection.
    pub empty: Sample,
    /// The sample with all connections open, after a rest.
    pub open: Sample,
    /// Seconds that the opening took.
    pub opening_s: f64,
}

impl Audience {
    /// Opens `connections` connections to a fresh server, with these flags of `crore-bench subscribe`. Samples the server before, and again
    /// `rest_s` seconds after all connections are open.
    pub fn open(
        args: &RunArgs,
        mut server: Server,
        connections: u32,
        topics: &str,
        flags: &[&str],
        rest_s: f64,
    ) -> Result<Audience> {
        let mut subscriber = Subscriber::start(args, &server, connections, topics, flags)?;
        let empty = Sample::of(&mut server)?;
        let opening_s = subscriber.open()?;
        pause(rest_s);
        let open = Sample::of(&mut server)?;
        Ok(Audience {
            server,
            subscriber,
            connections,
            empty,
            open,
            opening_s,
        })
    }

    /// Memory and processor time per connection, between the sample without connections and the sample with all connections.
    pub fn cost_open(&self) -> Value {
        per_connection(self.connections, &self.empty, &self.open)
    }
}
