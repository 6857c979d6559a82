//! A server with its subscribers, all open, and what both cost until then.

use anyhow::Result;
use serde_json::Value;

use super::args::RunArgs;
use super::moment::{Moment, pause, per_connection};
use super::server::Server;
use super::tools::Subscriber;

/// A server and its subscribers.
pub struct Audience {
    /// The server.
    pub server: Server,
    /// The tool that holds the connections.
    pub subscriber: Subscriber,
    /// How many there are.
    pub connections: u32,
    /// A sample from before the first one connected.
    pub empty: Moment,
    /// A sample from when all were open, after a rest.
    pub open: Moment,
    /// Seconds that the opening took.
    pub opening_s: f64,
}

impl Audience {
    /// Connects `connections` to a fresh server, with these flags of the tool. Samples the server before, and again a rest
    /// after all are open.
    pub fn open(
        args: &RunArgs,
        mut server: Server,
        connections: u32,
        topics: &str,
        flags: &[&str],
        rest_s: f64,
    ) -> Result<Audience> {
        let mut subscriber = Subscriber::start(args, &server, connections, topics, flags)?;
        let empty = Moment::of(&mut server)?;
        let opening_s = subscriber.open()?;
        pause(rest_s);
        let open = Moment::of(&mut server)?;
        Ok(Audience {
            server,
            subscriber,
            connections,
            empty,
            open,
            opening_s,
        })
    }

    /// The memory and processor time of each connection until all of them were open.
    pub fn cost_open(&self) -> Value {
        per_connection(self.connections, &self.empty, &self.open)
    }
}
