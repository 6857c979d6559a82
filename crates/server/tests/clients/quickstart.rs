//! Tests `examples/quickstart` in headless Chromium, as the README describes it: the page opened as a file, and from another port, each
//! with and without the setting that allows its origin.

use crate::client::{Client, publish};
use crate::support::Server;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

fn example() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/index.html");
    path.canonicalize().expect("the example")
}

/// Serves the example on its own port. Returns the origin. The thread ends with the test program.
fn other_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || give_page(stream));
        }
    });
    origin
}

fn give_page(mut stream: TcpStream) {
    let html = std::fs::read_to_string(example()).expect("the example");
    let _ = stream.read(&mut [0; 4096]); // whatever it asks, it gets the page
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close";
    let _ = write!(
        stream,
        "{head}\r\nContent-Length: {}\r\n\r\n{html}",
        html.len()
    );
}

struct Visitor(Client);

impl Visitor {
    fn open(url: &str, size: [u32; 2]) -> Visitor {
        let browser = Client::node("console.mjs", &[]);
        browser.next("ready");
        let mut visitor = Visitor(browser);
        visitor.act(&json!({ "do": "open", "url": url, "size": size }));
        visitor
    }

    fn act(&mut self, command: &serde_json::Value) -> serde_json::Value {
        self.0.tell(command);
        self.0.at_once("done")["value"].clone()
    }

    fn expect(&mut self, selector: &str, pattern: &str) {
        self.act(&json!({ "do": "expect", "at": selector, "like": pattern }));
    }

    fn next_message(&mut self) -> serde_json::Value {
        self.act(&json!({ "do": "texts", "at": "#heard li" }))
    }

    /// Writes a picture of the page, if `CRORE_SHOTS` names a directory.
    fn shot(&mut self, name: &str) {
        if let Some(directory) = std::env::var_os("CRORE_SHOTS") {
            let path = Path::new(&directory).join(format!("quickstart-{name}.png"));
            self.act(&json!({ "do": "shot", "path": path }));
        }
    }
}

/// The page at `url`, whose origin the settings allow, publishes and receives over both transports.
fn publishes_and_hears(url: &str, origin: &str, name: &str) {
    let server = Server::with(&format!("[http]\nallowed_origins = [\"{origin}\"]\n"));
    publish(&server, "hello", "kept");
    let mut page = Visitor::open(&format!("{url}?server={}", server.url("")), [390, 844]);
    page.expect("#state", "^connected by EventSource$");
    page.expect("#heard li:nth-child(1)", "^kept$");
    server.await_subscribers("hello", 1);
    for (words, position) in [("by the page", 2), ("again", 3)] {
        page.act(&json!({ "do": "fill", "at": "#words", "text": words }));
        page.act(&json!({ "do": "click", "at": "#say button" }));
        page.expect(
            &format!("#heard li:nth-child({position})"),
            &format!("^{words}$"),
        );
    }
    page.act(&json!({ "do": "select", "at": "#by", "value": "ws" }));
    page.expect("#state", "^connected by WebSocket$");
    server.await_subscribers("hello", 1);
    publish(&server, "hello", "by WebSocket");
    page.expect("#heard li:nth-child(4)", "^by WebSocket$");
    assert_eq!(
        page.next_message(),
        json!(["kept", "by the page", "again", "by WebSocket"])
    );
    assert_eq!(page.act(&json!({ "do": "complaints" })), json!([]));
    let manners = page.act(&json!({ "do": "manners" }));
    assert_eq!(
        (&manners["nameless"], &manners["overflow_px"]),
        (&json!([]), &json!(0))
    );
    page.shot(name);
}

/// The page at `url`, whose origin no setting allows, receives nothing, and says what to do.
fn is_refused_and_told(url: &str, origin: &str, name: &str) {
    let server = Server::start();
    publish(&server, "hello", "private");
    let mut page = Visitor::open(&format!("{url}?server={}", server.url("")), [390, 844]);
    for transport in ["sse", "ws"] {
        page.act(&json!({ "do": "select", "at": "#by", "value": transport }));
        page.expect("#state", "^not connected$");
        page.expect(
            "#help",
            &format!("The server runs and .*crore serve --allowed-origin {origin}$"),
        );
    }
    page.act(&json!({ "do": "fill", "at": "#words", "text": "from elsewhere" }));
    page.act(&json!({ "do": "click", "at": "#say button" }));
    page.expect("#state", "^not connected$");
    assert_eq!(page.next_message(), json!([]));
    let info = crate::client::curl(&["-H", "Accept: application/json", &server.url("/pub/hello")]);
    assert!(info.contains("\"messages\": 1"), "{info}");
    page.shot(name);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_page_from_a_file_works_with_the_setting_that_it_names() {
    let url = format!("file://{}", example().display());
    publishes_and_hears(&url, "null", "file");
    is_refused_and_told(&url, "null", "file-refused");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_page_from_another_port_works_with_the_setting_that_it_names() {
    let origin = other_port();
    publishes_and_hears(&origin, &origin, "port");
    is_refused_and_told(&origin, &origin, "port-refused");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_sandboxed_frame_reads_nothing_of_a_server_with_the_defaults() {
    let server = Server::start();
    publish(&server, "hello", "private");
    let html = format!(
        "<!doctype html><title>-</title><p id='told'>waits</p><iframe sandbox='allow-scripts' srcdoc=\"<script>\
         fetch('{}').then((answer) => answer.text()).then((text) => parent.postMessage(text, '*'), () => \
         parent.postMessage('hidden', '*'));</script>\"></iframe>\
         <script>onmessage = (event) => document.getElementById('told').textContent = event.data;</script>",
        server.url("/sub/hello")
    );
    let path = std::env::temp_dir().join(format!("crore-frame-{}.html", std::process::id()));
    std::fs::write(&path, html).expect("a page");
    let mut page = Visitor::open(&format!("file://{}", path.display()), [390, 844]);
    page.expect("#told", "^hidden$");
    let _ = std::fs::remove_file(path);
}
