//! The servers that a command may use, such as the nodes of a cluster. The command uses one at a time, and fails over to the next.

use super::server::Server;

/// Servers in the order in which they are tried.
#[derive(Clone, Debug)]
pub struct Servers {
    all: Vec<Server>,
    /// The index of the server in use.
    current: usize,
}

impl Servers {
    /// Servers of which the first is in use.
    ///
    /// # Panics
    /// `all` is empty.
    pub fn new(all: Vec<Server>) -> Servers {
        assert!(!all.is_empty(), "a command has a server");
        Servers { all, current: 0 }
    }

    /// The server in use.
    pub fn current(&self) -> &Server {
        &self.all[self.current]
    }

    /// Fails over to the next server; after the last one to the first.
    pub fn move_on(&mut self) {
        self.current = (self.current + 1) % self.all.len();
    }

    /// Tries the servers in turn, from the one in use, until an attempt succeeds. That server stays in use.
    ///
    /// # Errors
    /// The error of the last attempt. The errors of the other attempts are logged.
    pub fn try_each<T>(
        &mut self,
        mut attempt: impl FnMut(&Server) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        for _ in 1..self.all.len() {
            match attempt(self.current()) {
                Ok(done) => return Ok(done),
                Err(error) => tracing::warn!("{error:#}; trying the next server"),
            }
            self.move_on();
        }
        attempt(self.current())
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }
}
