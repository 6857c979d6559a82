//! Tests `mosquitto_pub` and `mosquitto_sub`, used as on the command line.

use super::crash;
use crate::servers::Servers;
use crate::support::broker::Broker;
use crate::support::state::State;
use crate::support::{PATIENCE, hold_port};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

const VERSIONS: [&str; 2] = ["311", "5"];

/// `mosquitto_sub`, which prints a line for each message.
struct Subscription {
    child: Child,
    lines: Receiver<String>,
}

impl Subscription {
    /// Starts the program and waits until it is subscribed, which `-d` makes it print.
    fn start(broker: &Broker, version: &str, args: &[&str]) -> Subscription {
        let subscription = Subscription::quick(broker, version, args);
        subscription.next_line(|line| line.starts_with("Subscribed"));
        subscription
    }

    /// Starts the program and does not wait.
    fn quick(broker: &Broker, version: &str, args: &[&str]) -> Subscription {
        // The output is line-buffered, so that the line about the subscription arrives at once.
        let mut child = command("stdbuf", &["-oL", "mosquitto_sub", "-d"], broker, version)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("mosquitto_sub starts");
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line); // the test may be over
            }
        });
        Subscription { child, lines }
    }

    fn next_line(&self, expected: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a line");
            if expected(&line) {
                return line;
            }
        }
    }

    /// The next line with a message. The output format marks such a line with `>`.
    fn message(&self) -> String {
        self.next_line(|line| line.starts_with('>'))[1..].to_string()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.kill();
    }
}

fn command(program: &str, first: &[&str], broker: &Broker, version: &str) -> Command {
    let mut command = Command::new(program);
    command.args(first);
    let port = broker.tcp_port().to_string();
    command.args(["-h", "127.0.0.1", "-p", &port, "-V", version]);
    command.stdin(Stdio::null());
    command
}

fn publish(broker: &Broker, version: &str, args: &[&str]) {
    let status = command("mosquitto_pub", &[], broker, version)
        .args(args)
        .status()
        .expect("mosquitto_pub starts");
    assert!(status.success(), "mosquitto_pub {args:?}: {status}");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn every_quality_from_one_to_the_other() {
    let broker = Broker::start();
    for version in VERSIONS {
        let format = ["-t", "t", "-q", "2", "-F", ">%q %t %p"];
        let subscription = Subscription::start(&broker, version, &format);
        for qos in ["0", "1", "2"] {
            publish(&broker, version, &["-t", "t", "-q", qos, "-m", "hello"]);
            assert_eq!(subscription.message(), format!("{qos} t hello"));
        }
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_retained_message_is_set_read_and_removed() {
    let broker = Broker::start();
    for version in VERSIONS {
        publish(&broker, version, &["-t", "t", "-r", "-m", "kept"]);
        let format = ["-t", "t", "-F", ">%r %p"];
        let read = Subscription::start(&broker, version, &format);
        assert_eq!(read.message(), "1 kept");
        publish(&broker, version, &["-t", "t", "-r", "-n"]);
        assert_eq!(read.message(), "0 ");
        let late_subscription = Subscription::start(&broker, version, &format);
        publish(&broker, version, &["-t", "t", "-m", "passing"]);
        assert_eq!(late_subscription.message(), "0 passing");
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_will_comes_when_the_program_is_killed() {
    let broker = Broker::start();
    for version in VERSIONS {
        let watcher = Subscription::start(&broker, version, &["-t", "w", "-F", ">%p"]);
        let will = ["-t", "t", "--will-topic", "w", "--will-payload", "gone"];
        Subscription::start(&broker, version, &will).kill();
        assert_eq!(watcher.message(), "gone");
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_after_the_program_was_killed() {
    let broker = Broker::start();
    for version in VERSIONS {
        let mut args = vec!["-t", "t", "-q", "1", "-c", "-i", version, "-F", ">%p"];
        if version == "5" {
            args.extend(["-x", "600"]);
        }
        let mut subscription = Subscription::start(&broker, version, &args);
        subscription.kill();
        let expected: Vec<String> = (0..30).map(|n| format!("away {n}")).collect();
        for data in &expected {
            publish(&broker, version, &["-t", "t", "-q", "1", "-m", data]);
        }
        // The messages may come before the SUBACK, so do not wait for it.
        let resumed = Subscription::quick(&broker, version, &args);
        for data in &expected {
            assert_eq!(resumed.message(), *data);
        }
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_after_the_server_was_killed() {
    for version in VERSIONS {
        let (state, port) = (State::new(), hold_port());
        let resumed = || crash::start(&state, port.addr());
        let Some(mut broker) = resumed() else { return };
        let session = |name| {
            let mut args = vec!["-t", "t", "-q", "1", "-c", "-i", name, "-F", ">%p"];
            if version == "5" {
                args.extend(["-x", "600"]);
            }
            args
        };
        Subscription::start(&broker, version, &session("away")).kill();
        let connected = Subscription::start(&broker, version, &session("stays"));
        let publish_all = |broker: &Broker, numbers: Range<u32>| {
            for number in numbers {
                let data = number.to_string();
                publish(broker, version, &["-t", "t", "-q", "1", "-m", &data]);
            }
        };
        publish_all(&broker, 0..10);
        broker.replace_after_crash(|| resumed().expect("a server of ours"));
        publish_all(&broker, 10..20);
        let away = Subscription::quick(&broker, version, &session("away"));
        for number in 0..20 {
            assert_eq!(away.message(), number.to_string());
        }
        // It reconnects by itself. Messages that it acknowledged a moment before the crash may come again.
        let mut next = 0;
        while next < 20 {
            let number: u32 = connected.message().parse().expect("a number");
            assert!(number <= next, "{number} came instead of {next}");
            next = next.max(number + 1);
        }
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_session_goes_on_at_another_node_while_its_node_lives_and_when_it_is_dead() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let ports = [hold_port(), hold_port()];
    let [first_node, second_node] = ports
        .each_ref()
        .map(|port| crash::start_node(&servers, port.addr()));
    let (Some(first_node), Some(second_node)) = (first_node, second_node) else {
        return;
    };
    // Each client has a topic of its own.
    let session = |version| {
        let mut args = vec!["-t", version, "-q", "2", "-c", "-i", version, "-F", ">%p"];
        if version == "5" {
            args.extend(["-x", "600"]);
        }
        args
    };
    let publish_all = |broker: &Broker, version, numbers: Range<u32>| {
        for number in numbers {
            let data = number.to_string();
            publish(broker, version, &["-t", version, "-q", "2", "-m", &data]);
        }
    };
    let expect = |subscription: &Subscription, numbers: Range<u32>| {
        for number in numbers {
            assert_eq!(subscription.message(), number.to_string());
        }
    };
    for version in VERSIONS {
        Subscription::start(&first_node, version, &session(version)).kill();
        publish_all(&first_node, version, 0..5);
        publish_all(&second_node, version, 5..10);
        let mut moved = Subscription::quick(&second_node, version, &session(version));
        expect(&moved, 0..10);
        moved.kill();
        let mut resumed = Subscription::quick(&first_node, version, &session(version));
        publish_all(&second_node, version, 10..12);
        expect(&resumed, 10..12);
        resumed.kill();
        publish_all(&second_node, version, 12..14);
    }
    drop(first_node);
    for version in VERSIONS {
        let last = Subscription::quick(&second_node, version, &session(version));
        publish_all(&second_node, version, 14..16);
        expect(&last, 12..16);
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn members_of_a_group_share_messages() {
    let broker = Broker::start();
    for version in VERSIONS {
        let members: Vec<Subscription> = (0..2)
            .map(|_| {
                let args = ["-t", "$share/g/t", "-q", "1", "-F", ">%p"];
                Subscription::start(&broker, version, &args)
            })
            .collect();
        for number in 0..20 {
            let data = number.to_string();
            publish(&broker, version, &["-t", "t", "-q", "1", "-m", &data]);
        }
        let mut numbers: Vec<u32> = Vec::new();
        while numbers.len() < 20 {
            for member in &members {
                while let Ok(line) = member.lines.recv_timeout(Duration::from_millis(100)) {
                    numbers.extend(
                        line.strip_prefix('>')
                            .map(|data| data.parse::<u32>().expect("a number")),
                    );
                }
            }
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..20).collect::<Vec<u32>>());
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_message_expires_while_nobody_reads() {
    let broker = Broker::start();
    let session = [
        "-t", "t", "-q", "1", "-c", "-i", "it", "-x", "600", "-F", ">%p",
    ];
    Subscription::start(&broker, "5", &session).kill();
    let expiry = |seconds, data| {
        let property = ["-D", "publish", "message-expiry-interval", seconds];
        let args = [&["-t", "t", "-q", "1", "-m", data], property.as_slice()].concat();
        publish(&broker, "5", &args);
    };
    expiry("100", "long");
    expiry("1", "short");
    broker.await_kept("t", 1);
    let resumed = Subscription::quick(&broker, "5", &session);
    assert_eq!(resumed.message(), "long");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn properties_come_through() {
    let broker = Broker::start();
    let args = ["-t", "t", "-F", ">%C|%R|%D|%P|%p"];
    let subscription = Subscription::start(&broker, "5", &args);
    let mut command = vec!["-t", "t", "-m", "x"];
    for property in [
        &["content-type", "text/x"][..],
        &["response-topic", "answers"],
        &["correlation-data", "7"],
        &["user-property", "name", "value"],
    ] {
        command.extend(["-D", "publish"]);
        command.extend(property);
    }
    publish(&broker, "5", &command);
    assert_eq!(subscription.message(), "text/x|answers|7|name:value|x");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn many_lines_are_published_over_one_connection() {
    let broker = Broker::start();
    let subscription = Subscription::start(&broker, "5", &["-t", "t", "-q", "1", "-F", ">%p"]);
    let mut publisher = Command::new("sh");
    let port = broker.tcp_port();
    let pipe = format!("seq 1 500 | mosquitto_pub -p {port} -V 5 -t t -q 1 -l");
    let status = publisher.args(["-c", &pipe]).status().expect("sh starts");
    assert!(status.success());
    for number in 1..=500 {
        assert_eq!(subscription.message(), number.to_string());
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_servers_own_topics_are_shown_as_mosquittos_are() {
    let broker = Broker::start();
    for version in VERSIONS {
        let format = ["-t", "$SYS/broker/#", "-F", ">%r %t %p"];
        let subscription = Subscription::start(&broker, version, &format);
        let mut expected = SYS.to_vec();
        while !expected.is_empty() {
            let line = subscription.message();
            let (_, text) = line.split_once(" $SYS/broker/").expect("its topic");
            expected.retain(|name| !text.starts_with(&format!("{name} ")));
        }
    }
}

/// The topics that mosquitto(8) names, except those about its heap, its bridges and its loads.
const SYS: [&str; 18] = [
    "bytes/received",
    "bytes/sent",
    "clients/connected",
    "clients/disconnected",
    "clients/expired",
    "clients/maximum",
    "clients/total",
    "messages/received",
    "messages/sent",
    "publish/messages/dropped",
    "publish/messages/received",
    "publish/messages/sent",
    "retained messages/count",
    "store/messages/bytes",
    "store/messages/count",
    "subscriptions/count",
    "uptime",
    "version",
];
