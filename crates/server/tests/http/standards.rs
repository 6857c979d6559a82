//! Tests details of the standards that implementations often get wrong, and answers that clients of Nchan compare byte by byte.

use crate::support::Server;
use crate::support::attempt;
use crate::support::http::{Conn, info, once, publish};
use std::process::Command;

#[test]
fn malformed_request_is_400_and_closes_the_connection() {
    let server = Server::start();
    let chunked = "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut failures = Vec::new();
    for text in [
        // Requests against RFC 9112 sections 3.2, 7.1.1 and 7.1.2.
        "GET /pub/a HTTP/1.1\r\nHost:\r\n\r\n".to_string(),
        "GET /pub/a HTTP/1.1\r\nHost: localhost:abc\r\n\r\n".to_string(),
        format!("{chunked}5;\r\nhello\r\n0\r\n\r\n"),
        format!("{chunked}5;bad[=x\r\nhello\r\n0\r\n\r\n"),
        format!("{chunked}5\r\nhello\r\n0\r\nno colon\r\n\r\n"),
    ] {
        let mut conn = Conn::open(&server);
        conn.send(&text);
        let outcome = attempt(|| (conn.response().status, conn.ends()));
        if outcome != Some((400, true)) {
            failures.push(format!("{text:?}: {outcome:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(once(&server, "GET", "/pub/a", &[], "").status, 404);
}

#[test]
fn options_for_the_whole_server_are_answered() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    // RFC 9110 section 9.3.7: OPTIONS for `*`.
    for _ in 0..2 {
        let response = conn.request("OPTIONS", "*", &[], "");
        assert_eq!(response.status, 204);
        for method in ["GET", "POST", "OPTIONS"] {
            assert!(response.lists("allow", method), "{response:?}");
        }
    }
}

#[test]
fn http_2_client_is_refused_in_http_2() {
    let server = Server::start();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for dribbles in [false, true] {
        let mut conn = Conn::open(&server);
        match dribbles {
            true => conn.dribble(preface),
            false => conn.send(preface),
        }
        // The client's SETTINGS frame, which RFC 9113 section 3.4 demands after the preface.
        conn.send([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let frames = conn.read_to_end();
        assert_eq!(frames[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0], "SETTINGS");
        let goaway = &frames[9..];
        assert_eq!(goaway.len(), 9 + usize::from(goaway[2]), "one frame");
        assert_eq!(goaway[3..9], [7, 0, 0, 0, 0, 0], "GOAWAY");
        // The GOAWAY frame: the last stream, and the error HTTP_1_1_REQUIRED (section 7).
        assert_eq!(goaway[9..17], [0, 0, 0, 0, 0, 0, 0, 0xd]);
    }
}

#[test]
fn curl_says_that_http_1_is_required() {
    let server = Server::start();
    let result = Command::new("curl")
        .args(["-sSv", "--max-time", "10", "--http2-prior-knowledge"])
        .arg(server.url("/pub/a"))
        .output();
    let Ok(output) = result else {
        return; // `cargo xtask test` installs it
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    let spellings = ["error=13", "HTTP_1_1_REQUIRED"];
    assert!(
        spellings.iter().any(|code| stderr.contains(code)),
        "{stderr}"
    );
}

#[test]
fn topic_info_text_has_the_lines_that_clients_of_nchan_parse() {
    let server = Server::start();
    publish(&server, "news", "one");
    let response = once(&server, "GET", "/pub/news", &[], "");
    assert_eq!(
        response.header("content-type").as_deref(),
        Some("text/plain")
    );
    // A Ruby client reads these lines with /^queued messages: (.*)\r$/ and /^last message id: (.*)$/.
    let lines: Vec<&str> = response.text().split('\n').collect();
    assert_eq!(lines[0], "queued messages: 1\r");
    // Nobody has subscribed yet.
    assert_eq!(lines[1], "last requested: -1 sec. ago\r");
    assert_eq!(info(&server, "news")["requested"], -1);
    assert_eq!(lines[2], "active subscribers: 0\r");
    let id = lines[3].strip_prefix("last message id: ").expect("an id");
    assert_eq!(info(&server, "news")["last_message_id"], *id);
    assert_eq!(lines[4..], [""]);
    assert_eq!(once(&server, "GET", "/sub/news", &[], "").text(), "one");
    let info_after_request = once(&server, "GET", "/pub/news", &[], "");
    let line = info_after_request
        .text()
        .lines()
        .nth(1)
        .expect("a line")
        .to_string();
    assert!(
        line.starts_with("last requested: ") && line.ends_with(" sec. ago"),
        "{line}"
    );
}
