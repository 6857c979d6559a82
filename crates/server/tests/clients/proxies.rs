//! The samples of `docs/proxies` as they stand, but for ports, certificates and the directory of the site: a real nginx and a real
//! Caddy before a real server, and what has to come through them.

use crate::client::{Client, publish};
use crate::support::{PATIENCE, Server, until};
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The name in the samples.
const NAME: &str = "push.example.com";
/// Where `curl` comes from: an address of the loopback that is no trusted proxy's.
const CLIENT: &str = "127.0.0.5";
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn sample(name: &str) -> String {
    std::fs::read_to_string(project("docs/proxies").join(name)).expect("a sample")
}

/// A sample with one thing of this host in place of the one that it names.
fn with(text: String, its: &str, ours: &str) -> String {
    assert!(text.contains(its), "the sample names {its}");
    text.replace(its, ours)
}

/// A proxy before a server, with a directory of its own.
struct Front {
    child: Child,
    directory: PathBuf,
    port: u16,
    root: PathBuf,
}

impl Front {
    /// A directory that the proxy's user may read, with a site in it.
    fn directory() -> PathBuf {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-proxy-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("site")).expect("a directory");
        let page = project("examples/quickstart/index.html");
        std::fs::copy(page, directory.join("site/index.html")).expect("the example");
        directory
    }

    fn nginx(server: &Server) -> Front {
        let (directory, port) = (Front::directory(), free_port());
        let at = |name: &str| directory.join(name).display().to_string();
        let made = rcgen::generate_simple_self_signed([NAME.to_string()]).expect("a certificate");
        std::fs::write(at("own.pem"), made.cert.pem()).expect("a file");
        std::fs::write(at("own.key"), made.signing_key.serialize_pem()).expect("a file");
        let site = with(
            sample("nginx.conf"),
            "listen 443 ",
            &format!("listen 127.0.0.1:{port} "),
        );
        let site = with(site, "127.0.0.1:8800", &server.address().to_string());
        let site = with(site, "/etc/ssl/push.example.com.pem", &at("own.pem"));
        let site = with(site, "/etc/ssl/push.example.com.key", &at("own.key"));
        let site = with(site, "/var/www/html", &at("site"));
        std::fs::write(at("crore.conf"), site).expect("a file");
        // The settings around it in Debian's nginx.conf, in a directory of ours.
        let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {};\n", at(name)))
            .concat();
        let main = format!(
            "daemon off;\nmaster_process off;\npid {};\nerror_log {} info;\nevents {{}}\nhttp {{\naccess_log off;\n{places}\
             types {{ text/html html; }}\ninclude {};\n}}\n",
            at("pid"),
            at("error.log"),
            at("crore.conf")
        );
        std::fs::write(at("nginx.conf"), main).expect("a file");
        let mut command = Command::new("/usr/sbin/nginx");
        command.args([
            "-p",
            &at(""),
            "-e",
            &at("error.log"),
            "-c",
            &at("nginx.conf"),
        ]);
        Front::start(command, directory.clone(), port, directory.join("own.pem"))
    }

    fn caddy(server: &Server) -> Front {
        let (directory, port) = (Front::directory(), free_port());
        let at = |name: &str| directory.join(name).display().to_string();
        let site = with(
            sample("Caddyfile"),
            "127.0.0.1:8800",
            &server.address().to_string(),
        );
        let site = with(site, "/var/www/html", &at("site"));
        std::fs::write(at("site.caddy"), site).expect("a file");
        // Certificates of its own root instead of asking the network for some.
        let main = format!(
            "{{\nadmin off\nlocal_certs\nskip_install_trust\nauto_https disable_redirects\nhttps_port {port}\n\
             default_bind 127.0.0.1\n}}\nimport {}\n",
            at("site.caddy")
        );
        std::fs::write(at("Caddyfile"), main).expect("a file");
        let mut command = Command::new("caddy");
        command
            .args([
                "run",
                "--adapter",
                "caddyfile",
                "--config",
                &at("Caddyfile"),
            ])
            .env("XDG_DATA_HOME", at("data"))
            .env("XDG_CONFIG_HOME", at("config"))
            .env("HOME", at("home"));
        let root = directory.join("data/caddy/pki/authorities/local/root.crt");
        Front::start(command, directory, port, root)
    }

    fn start(mut command: Command, directory: PathBuf, port: u16, root: PathBuf) -> Front {
        let log = std::fs::File::create(directory.join("output")).expect("a file");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut front = Front {
            child,
            directory,
            port,
            root,
        };
        // A certificate of its own is there a moment after its root.
        until(&format!("{command:?}"), || {
            let ended = front.child.try_wait().expect("its state");
            assert!(ended.is_none(), "{command:?}: {ended:?}\n{}", front.log());
            let is_open = TcpStream::connect(("127.0.0.1", port)).is_ok() && front.root.exists();
            is_open
                && front
                    .try_curl(&["-o", "/dev/null", &url("/")])
                    .status
                    .success()
        });
        front
    }

    fn log(&self) -> String {
        let read = |name| std::fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        read("output") + &read("error.log")
    }

    /// Arguments that make `curl` come to the proxy by its name, from the client's address.
    fn curl_args(&self) -> Vec<String> {
        let to = format!("{NAME}:443:127.0.0.1:{}", self.port);
        let root = self.root.display().to_string();
        [
            "-sS",
            "--max-time",
            "60",
            "--interface",
            CLIENT,
            "--connect-to",
            &to,
            "--cacert",
            &root,
        ]
        .map(str::to_string)
        .into()
    }

    fn try_curl(&self, args: &[&str]) -> Output {
        let output = Command::new("curl")
            .args(self.curl_args())
            .args(args)
            .output();
        output.expect("curl starts")
    }

    /// The output of `curl`, which must succeed.
    fn curl(&self, args: &[&str]) -> String {
        let output = self.try_curl(args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{args:?}: {complaint}\n{}",
            self.log()
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// `curl` as a client that stays.
    fn stay(&self, args: &[&str]) -> Client {
        let fixed = self.curl_args();
        let fixed: Vec<&str> = fixed.iter().map(String::as_str).collect();
        Client::start("curl".into(), &[&fixed[..], &["-N"], args].concat())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn url(path: &str) -> String {
    format!("https://{NAME}{path}")
}

/// The address of the only connection with this transport, as `crore admin connections` says it.
fn address(server: &Server, transport: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_crore"))
        .args([
            "admin",
            "--url",
            &format!("http://{}", server.admin()),
            "--json",
        ])
        .args(["connections", "--transport", transport])
        .output()
        .expect("crore starts");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let list = told["connections"].as_array().expect("a list");
    assert_eq!(list.len(), 1, "{told}");
    list[0]["address"].as_str().expect("an address").to_string()
}

/// The next line of `curl`, which may be JSON.
fn line(client: &Client) -> String {
    match client.within(PATIENCE) {
        Some(Value::String(text)) => text,
        Some(value) => value.to_string(),
        None => panic!("no line came"),
    }
}

/// Lets clients of every transport talk through the proxy.
fn clients_get_through(front: &Front, server: &Server) {
    // POST, and a batch that is larger than what proxies take by default.
    front.curl(&[
        "--fail",
        "-H",
        "Content-Type: text/plain",
        "-d",
        "one",
        &url("/pub/news"),
    ]);
    let data = "x".repeat(1_000);
    let batch: String = (0..3_000)
        .map(|n| json!({ "topic": "batch", "data": format!("{n}{data}") }).to_string() + "\n")
        .collect();
    let file = front.directory.join("batch");
    std::fs::write(&file, batch).expect("a file");
    let body = format!("@{}", file.display());
    let kind = "Content-Type: application/x-ndjson";
    let answer = front.curl(&["--fail", "-H", kind, "--data-binary", &body, &url("/pub")]);
    assert!(answer.contains("3000"), "{answer}");

    // An event stream: each message at once, while it goes on.
    let mut stream = front.stay(&[
        "-H",
        "Accept: text/event-stream",
        &url("/sub/news?since=oldest"),
    ]);
    while line(&stream) != "data: one" {}
    server.await_subscribers("news", 1);
    assert_eq!(address(server, "sse"), CLIENT);
    publish(server, "news", "two");
    while line(&stream) != "data: two" {}
    // A client that goes is gone behind the proxy too.
    stream.kill();
    server.await_subscribers("news", 0);

    // A long-poll that waits for its message, and one that waits in vain.
    let poll = front.stay(&[&url("/sub/poll/a")]);
    server.await_subscribers("poll/a", 1);
    assert_eq!(address(server, "longpoll"), CLIENT);
    publish(server, "poll/a", "three");
    assert_eq!(line(&poll), "three");
    let status = ["-o", "/dev/null", "-w", "%{http_code}", &url("/sub/short")];
    assert_eq!(front.curl(&status), "204");

    let (to, root) = (
        format!("https://{NAME}:{}/sub/ws", front.port),
        front.root.display().to_string(),
    );
    let socket = Client::node("ws_client.mjs", &[&to, "live", &root, CLIENT]);
    socket.next("open");
    server.await_subscribers("ws", 1);
    assert_eq!(address(server, "websocket"), CLIENT);
    publish(server, "ws", "four");
    assert_eq!(socket.messages(1).0, ["four"]);
}

/// The quick start's page on the proxy's site, which is of the same origin as what lies behind it.
fn a_page_of_the_site_works(front: &Front, server: &Server) {
    let map = format!("MAP {NAME}:443 127.0.0.1:{}", front.port);
    let mut browser = Client::node("console.mjs", &[&map, "--ignore-certificate-errors"]);
    browser.next("ready");
    let mut act = |what: Value| {
        browser.tell(&what);
        browser.at_once("done")["value"].clone()
    };
    act(json!({ "do": "open", "url": url(&format!("/?topic=page&server={}", url(""))) }));
    for (by, name, place) in [("sse", "EventSource", 1), ("ws", "WebSocket", 2)] {
        act(json!({ "do": "select", "at": "#by", "value": by }));
        act(json!({ "do": "expect", "at": "#state", "like": format!("^connected by {name}$") }));
        server.await_subscribers("page", 1);
        act(json!({ "do": "fill", "at": "#words", "text": name }));
        act(json!({ "do": "click", "at": "#say button" }));
        let item = format!("#heard li:nth-child({place})");
        act(json!({ "do": "expect", "at": item, "like": format!("^{name}$") }));
    }
    assert_eq!(act(json!({ "do": "complaints" })), json!([]));
}

/// A page with an `EventSource` and nothing that would open another one.
const STREAM: &str = r#"<!doctype html><title>stream</title><p id="errors">0</p><p id="state"></p><ul id="heard"></ul><script>
const at = (id) => document.getElementById(id);
const source = new EventSource("/sub/news");
source.onmessage = (event) => (at("heard").innerHTML += `<li>${event.data}</li>`);
source.onerror = () => {
  at("errors").textContent = Number(at("errors").textContent) + 1;
  at("state").textContent = source.readyState === EventSource.CLOSED ? "closed" : "";
};
</script>"#;

/// The page's `EventSource` asks the proxy while there is no server, and goes on when there is one again.
fn a_stream_outlives_the_server(front: &Front, server: Server) {
    std::fs::write(front.directory.join("site/stream.html"), STREAM).expect("a page");
    let map = format!("MAP {NAME}:443 127.0.0.1:{}", front.port);
    let mut browser = Client::node("console.mjs", &[&map, "--ignore-certificate-errors"]);
    browser.next("ready");
    let mut act = |what: Value| {
        browser.tell(&what);
        browser.at_once("done")["value"].clone()
    };
    act(json!({ "do": "open", "url": url("/stream.html") }));
    server.await_subscribers("news", 1);
    publish(&server, "news", "before");
    act(json!({ "do": "expect", "at": "#heard", "like": "^before$" }));
    // The proxy passes Crore's refusals on.
    let events = "Accept: text/event-stream";
    let status = |kind: &str, path: &str| {
        let args = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{content_type}",
            "-H",
            kind,
        ];
        front.curl(&[&args[..], &[&url(path)]].concat())
    };
    assert_eq!(status(events, "/sub/a?since=never")[..3], *"400");
    let address = server.address();
    server.kill();
    assert_eq!(status(events, "/sub/news"), "200 text/event-stream");
    let body = front.curl(&[
        "-H",
        "Accept: text/html, text/event-stream",
        &url("/sub/news"),
    ]);
    assert_eq!(body, "retry: 3000\n\n");
    for path in ["/sub/news", "/pub/news"] {
        assert_eq!(status("Accept: */*", path)[..3], *"502", "{path}");
    }
    // The connection that broke, and a request in vain at least.
    act(json!({ "do": "expect", "at": "#errors", "like": "^([2-9]|[0-9]{2,})$" }));
    act(json!({ "do": "expect", "at": "#state", "like": "^$" }));
    let listen = format!("listen = \"{address}\"\n{}", sample("crore.toml"));
    let server = Server::listening(&listen, "127.0.0.1:0");
    server.await_subscribers("news", 1);
    publish(&server, "news", "after");
    act(json!({ "do": "expect", "at": "#heard", "like": "^beforeafter$" }));
}

/// Without the table `[access]` the server refuses the proxy's name.
fn a_name_is_refused_by_default(front: impl Fn(&Server) -> Front) {
    let server = Server::start();
    let status = ["-o", "/dev/null", "-w", "%{http_code}", &url("/pub/news")];
    assert_eq!(front(&server).curl(&status), "403");
}

fn goes_through(front: impl Fn(&Server) -> Front) {
    let short = "[[rule]]\nmatch = \"short\"\npoll_timeout_s = 1\n";
    let server = Server::with_admin(&(sample("crore.toml") + short));
    let proxy = front(&server);
    clients_get_through(&proxy, &server);
    a_page_of_the_site_works(&proxy, &server);
    a_stream_outlives_the_server(&proxy, server);
    drop(proxy);
    a_name_is_refused_by_default(front);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_sample_for_nginx() {
    goes_through(Front::nginx);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_sample_for_caddy() {
    goes_through(Front::caddy);
}
