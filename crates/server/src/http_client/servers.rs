//! The servers that a command may use, such as the nodes of a cluster: one at a time, the next one where it does not serve.

use super::server::Server;

/// Servers in the order in which they are tried.
#[derive(Clone, Debug)]
pub struct Servers {
    all: Vec<Server>,
    /// The one in use.
    at: usize,
}

impl Servers {
    /// The first one is in use.
    ///
    /// # Panics
    /// There is none.
    pub fn new(all: Vec<Server>) -> Servers {
        assert!(!all.is_empty(), "a command has a server");
        Servers { all, at: 0 }
    }

    /// The one in use.
    pub fn current(&self) -> &Server {
        &self.all[self.at]
    }

    /// Uses the next one, and after the last one the first.
    pub fn move_on(&mut self) {
        self.at = (self.at + 1) % self.all.len();
    }

    /// Tries one after the other, from the one in use, until one serves; that is in use then.
    ///
    /// # Errors
    /// That of the last one that was tried. The log has those of the others.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}
