//! The connections of MQTT clients, and the clients' actions.

use crore_rng::Rng;
use crore_wire::mqtt::{Connect, Properties, Publish, Qos, Version, encode};

use super::Simulation;
use super::clients::{send, take};
use crate::plan::MqttAction;
use crate::truth::Violation;

impl Simulation {
    /// Executes one action of an MQTT client.
    pub fn mqtt(&mut self, n: usize, action: MqttAction, rng: &mut Rng) -> Result<(), Violation> {
        let (client, truth) = (&mut self.clients.mqtt[n], &mut self.truth);
        match action {
            MqttAction::Connect if client.link.is_none() => self.mqtt_connect(n, rng),
            MqttAction::Connect => {}
            MqttAction::TakeOver => self.mqtt_connect(n, rng),
            MqttAction::Read => return self.mqtt_read(n, rng.pick(&[1, 20, 300, usize::MAX]), rng),
            MqttAction::Acknowledge => client.acknowledge(rng.pick(&[1, 3, 100]), truth),
            MqttAction::ChangeSubscriptions => client.change_subscriptions(truth, rng),
            MqttAction::Publish(count) => client.publish(count, &self.plan, truth, rng),
            MqttAction::Ping => client.ping(),
            MqttAction::Leave if client.is_connected() => {
                client.disconnect(truth, rng);
                self.mqtt_send(n);
                self.mqtt_hang_up(n);
            }
            MqttAction::Leave => {}
            MqttAction::Cut => {
                if let Some(link) = client.link
                    && self.cut(link, rng)
                {
                    self.clients.mqtt[n].connection_ended();
                    self.clients.mqtt[n].abandoned_links.push(link);
                }
            }
            MqttAction::ResizeWindow => {
                if let Some(link) = client.link {
                    self.net.sockets[link as usize].window = rng.pick(&self.plan.windows);
                }
            }
        }
        self.mqtt_send(n);
        Ok(())
    }

    /// Connects a client. The client abandons the connection that it already has.
    pub fn mqtt_connect(&mut self, n: usize, rng: &mut Rng) {
        // An old connection counts as closed only while nothing is in flight, since one of its requests may still be on the way between
        // shards.
        let shards = 0..self.shards.len();
        let is_idle = shards
            .into_iter()
            .all(|n| !self.loops[n].is_busy && !self.net.mail.has_mail_for(n));
        let sockets = &self.net.sockets;
        let is_closed = |link: &u32| is_idle && sockets[*link as usize].server_closed;
        self.clients.mqtt[n]
            .abandoned_links
            .retain(|link| !is_closed(link));
        let link = self.connect(rng);
        self.clients.mqtt[n].connect(link, &self.plan, &mut self.truth, rng);
        self.mqtt_send(n);
    }

    fn mqtt_send(&mut self, n: usize) {
        let client = &mut self.clients.mqtt[n];
        if let Some(link) = client.link {
            send(&mut self.net, link, &mut client.out);
        }
    }

    fn mqtt_hang_up(&mut self, n: usize) {
        if let Some(link) = self.clients.mqtt[n].link {
            self.clients.mqtt[n].connection_ended();
            self.clients.mqtt[n].abandoned_links.push(link);
            self.hang_up(link);
        }
    }

    /// Lets a client read at most `bytes_max` bytes. In some cases the client acknowledges at once.
    pub fn mqtt_read(
        &mut self,
        n: usize,
        bytes_max: usize,
        rng: &mut Rng,
    ) -> Result<(), Violation> {
        let Some(link) = self.clients.mqtt[n].link else {
            return Ok(());
        };
        let (bytes, end) = take(&mut self.net, link, bytes_max);
        let client = &mut self.clients.mqtt[n];
        client.read(&bytes, &mut self.truth, &mut self.coverage)?;
        let must_close = client.must_close;
        self.check_logged()?;
        if must_close || end {
            self.mqtt_hang_up(n);
            return Ok(());
        }
        if rng.chance(40) {
            self.clients.mqtt[n].acknowledge(usize::MAX, &mut self.truth);
        }
        self.mqtt_send(n);
        Ok(())
    }

    /// Checks that the wills of connections that ended with a crash were published. The world must be idle.
    pub fn check_wills(&mut self) -> Result<(), Violation> {
        self.truth.step += 1;
        for client in &mut self.clients.mqtt {
            for number in std::mem::take(&mut client.wills_due) {
                if self.truth.allowed.budgets_are_wide {
                    self.truth.acknowledge(number);
                    self.coverage.wills_after_crash += 1;
                }
            }
        }
        self.check_logged()
    }

    /// A new client removes all retained messages. Returns its link.
    pub fn clear_retained(&mut self, rng: &mut Rng) -> u32 {
        let mut out = Vec::new();
        let connect = Connect {
            version: Version::V311,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            properties: Properties::NONE,
            client_id: "sweeper",
            will: None,
            user_name: None,
            password: None,
        };
        encode::connect(&mut out, &connect);
        for topic in &self.truth.topics {
            let publish = Publish {
                dup: false,
                qos: Qos::AtMostOnce,
                retain: true,
                topic: &topic.name,
                packet_id: None,
                properties: Properties::NONE,
                payload: b"",
            };
            encode::publish(&mut out, Version::V311, &publish);
        }
        let link = self.connect(rng);
        send(&mut self.net, link, &mut out);
        link
    }

    /// Deletes all topics with `keep = "latest"` by a new client, since these topics never expire. Returns the link of that client.
    pub fn delete_latest_topics(&mut self, rng: &mut Rng) -> u32 {
        let mut out = Vec::new();
        for topic in self.truth.topics.iter().filter(|it| it.keeps_latest()) {
            let name = &topic.name;
            let request = format!("DELETE /pub?topic={name} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            out.extend_from_slice(request.as_bytes());
        }
        let link = self.connect(rng);
        send(&mut self.net, link, &mut out);
        link
    }

    /// Lets a client read, acknowledge, reconnect, and subscribe to all its topics. Returns whether there was anything to do. `attempts`
    /// counts the attempts to connect or subscribe. There are at most `attempts_max` of them.
    pub fn mqtt_progress(
        &mut self,
        n: usize,
        attempts: &mut usize,
        attempts_max: usize,
        rng: &mut Rng,
    ) -> Result<bool, Violation> {
        // Pending acknowledgements are asked for before and after the read, since the read may send those that were due before.
        let mut progressed =
            self.has_unread(self.clients.mqtt[n].link) || self.clients.mqtt[n].pending_acks() > 0;
        self.mqtt_read(n, usize::MAX, rng)?;
        progressed |= self.clients.mqtt[n].pending_acks() > 0;
        self.clients.mqtt[n].acknowledge(usize::MAX, &mut self.truth);
        if *attempts < attempts_max && self.clients.mqtt[n].link.is_none() {
            self.mqtt_connect(n, rng);
            *attempts += 1;
            progressed = true;
        } else if *attempts < attempts_max
            && self.clients.mqtt[n].subscribe_missing(&mut self.truth, rng)
        {
            *attempts += 1;
            progressed = true;
        }
        self.mqtt_send(n);
        Ok(progressed)
    }
}
