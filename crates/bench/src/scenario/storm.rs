//! `churn` and `tsunami`: measure how clients that connect and disconnect affect the clients that stay connected.
//!
//! One publisher runs all the time. The windows before, during and after the disturbance differ only in the behaviour of the connections.
//! Messages that were published while their client was disconnected do not count as lost, but are counted separately.

use anyhow::Result;
use serde_json::{Value, json};

use crate::report;
use crate::rig::{
    Publisher, RunArgs, Sample, Server, ServerKind, ServerOptions, Subscriber, count_at, is_clean,
    local_address_pattern, number_at, pause, topic_pattern, watch,
};

/// Default number of connections.
const CONNECTIONS: u32 = 100_000;
/// Default duration of each window, in seconds.
const WINDOW_S: f64 = 20.0;
/// Seconds between two messages to one client at the default rate.
const MESSAGE_INTERVAL_S: f64 = 60.0;

/// A server with its subscriber and publisher.
pub struct Storm {
    server: Server,
    subscriber: Subscriber,
    publisher: Publisher,
    connections: u32,
    window_s: f64,
    parameters: Value,
}

impl Storm {
    /// Starts everything and opens the connections. Without `settings` the server has the settings of most scenarios.
    pub fn start(args: &RunArgs, settings: Option<&str>) -> Result<Storm> {
        let connections = args.connections.unwrap_or(CONNECTIONS);
        let protocol = args.subscribe_protocol();
        let options = ServerOptions::new(
            ServerKind::Crore,
            args.shards_for(connections, 1, 2),
            args.keep(protocol),
        );
        let server = match settings {
            None => Server::start(args, options)?,
            Some(settings) => Server::start_with(args, options, settings, None)?,
        };
        let (topics, addresses) = (
            topic_pattern(connections),
            local_address_pattern(connections),
        );
        let flags = ["--protocol", protocol.name(), "--local", &addresses];
        let mut subscriber = Subscriber::start(args, &server, connections, &topics, &flags)?;
        let opening_s = subscriber.open()?;
        let rate = args
            .rate
            .unwrap_or(f64::from(connections) / MESSAGE_INTERVAL_S);
        let (size, rate_text) = (args.size.unwrap_or(512), rate.to_string());
        let publisher = Publisher::start(args, &server, &topics, size, &["--rate", &rate_text])?;
        pause(1.0);
        let parameters = json!({
            "connections": connections, "protocol": protocol.name(),
            "shards": options.shards, "log_messages": options.log_messages,
            "rate_per_s": rate, "size_bytes": size, "opening_s": opening_s,
        });
        let window_s = args.duration.unwrap_or(WINDOW_S);
        Ok(Storm {
            server,
            subscriber,
            publisher,
            connections,
            window_s,
            parameters,
        })
    }

    /// Measures a window.
    pub fn measure_window(&mut self, name: &str) -> Result<Value> {
        self.subscriber.ask("restart")?;
        let before = Sample::of(&mut self.server)?;
        let samples = watch(&mut self.server, self.window_s)?;
        self.finish_window(name, &before, samples)
    }

    /// Measures a window in which the server reloads changed settings each second.
    pub fn measure_reloads(
        &mut self,
        args: &RunArgs,
        round: usize,
        settings: fn(&RunArgs, usize) -> String,
    ) -> Result<Value> {
        self.subscriber.ask("restart")?;
        let before = Sample::of(&mut self.server)?;
        let mut samples = Vec::new();
        for turn in 1..=self.window_s as usize {
            self.server.reload(&settings(args, turn))?;
            samples.extend(watch(&mut self.server, 1.0)?);
        }
        self.server.reload(&settings(args, 0))?;
        self.finish_window(&format!("readings {round}"), &before, samples)
    }

    fn finish_window(&mut self, name: &str, before: &Sample, samples: Vec<Value>) -> Result<Value> {
        let after = Sample::of(&mut self.server)?;
        let mut report = self.subscriber.ask("report")?;
        let seconds = after.seconds_since(before);
        report["server_cores_busy"] = json!(after.cores_since(before));
        report["window_s"] = json!(seconds);
        report["samples"] = json!(samples);
        report::say(&format!(
            "{name}: {} messages in {seconds:.1} s, latency mean {:.3} ms, p99 {:.3} ms, max {:.3} ms; \
             live {}, lost {}, missed while away {}, failed {}",
            report["messages"],
            number_at(&report, "/latency_ms/mean"),
            number_at(&report, "/latency_ms/p99"),
            number_at(&report, "/latency_ms/max"),
            report["connections"]["live"],
            report["lost"],
            report["missed_away"],
            report["connections"]["failed"],
        ));
        Ok(report)
    }

    /// Ends the load and returns the result, with further `figures`.
    pub fn finish(self, windows: Value, figures: Value) -> Result<Value> {
        let published = self.publisher.stop()?;
        let is_clean_run = windows
            .as_object()
            .is_none_or(|all| all.values().all(is_clean));
        Ok(json!({
            "clean": is_clean_run, "setting": self.parameters, "windows": windows, "published": published,
            "more": figures,
        }))
    }
}

/// Measures a calm window, then a window in which `--churn-rate` connections a second close and reopen.
pub fn churn(args: &RunArgs) -> Result<Value> {
    let mut storm = Storm::start(args, None)?;
    let calm = storm.measure_window("calm")?;
    let opened = count_at(&calm, "/connections/opened");
    storm
        .subscriber
        .ask(&format!("churn {}", args.churn_rate))?;
    let churn_window = storm.measure_window("churn")?;
    storm.subscriber.ask("churn 0")?;
    let reopened_count = count_at(&churn_window, "/connections/opened") - opened;
    let figures = json!({ "churn_per_s": args.churn_rate, "reopened": reopened_count });
    report::say(&format!(
        "{reopened_count} connections closed and opened again"
    ));
    storm.finish(json!({ "calm": calm, "churn": churn_window }), figures)
}

/// Measures a calm window, and one in which every connection is reset and all clients reconnect at once.
pub fn tsunami(args: &RunArgs) -> Result<Value> {
    let mut storm = Storm::start(args, None)?;
    let calm = storm.measure_window("calm")?;
    storm.subscriber.ask("restart")?;
    let before = Sample::of(&mut storm.server)?;
    storm.subscriber.ask("drop")?;
    let open_report = storm.subscriber.wait_until_open()?;
    let wave = storm.finish_window("wave", &before, Vec::new())?;
    let seconds = count_at(&open_report, "/now_ns").saturating_sub(before.at_ns) as f64 / 1e9;
    let per_s = f64::from(storm.connections) / seconds;
    report::say(&format!(
        "all back after {seconds:.2} s, {per_s:.0} connects a second"
    ));
    let after = storm.measure_window("after")?;
    let figures = json!({ "back_s": seconds, "connects_per_s": per_s });
    storm.finish(
        json!({ "calm": calm, "wave": wave, "after": after }),
        figures,
    )
}
