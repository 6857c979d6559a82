//! Tests each recipe of `docs/RECIPES.md` as it is, except for ports: its settings in a real server, its page in Chromium, its commands in
//! bash, its scripts in Python and Postgres.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::client::{Client, curl, publish};
use crate::proxy::{Proxy, pass};
use crate::support::ws::Ws;
use crate::support::{self, Server, hold_port, until};

/// The server's address in the recipes.
pub const NAMED: &str = "127.0.0.1:8800";
/// The answer of a proxy whose server is not there.
const BAD_GATEWAY: &[u8] =
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A recipe, with its own directory.
pub struct Recipe {
    text: String,
    directory: PathBuf,
}

impl Recipe {
    fn named(title: &str) -> Recipe {
        Recipe::of("RECIPES.md", title)
    }

    /// The section with this title from a page in `docs`.
    pub fn of(page: &str, title: &str) -> Recipe {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let page = std::fs::read_to_string(docs.join(page)).expect("a page");
        let (_, behind) = page.split_once(&format!("\n## {title}\n")).expect(title);
        let text = behind.split("\n## ").next().expect("a part").to_string();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-recipe-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        // `crore` in the commands is the tested program.
        std::os::unix::fs::symlink(support::program(), directory.join("crore")).expect("a link");
        Recipe { text, directory }
    }

    /// The only code block in this language.
    pub fn block(&self, language: &str) -> String {
        let fence = format!("\n```{language}\n");
        let mut blocks = self.text.split(&fence).skip(1);
        let block = blocks.next().unwrap_or_else(|| panic!("no {language}"));
        assert!(blocks.next().is_none(), "several blocks of {language}");
        let (block, _) = block.split_once("\n```").expect("its end");
        block.to_string()
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// A server with the recipe's settings, which accepts pages opened as files.
    fn server(&self) -> Server {
        let settings = match self.text.contains("```toml") {
            true => self.block("toml"),
            false => String::new(),
        };
        let settings = settings
            .replace("secret.txt", &self.path("secret.txt"))
            .replace("\"state\"", &format!("\"{}\"", self.path("state")));
        Server::with(&format!(
            "[http]\nallowed_origins = [\"null\"]\n\n{settings}"
        ))
    }

    /// Opens the recipe's page, with this server address in the page and this text after the # of its URL.
    fn open(&self, server: SocketAddr, hash: &str) -> Visitor {
        let page = self.block("html");
        assert!(page.contains(NAMED), "the page names {NAMED}");
        let path = self.write("page.html", &page.replace(NAMED, &server.to_string()));
        Visitor::open(&format!("file://{path}#{hash}"))
    }

    /// Runs a script in the recipe's directory. Returns the output.
    pub fn run(&self, command: &mut Command) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(&self.directory)
            .env("PATH", format!("{}:{path}", self.directory.display()));
        let output = command.output().expect("it starts");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {complaint}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs the recipe's commands one after the other, until one fails.
    fn commands(&self, server: &Server) -> String {
        let block = self.block("console");
        let lines = block.lines().filter_map(|line| line.strip_prefix("$ "));
        let script = lines.collect::<Vec<_>>().join("\n");
        let address = server.address();
        let script = script
            .replace(NAMED, &address.to_string())
            .replace("-p 8800", &format!("-p {}", address.port()));
        self.run(Command::new("bash").args(["-euc", &script]))
    }
}

impl Drop for Recipe {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A browser with a page of a recipe.
struct Visitor(Client);

impl Visitor {
    fn open(url: &str) -> Visitor {
        let browser = Client::node("console.mjs", &[]);
        browser.next("ready");
        let mut visitor = Visitor(browser);
        visitor.act(&json!({ "do": "open", "url": url, "size": [390, 844] }));
        visitor
    }

    fn act(&mut self, command: &Value) -> Value {
        self.0.tell(command);
        self.0.at_once("done")["value"].clone()
    }

    fn expect(&mut self, selector: &str, pattern: &str) {
        self.act(&json!({ "do": "expect", "at": selector, "like": pattern }));
    }

    fn texts(&mut self, selector: &str) -> Value {
        self.act(&json!({ "do": "texts", "at": selector }))
    }

    fn expect_no_complaints(&mut self) {
        assert_eq!(self.act(&json!({ "do": "complaints" })), json!([]));
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn live_scores_show_the_present_and_each_change() {
    let recipe = Recipe::named("Live scores");
    let server = recipe.server();
    recipe.commands(&server);
    let mut page = recipe.open(server.address(), "");
    page.expect("tr:nth-child(2)", "^(Ajax – Porto 1:0|Lyon – Celtic 2:1)$");
    let mut rows = page.texts("td");
    let rows_now = rows.as_array_mut().expect("a list");
    rows_now.sort_by_key(Value::to_string);
    assert_eq!(rows, json!(["Ajax – Porto 1:0", "Lyon – Celtic 2:1"]));
    let score = r#"{"home":"Lyon","away":"Celtic","score":"2:2"}"#;
    publish(&server, "scores/2", score);
    page.expect("#scores", "Lyon – Celtic 2:2");
    page.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn stock_app_subscribes_to_the_tickers_in_view() {
    let recipe = Recipe::named("A stock app with fifty tickers");
    let tools = std::env::var("CRORE_CLIENT_TESTS").expect("what `cargo xtask test` prepares");
    let library = Path::new(&tools).join("node_modules/centrifuge/dist/centrifuge.js");
    std::fs::copy(library, recipe.path("centrifuge.js")).expect("the library");
    let server = recipe.server();
    let network = Proxy::to(server.address());
    recipe.commands(&server);
    let mut page = recipe.open(network.address(), "");
    page.expect("li:nth-child(7)", "^Share 7 17.25$");
    publish(&server, "shares/7", r#"{"name":"Share 7","price":18.5}"#);
    page.expect("li:nth-child(7)", "^Share 7 18.50$");
    let texts = page.texts("li");
    let rows = texts.as_array().expect("rows").iter();
    let filled = rows.filter(|row| **row != json!("")).count();
    assert!((50..60).contains(&filled), "{filled} tickers are in view");
    page.act(&json!({ "do": "press", "keys": "End" }));
    page.expect("li:nth-child(500)", "^Share 500 500.00$");
    server.await_subscribers("shares/7", 0);
    server.await_subscribers("shares/500", 1);
    // What changes out of view, or while the network is cut, is there when it is seen again.
    publish(&server, "shares/7", r#"{"name":"Share 7","price":19}"#);
    network.cut();
    publish(&server, "shares/500", r#"{"name":"Share 500","price":501}"#);
    network.mend();
    page.expect("li:nth-child(500)", "^Share 500 501.00$");
    page.act(&json!({ "do": "press", "keys": "Home" }));
    page.expect("li:nth-child(7)", "^Share 7 19.00$");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_chat_has_its_history_and_what_came_during_a_cut() {
    let recipe = Recipe::named("Chat with history");
    let server = recipe.server();
    let network = Proxy::to(server.address());
    recipe.commands(&server);
    let mut page = recipe.open(network.address(), "");
    page.expect("li", "^bob: hello$");
    page.act(&json!({ "do": "fill", "at": "#text", "text": "hi bob" }));
    page.act(&json!({ "do": "click", "at": "button" }));
    page.expect("li:nth-child(2)", "^ann: hi bob$");
    network.cut();
    server.await_subscribers("chat/lobby", 0);
    recipe.commands(&server);
    network.mend();
    page.expect("li:nth-child(3)", "^bob: hello$");
    let all = json!(["bob: hello", "ann: hi bob", "bob: hello"]);
    assert_eq!(page.texts("li"), all);
}

/// The token in a file that a recipe's commands wrote.
fn token(recipe: &Recipe, name: &str) -> String {
    let token = std::fs::read_to_string(recipe.path(name)).expect("a token");
    token.trim().to_string()
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_chat_shows_the_user_of_the_token_as_the_author() {
    let recipe = Recipe::named("Chat with verified names");
    recipe.write("secret.txt", &"0123456789abcdef".repeat(4));
    let server = recipe.server();
    recipe.commands(&server);
    let mut page = recipe.open(server.address(), &token(&recipe, "ann.token"));
    page.expect("li", "^bob: I am ann$");
    page.act(&json!({ "do": "fill", "at": "#text", "text": "hi bob" }));
    page.act(&json!({ "do": "click", "at": "button" }));
    page.expect("li:nth-child(2)", "^ann: hi bob$");
    page.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn presence_recipe_lists_the_users_with_an_open_page() {
    let recipe = Recipe::named("Who is here");
    recipe.write("secret.txt", &"0123456789abcdef".repeat(4));
    let server = recipe.server();
    recipe.commands(&server);
    let user = |name: &str| format!("{name}:{}", token(&recipe, &format!("{name}.token")));
    let mut of_ann = recipe.open(server.address(), &user("ann"));
    of_ann.expect("#here", "^ann$");
    let mut of_bob = recipe.open(server.address(), &user("bob"));
    of_bob.expect("li:nth-child(2)", "^(ann|bob)$");
    of_ann.expect("li:nth-child(2)", "^bob$");
    // A page whose name differs from the name in its token does not appear in the list.
    let forged = user("bob").replace("bob:", "eve:");
    let mut of_eve = recipe.open(server.address(), &forged);
    of_eve.expect("li:nth-child(2)", "^(ann|bob)$");
    drop((of_bob, of_eve));
    of_ann.expect("#here", "^ann$");
    assert_eq!(of_ann.texts("li"), json!(["ann"]));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn chat_recipe_lists_the_users_who_are_online() {
    let recipe = Recipe::named("Chat with who is online");
    recipe.write("secret.txt", &"0123456789abcdef".repeat(4));
    let server = recipe.server();
    recipe.commands(&server);
    let mut of_ann = recipe.open(server.address(), &token(&recipe, "ann.token"));
    of_ann.expect("#online", "^ann$");
    let mut of_bob = recipe.open(server.address(), &token(&recipe, "bob.token"));
    of_bob.expect("li:nth-child(2)", "^bob$");
    of_ann.expect("li:nth-child(2)", "^bob$");
    of_bob.act(&json!({ "do": "reload" }));
    of_bob.expect("li:nth-child(2)", "^bob$");
    assert_eq!(of_ann.texts("li"), json!(["ann", "bob"]));
    drop(of_bob);
    of_ann.expect("#online", "^ann$");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn answer_from_python_is_complete_after_a_cut_and_a_reload() {
    answer_is_whole("python", "python3 answer.py");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn answer_from_node_is_complete_after_a_cut_and_a_reload() {
    answer_is_whole("js", "node answer.mjs");
}

/// Runs the publisher (the block of this language) by this command, and checks that the page shows the whole answer.
fn answer_is_whole(language: &str, command: &str) {
    let recipe = Recipe::named("An AI answer, token by token");
    let server = recipe.server();
    let network = Proxy::to(server.address());
    let script = recipe.block(language);
    // The publisher meets two faults: a 502, and a lost answer to a message that was published.
    let selector = faulty_way_to(server.address());
    let named = script.replace("port=8800", &format!("port={}", selector.port()));
    let named = named.replace(NAMED, &selector.to_string());
    assert_ne!(named, script, "the script names its server");
    let name = command.split(' ').next_back().expect("a file");
    recipe.write(name, &named);
    let mut page = recipe.open(network.address(), "a1");
    server.await_subscribers("answers/a1", 1);
    page.expect("#state", "^connected$");
    // The first word arrives. Then the connection is lost while two hundred words are published.
    publish(&server, "answers/a1", "\"The \"");
    page.expect("#answer", "^The $");
    page.expect("#state", "^writing$");
    network.cut();
    page.expect("#state", "^connection lost, reconnecting$");
    server.await_subscribers("answers/a1", 0);
    let words = (0..200).map(|n| format!("w{n}")).collect::<Vec<_>>();
    let words = words.join(" ");
    recipe.run(Command::new("sh").args(["-euc", &format!("printf %s '{words}' | {command} a1")]));
    network.mend();
    page.expect("#state", "^done$");
    let whole = format!("^The {words} $");
    page.expect("#answer", &whole);
    page.act(&json!({ "do": "reload" }));
    page.expect("#state", "^done$");
    page.expect("#answer", &whole);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn telemetry_of_devices_is_seen_in_a_browser() {
    let recipe = Recipe::named("Telemetry of devices in a browser");
    let server = recipe.server();
    recipe.commands(&server);
    let mut page = recipe.open(server.address(), "");
    page.expect("#devices", "1721.5 °C");
    page.expect("#devices", "2319.0 °C");
    publish(&server, "devices/17/temperature", "22.0");
    page.expect("#devices", "1722.0 °C");
    page.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn notifications_come_to_their_user_alone() {
    let recipe = Recipe::named("Notifications by user, with tokens");
    recipe.write("secret.txt", &"0123456789abcdef".repeat(4));
    let server = recipe.server();
    recipe.commands(&server);
    let token = std::fs::read_to_string(recipe.path("ann.token")).expect("a token");
    let mut page = recipe.open(server.address(), &format!("ann:{}", token.trim()));
    page.expect("li", "^Your parcel is here$");
    let mut other = recipe.open(server.address(), &format!("bob:{}", token.trim()));
    other.expect("title", "^not allowed$");
    assert_eq!(other.texts("li"), json!([]));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_cron_job_that_tries_again_publishes_once() {
    let recipe = Recipe::named("A cron job that publishes");
    let server = recipe.server();
    recipe.commands(&server);
    recipe.commands(&server);
    let info = server.info("ops/backup").expect("the topic");
    assert_eq!(info["messages"], 1);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn rows_of_the_outbox_are_published_once() {
    let recipe = Recipe::named("Publishing from Postgres");
    let server = recipe.server();
    let script = recipe.block("bash");
    assert!(script.contains(NAMED), "the script names {NAMED}");
    let script = script.replace(NAMED, &server.address().to_string());
    recipe.write("publish-outbox.sh", &script);
    recipe.write("outbox.sql", &recipe.block("sql"));
    let block = recipe.block("console");
    let mut lines = block.lines().filter_map(|line| line.strip_prefix("$ "));
    let (insert, publish) = (lines.next().expect("one"), lines.next().expect("another"));
    // A crash between publishing and deleting: the rows are still there, and are published again.
    let all = format!(
        "psql -qf outbox.sql\n{insert}\n{publish}\npsql -qAtc 'SELECT count(*) FROM outbox'\n\
         psql -qc \"INSERT INTO outbox VALUES (1, 'orders/7', 'paid')\"\n{publish}\n{publish}"
    );
    recipe.write("all.sh", &all);
    let mut command = Command::new("pg_virtualenv");
    let printed = recipe.run(command.args(["-t", "bash", "-eu", "all.sh"]));
    assert!(printed.lines().any(|line| line == "0"), "{printed}");
    for topic in ["orders/7", "orders/8"] {
        assert_eq!(server.info(topic).expect("the topic")["messages"], 1);
    }
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn webhook_with_a_right_signature_is_published_once() {
    let recipe = Recipe::named("A webhook that publishes");
    let server = recipe.server();
    let held = hold_port();
    let selector = held.addr().to_string();
    let script = recipe.block("python");
    let data_port = format!("\"127.0.0.1\", {}", server.address().port());
    let own_port = format!("\"127.0.0.1\", {}", held.addr().port());
    let script = script
        .replace("\"127.0.0.1\", 8800", &data_port)
        .replace("\"127.0.0.1\", 8900", &own_port);
    let receiver = Command::new("python3")
        .arg(recipe.write("webhook.py", &script))
        .env("WEBHOOK_SECRET", "s3cret")
        .spawn();
    let _receiver = Running(receiver.expect("it starts"));
    until("the receiver", || TcpStream::connect(&selector).is_ok());
    let commands = recipe.block("console").replace("127.0.0.1:8900", &selector);
    let commands = commands.replace("$ ", "");
    for _ in 0..2 {
        recipe.run(Command::new("bash").args(["-euc", &commands]));
    }
    assert_eq!(server.info("github").expect("the topic")["messages"], 1);
    let history = curl(&[&server.url("/history/github")]);
    assert!(history.contains(r#""event":"issues""#), "{history}");
    let forged = commands.replace("curl -sSf", "curl -s -o /dev/null -w '%{http_code}'");
    let forged = forged.replace("-hmac s3cret", "-hmac another");
    let status = recipe.run(Command::new("bash").args(["-euc", &forged]));
    assert_eq!(status, "401");
    assert_eq!(server.info("github").expect("the topic")["messages"], 1);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn job_runs_from_the_first_subscriber_to_the_last() {
    let recipe = Recipe::named("A job that runs while somebody watches");
    let secret = recipe.write("webhook.secret", "whsec_c2VjcmV0IG9mIGEgd2ViaG9vaw==\n");
    let held = hold_port();
    let port = held.addr().port().to_string();
    let settings = recipe.block("toml").replace("8901", &port);
    let settings = settings.replace("webhook.secret", &secret);
    let server = Server::with(&settings);
    let script = recipe.block("python").replace("8901", &port);
    let script = script.replace("8800", &server.address().port().to_string());
    let mut job = Command::new("python3")
        .arg(recipe.write("job.py", &script))
        .current_dir(recipe.path(""))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output_lines = BufReader::new(job.stdout.take().expect("its output")).lines();
    let _job = Running(job);
    let mut next = || output_lines.next().expect("a line").expect("text");
    let mut subscriber = Ws::open(&server, "/sub/clock/berlin", &[]);
    assert_eq!(next(), "start clock/berlin");
    let time = subscriber.message().text();
    assert_eq!((time.len(), time.matches(':').count()), (8, 2), "{time}");
    drop(subscriber);
    assert_eq!(next(), "stop clock/berlin");
    let forged = [
        "-d",
        r#"{"events":[]}"#,
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
    ];
    let to = format!("http://127.0.0.1:{port}/");
    assert_eq!(curl(&[&forged[..], &[&to[..]]].concat()), "401");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn backend_is_called_for_each_message() {
    let recipe = Recipe::named("Calling a backend for each message");
    let server = recipe.server();
    let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
    let selector = backend.local_addr().expect("an address").to_string();
    let script = recipe
        .block("bash")
        .replace(NAMED, &server.address().to_string());
    recipe.write("call.sh", &script.replace("127.0.0.1:9000", &selector));
    let path = format!(
        "{}:{}",
        recipe.path(""),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new("bash");
    let script = command
        .arg(recipe.path("call.sh"))
        .env("PATH", path)
        .process_group(0);
    let script = Running(script.spawn().expect("it starts"));
    backend.set_nonblocking(true).expect("a setting");
    let mut call = support::eventually("a call", || {
        publish(&server, "orders/7", "paid");
        backend.accept().ok()
    });
    call.0.set_nonblocking(false).expect("a setting");
    let mut request = [0; 4096];
    let mut len = 0;
    while !request[..len].ends_with(b"}") {
        len += call.0.read(&mut request[len..]).expect("a request");
    }
    let request = String::from_utf8_lossy(&request[..len]).into_owned();
    assert!(request.starts_with("POST /orders "), "{request}");
    assert!(request.contains(r#""topic":"orders/7""#), "{request}");
    assert!(request.contains(r#""data":"paid""#), "{request}");
    let group = format!("-{}", script.0.id());
    let _ = Command::new("kill").args(["--", &group]).status();
}

/// A relay to the server. It answers the first connection with 502, cuts the second one after the server has answered, and passes later
/// ones on.
fn faulty_way_to(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for (number, mut stream) in listener.incoming().map_while(Result::ok).enumerate() {
            match number {
                0 => {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(BAD_GATEWAY);
                }
                1 => {
                    let mut request = [0; 4096];
                    // The script's client sends head and body in separate writes.
                    let mut len = 0;
                    while !request[..len].ends_with(b"\"") {
                        len += stream.read(&mut request[len..]).expect("a request");
                    }
                    let mut there = TcpStream::connect(server).expect("the server");
                    there.write_all(&request[..len]).expect("it takes it");
                    assert!(there.read(&mut [0; 4096]).expect("an answer") > 0);
                }
                _ => pass(&stream, server),
            }
        }
    });
    address
}

/// A proxy before the server that answers the first request with 502.
fn proxy_of_a_server_that_restarts(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let refused = Arc::new(AtomicBool::new(false));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let refused = refused.clone();
            std::thread::spawn(move || {
                // A connection without a request does not count: a browser opens some ahead.
                let asks = stream.peek(&mut [0]).is_ok_and(|count| count > 0);
                if asks && !refused.swap(true, Ordering::SeqCst) {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(BAD_GATEWAY);
                } else {
                    pass(&stream, server);
                }
            });
        }
    });
    address
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn stream_is_reopened_after_an_answer_that_ends_an_event_source() {
    let recipe = Recipe::named("A stream that never gives up");
    let server = recipe.server();
    let door = proxy_of_a_server_that_restarts(server.address());
    let html = format!(
        "<!doctype html><title>-</title><ul id='heard'></ul><script>{}\nfollow('http://{door}/sub/news', (event) => {{\
         const item = document.createElement('li'); item.textContent = event.data;\
         document.getElementById('heard').append(item); }});</script>",
        recipe.block("js")
    );
    let path = recipe.write("page.html", &html);
    let mut page = Visitor::open(&format!("file://{path}"));
    server.await_subscribers("news", 1);
    publish(&server, "news", "still there");
    page.expect("li", "^still there$");
}
