//! A server with connections over `AF_XDP`, and clients in another network namespace: `curl` with and without TLS, a WebSocket, a proxy, Node, and
//! the MQTT clients of Mosquitto and Paho.
//!
//! The server has only the capabilities that `docs/XDP.md` names. A test runs itself again in a namespace of its own, and once more in that of the clients. Without the right to make them it says what it
//! leaves out; with `CRORE_TOOLS=required` it fails.

#![allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]

mod support;

#[path = "support/drop_in.rs"]
mod drop_in;

#[path = "clients/client.rs"]
#[allow(dead_code, reason = "the tests of clients need more of it")]
mod client;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use client::{Client, curl, tools};
use support::port::{self, metric};
use support::{PATIENCE, Server, until};

/// Which part of the test this process is.
const PART: &str = "CRORE_XDP_PART";
/// The directory of the files that all parts of a test use.
const DIRECTORY: &str = "CRORE_XDP_DIRECTORY";
const SETTINGS: &str = "[xdp]\nlisten = \"server:8800\"\n\
                        [access]\n[access.anonymous]\npublish = [\"#\"]\nsubscribe = [\"#\"]\n";
const ADDRESS: &str = "10.77.0.1:8800";

/// What a test does in each of the two namespaces.
struct Parts {
    /// The name of the test.
    name: &'static str,
    /// The settings besides [`SETTINGS`], which may name files in the directory.
    settings: fn(&Path) -> String,
    /// What the clients do. They end with their input.
    clients: fn(),
    /// What is checked while the clients wait for the end of their input.
    check: fn(&Server),
    /// How the server ends.
    end: fn(Server),
}

/// The command that runs a test again, by way of `program`.
fn again(program: &str, arguments: &[&str], part: &str, name: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(arguments).arg(this).env(PART, part);
    command.args(["--exact", name, "--include-ignored", "--nocapture"]);
    command
}

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// A process whose namespace is that of the clients.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespace {
    fn new() -> Namespace {
        // It ends with its input, also if this process is killed.
        let mut child = Command::new("unshare");
        let child = child.args(["--net", "cat"]).stdin(Stdio::piped()).spawn();
        let namespace = Namespace(child.expect("unshare"));
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        let id = namespace.0.id().to_string();
        until("the process has a namespace", || of(&id) != of("self"));
        namespace
    }
}

fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).expect("a directory").into()
}

/// Runs a test, or the part of it that this process is.
fn run(parts: &Parts) {
    match std::env::var(PART).as_deref() {
        Ok("server") => serve(parts),
        Ok("clients") => {
            assert!(ip("addr add 10.77.0.2/16 dev clients"));
            assert!(ip("link set clients up"));
            (parts.clients)();
            let mut input = String::new();
            let _ = std::io::stdin().read_to_string(&mut input);
        }
        _ => {
            let mut setup = Command::new("unshare");
            let try_it = "ip link add left type veth peer name right";
            let tried = setup.args(["--net", "sh", "-c", try_it]).status();
            if !tried.is_ok_and(|status| status.success()) {
                let is_required = std::env::var("CRORE_TOOLS").as_deref() == Ok("required");
                assert!(!is_required, "the test needs root, `ip` and `unshare`");
                eprintln!("not run: a pair of interfaces needs root, `ip` and `unshare`");
                return;
            }
            let id = std::process::id();
            let directory = std::env::temp_dir().join(format!("crore-xdp-{id}-{}", parts.name));
            std::fs::create_dir_all(&directory).expect("a directory");
            let mut command = again("unshare", &["--net"], "server", parts.name);
            let status = command.env(DIRECTORY, &directory).status();
            let _ = std::fs::remove_dir_all(directory);
            assert!(status.expect("unshare").success());
        }
    }
}

/// A program that runs the server with the capabilities that the page names, and no others.
fn with_capabilities(directory: &Path) -> PathBuf {
    let names = drop_in::capabilities();
    let names = names
        .iter()
        .map(|name| name.strip_prefix("CAP_").expect("one"));
    let list: Vec<String> = names
        .map(|name| format!("+{}", name.to_lowercase()))
        .collect();
    let list = format!("-all,{}", list.join(","));
    let server = support::program();
    let script = format!(
        "#!/bin/sh\nexec setpriv --no-new-privs --inh-caps={list} --bounding-set={list} {} \"$@\"\n",
        server.display()
    );
    let path = directory.join("server.sh");
    std::fs::write(&path, script).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    path
}

/// In the namespace of the server.
fn serve(parts: &Parts) {
    let namespace = Namespace::new();
    let id = namespace.0.id();
    assert!(ip("link set lo up"));
    assert!(ip("link add server type veth peer name clients"));
    assert!(ip("addr add 10.77.0.1/16 dev server"));
    assert!(ip("link set server up"));
    assert!(ip(&format!("link set clients netns {id}")));
    let settings = format!("{}{SETTINGS}", (parts.settings)(&directory()));
    let server = Server::from_build(&with_capabilities(&directory()), &settings);
    let target = ["--net", "--target", &id.to_string()];
    let mut clients = again("nsenter", &target, "clients", parts.name);
    let mut clients = clients.stdin(Stdio::piped()).spawn().expect("nsenter");
    (parts.check)(&server);
    drop(clients.stdin.take());
    assert!(clients.wait().expect("nsenter").success());
    (parts.end)(server);
    // The kernel has the interface to itself again.
    let shown = || {
        let output = Command::new("ip").args(["link", "show", "server"]).output();
        String::from_utf8(output.expect("ip").stdout).expect("text")
    };
    until("the program is gone", || !shown().contains("xdp"));
}

#[test]
fn clients_are_served_over_af_xdp() {
    run(&Parts {
        name: "clients_are_served_over_af_xdp",
        settings: |_| String::new(),
        clients: publish_and_subscribe,
        check: |server| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
            let status = status.expect("the server runs");
            let mut lines = status.lines();
            let bounds = lines.find_map(|line| line.strip_prefix("CapBnd:"));
            let bounds = u64::from_str_radix(bounds.expect("a line").trim(), 16).expect("bits");
            assert_eq!(bounds.count_ones() as usize, drop_in::capabilities().len());
            for (name, least) in [
                ("crore_xdp_cookies_total{kind=\"sent\"}", 3.0),
                ("crore_xdp_packets_total{direction=\"received\"}", 10.0),
            ] {
                // The shard publishes its counters now and then.
                until(name, || {
                    metric(server.admin(), name).is_some_and(|value| value >= least)
                });
            }
        },
        end: |server| drop(server.stop()),
    });
}

#[test]
fn program_leaves_the_interface_when_the_server_is_killed() {
    run(&Parts {
        name: "program_leaves_the_interface_when_the_server_is_killed",
        settings: |_| String::new(),
        clients: publish_and_subscribe,
        check: |_| {},
        end: Server::kill,
    });
}

#[test]
fn tls_is_served_over_af_xdp() {
    run(&Parts {
        name: "tls_is_served_over_af_xdp",
        settings: |directory| {
            let made = rcgen::generate_simple_self_signed(["localhost".to_string()]);
            let made = made.expect("a certificate");
            let file = |name: &str, text: String| {
                let path = directory.join(name);
                std::fs::write(&path, text).expect("a file");
                path.display().to_string()
            };
            let certificate = file(CERTIFICATE, made.cert.pem());
            let key = file("key.pem", made.signing_key.serialize_pem());
            format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")
        },
        clients: publish_over_tls,
        check: |_| {},
        end: |server| drop(server.stop()),
    });
}

#[test]
fn proxy_over_af_xdp_tells_the_address_of_its_client() {
    run(&Parts {
        name: "proxy_over_af_xdp_tells_the_address_of_its_client",
        settings: |_| {
            "[http]\nproxy_protocol = true\ntrusted_proxies = ['10.77.0.2/32']\n".to_string()
        },
        clients: || {
            let mut socket = connect();
            // A client at 192.0.2.7.
            let header =
                b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\x4d\0\x01\x9c\x40\x22\x60";
            socket.write_all(header).expect("room");
            subscribe(&mut socket);
            // It stays connected until the address was seen.
            let mut input = String::new();
            let _ = std::io::stdin().read_to_string(&mut input);
        },
        check: |server| {
            until("the client's address", || {
                let page = port::get(server.admin(), "connections");
                let list = page["connections"].as_array().expect("a list");
                list.iter().any(|one| one["address"] == "192.0.2.7")
            });
        },
        end: |server| drop(server.stop()),
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn clients_of_others_are_served_over_af_xdp() {
    run(&Parts {
        name: "clients_of_others_are_served_over_af_xdp",
        settings: |_| String::new(),
        clients: clients_of_others,
        check: |_| {},
        end: |server| drop(server.stop()),
    });
}

/// The output of a program in the namespace of the clients, which must succeed.
fn output(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Each client reads what another one has published, in the namespace of the clients.
fn clients_of_others() {
    let here = ["-h", "10.77.0.1", "-p", "8800", "-q", "1"];
    let mosquitto =
        |program: &str, arguments: &[&str]| output(program, &[&here, arguments].concat());
    // Longer than a segment.
    let message = "m".repeat(20_000);
    mosquitto(
        "mosquitto_pub",
        &["-r", "-t", "from/mosquitto", "-m", &message],
    );
    let paho = "import sys, paho.mqtt.publish as publish, paho.mqtt.subscribe as subscribe\n\
                here = dict(hostname='10.77.0.1', port=8800)\n\
                kept = subscribe.simple('from/mosquitto', qos=1, **here).payload.decode()\n\
                publish.single('from/paho', kept, qos=1, retain=True, **here)\n";
    output(tools().join("venv/bin/python"), &["-c", paho]);
    let one = ["-C", "1", "-W", "30", "-t", "from/paho"];
    assert_eq!(mosquitto("mosquitto_sub", &one).trim(), message);

    let url = format!("http://{ADDRESS}");
    curl(&[
        "--fail",
        "--data-binary",
        "a message",
        &format!("{url}/pub/news"),
    ]);
    let node = Client::node("ws_client.mjs", &[&format!("{url}/sub/news"), "oldest"]);
    assert_eq!(node.messages(1).0, ["a message"]);
}

/// The file with the certificate of the server.
const CERTIFICATE: &str = "certificate.pem";

/// Publishes over TLS and reads the messages back, in the namespace of the clients.
fn publish_over_tls() {
    let certificate = directory().join(CERTIFICATE).display().to_string();
    let curl = |arguments: &[&str], target: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "30"]);
        curl.args(["--cacert", &certificate]);
        curl.args(["--connect-to", &format!("localhost:8800:{ADDRESS}")]);
        curl.args(arguments)
            .arg(format!("https://localhost:8800/{target}"));
        let output = curl.output().expect("curl");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    // Longer than a segment, and than what one `send` takes.
    let file = directory().join("message");
    let message = "x".repeat(200_000);
    std::fs::write(&file, &message).expect("a file");
    let data = format!("@{}", file.display());
    for version in ["1.2", "1.3"] {
        let topic = format!("tls{version}");
        let versions = ["--tls-max", version, "--data-binary", &data];
        curl(&versions, &format!("pub/{topic}"));
        let kept = curl(&["--tls-max", version], &format!("history/{topic}"));
        assert!(kept.contains(&message), "{} bytes", kept.len());
    }
}

fn connect() -> TcpStream {
    let address = ADDRESS.parse().expect("an address");
    let socket = TcpStream::connect_timeout(&address, PATIENCE).expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Begins a WebSocket that subscribes to a topic.
fn subscribe(socket: &mut TcpStream) {
    let upgrade = format!(
        "GET /sub/news HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(upgrade.as_bytes()).expect("room");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).expect("the answer");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{head:?}");
}

/// In the namespace of the clients.
fn publish_and_subscribe() {
    let mut socket = connect();
    subscribe(&mut socket);
    for bytes in [5, 60_000] {
        let message = "x".repeat(bytes);
        let url = format!("http://{ADDRESS}/pub/news");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "30"]);
        curl.args(["--data-binary", "@-", &url])
            .stdin(Stdio::piped());
        let mut curl = curl.stdout(Stdio::null()).spawn().expect("curl");
        let mut input = curl.stdin.take().expect("it is piped");
        input.write_all(message.as_bytes()).expect("room");
        drop(input);
        assert!(curl.wait().expect("curl").success());
        let mut frame = vec![0; bytes + if bytes < 126 { 2 } else { 4 }];
        socket.read_exact(&mut frame).expect("a message");
        let header = frame.len() - bytes;
        assert_eq!(frame[0], 0x81, "one frame of text");
        assert!(frame[header..] == *message.as_bytes());
    }
}
