//! The connections of clients of Centrifugo's protocol, and the clients' actions.

use crore_rng::Rng;

use super::Simulation;
use super::clients::{send, take};
use crate::plan::CentrifugoAction;
use crate::truth::Violation;

impl Simulation {
    /// Executes one action of a client.
    pub fn centrifugo(
        &mut self,
        n: usize,
        action: CentrifugoAction,
        rng: &mut Rng,
    ) -> Result<(), Violation> {
        let client = &mut self.clients.centrifugo[n];
        match action {
            CentrifugoAction::Connect if client.link.is_none() => self.centrifugo_connect(n, rng),
            CentrifugoAction::Connect => {}
            CentrifugoAction::Read => {
                return self.centrifugo_read(n, rng.pick(&[1, 20, 300, usize::MAX]));
            }
            CentrifugoAction::ChangeSubscription => client.change_subscription(&self.truth, rng),
            CentrifugoAction::SubscribeMissing => {
                client.subscribe_missing(&self.truth);
            }
            CentrifugoAction::Cut => {
                if let Some(link) = client.link
                    && self.cut(link, rng)
                {
                    self.clients.centrifugo[n].connection_ended();
                }
            }
            CentrifugoAction::ResizeWindow => {
                if let Some(link) = client.link {
                    self.net.sockets[link as usize].window = rng.pick(&self.plan.windows);
                }
            }
        }
        self.centrifugo_send(n);
        Ok(())
    }

    fn centrifugo_connect(&mut self, n: usize, rng: &mut Rng) {
        let link = self.connect(rng);
        self.clients.centrifugo[n].connect(link);
    }

    fn centrifugo_send(&mut self, n: usize) {
        let client = &mut self.clients.centrifugo[n];
        if let Some(link) = client.link {
            send(&mut self.net, link, &mut client.out);
        }
    }

    /// Lets a client read at most `bytes_max` bytes.
    pub fn centrifugo_read(&mut self, n: usize, bytes_max: usize) -> Result<(), Violation> {
        let Some(link) = self.clients.centrifugo[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let client = &mut self.clients.centrifugo[n];
        client.read(&bytes, &mut self.truth, &mut self.coverage)?;
        let must_close = client.must_close;
        self.check_logged()?;
        if must_close || end {
            self.clients.centrifugo[n].connection_ended();
            self.hang_up(link);
            return Ok(());
        }
        self.centrifugo_send(n);
        Ok(())
    }

    /// Lets a client read, connect, and subscribe to all its topics. Returns whether there was anything to do. `attempts` counts the attempts to connect or
    /// subscribe. There are at most `attempts_max` of them.
    pub fn centrifugo_progress(
        &mut self,
        n: usize,
        attempts: &mut usize,
        attempts_max: usize,
        rng: &mut Rng,
    ) -> Result<bool, Violation> {
        let mut progressed = self.has_unread(self.clients.centrifugo[n].link);
        self.centrifugo_read(n, usize::MAX)?;
        if *attempts < attempts_max {
            let client = &mut self.clients.centrifugo[n];
            let tries = match client.link {
                None => {
                    self.centrifugo_connect(n, rng);
                    true
                }
                Some(_) => client.subscribe_missing(&self.truth),
            };
            *attempts += usize::from(tries);
            progressed |= tries;
        }
        self.centrifugo_send(n);
        Ok(progressed)
    }
}
