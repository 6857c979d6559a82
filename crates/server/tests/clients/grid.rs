//! Tests `examples/grid` in headless Chromium, with the settings from its directory.

use crate::client::Client;
use crate::support::Server;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

/// The origin that the example's settings name.
const ORIGIN: &str = "http://127.0.0.1:8080";

fn example(name: &str) -> Option<String> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/grid");
    std::fs::read_to_string(directory.join(name)).ok()
}

/// Serves the example's files on their own port. Returns the origin. The thread ends with the test program.
fn files() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    origin
}

fn serve(mut stream: TcpStream) {
    let mut request = [0; 4096];
    let length = stream.read(&mut request).unwrap_or_default();
    let text = String::from_utf8_lossy(&request[..length]).into_owned();
    let path = text.split([' ', '?']).nth(1).unwrap_or_default();
    let name = match path.trim_start_matches('/') {
        "" => "index.html",
        name => name,
    };
    let content_type = match name.rsplit('.').next() {
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        _ => "text/html",
    };
    let (status, body) =
        example(name).map_or(("404 Not Found", String::new()), |body| ("200 OK", body));
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn visitor(url: &str) -> Client {
    let mut browser = Client::node("console.mjs", &[]);
    browser.next("ready");
    browser.tell(&json!({ "do": "open", "url": url }));
    browser.at_once("done");
    browser
}

fn expect(browser: &mut Client, selector: &str, pattern: &str) {
    browser.tell(&json!({ "do": "expect", "at": selector, "like": pattern }));
    browser.at_once("done");
}

/// A selector for two cells that each have a sprite (a canvas).
const TWO: &str = "#grid:has(.cell:has(canvas) ~ .cell:has(canvas))";
/// A selector for a visitor in a cell beside one's own.
const NEIGHBOUR: &str = ".cell.near:has(canvas)";
/// A selector for exactly one cell with a sprite.
const ONE: &str = "#grid:has(canvas):not(:has(.cell:has(canvas) ~ .cell:has(canvas)))";

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn visitors_of_the_grid_see_each_other_come_and_go() {
    let origin = files();
    let settings = example("crore.toml")
        .expect("its settings")
        .replace(ORIGIN, &origin);
    assert!(settings.contains(&origin), "the settings name {ORIGIN}");
    let server = Server::with(&settings);
    let url = format!("{origin}/?server={}", server.url(""));
    let mut first = visitor(&url);
    expect(&mut first, "#count", "^1$");
    let mut second = visitor(&url);
    for browser in [&mut first, &mut second] {
        expect(browser, "#count", "^2$");
        expect(browser, TWO, "");
        expect(browser, NEIGHBOUR, "");
    }
    second.tell(&json!({ "do": "complaints" }));
    assert_eq!(second.at_once("done")["value"], json!([]));
    // When a visitor closes the page, it disappears from the others' pages at once, by its will message.
    second.tell(&json!({ "do": "open", "url": "about:blank" }));
    second.at_once("done");
    expect(&mut first, ONE, "");
    server.await_subscribers("grid/here", 1);
    expect(&mut first, "#count", "^1$");
}
