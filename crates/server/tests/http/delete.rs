//! Tests deleted topics. Subscribers are told that the topic has ended (410, a close code, or the end of the stream). Afterwards the name
//! is free for a new topic.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;
use crate::support::ws::Ws;

#[test]
fn delete_is_200_once_and_then_404() {
    let server = Server::start();
    assert_eq!(once(&server, "DELETE", "/pub/news", &[], "").status, 404);
    publish(&server, "news", "one");
    assert_eq!(once(&server, "DELETE", "/pub/news", &[], "").status, 200);
    assert_eq!(once(&server, "DELETE", "/pub/news", &[], "").status, 404);
    assert_eq!(once(&server, "GET", "/pub/news", &[], "").status, 404);
}

#[test]
fn a_waiting_poll_and_an_old_position_get_410() {
    let server = Server::start();
    publish(&server, "news", "one");
    let mut poll = Conn::open(&server);
    let tag = poll.get("/sub/news", &[]).header("etag").expect("an ETag");
    poll.ask("GET", "/sub/news", &[("If-None-Match", &tag)], "");
    server.await_subscribers("news", 1);
    once(&server, "DELETE", "/pub/news", &[], "");
    assert_eq!(poll.response().status, 410);
    assert_eq!(
        poll.get("/sub/news", &[("If-None-Match", &tag)]).status,
        410
    );
}

#[test]
fn a_websocket_is_closed_with_4410() {
    let server = Server::start();
    let mut plain = Ws::open(&server, "/sub/news", &[]);
    let mut meta = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 2);
    once(&server, "DELETE", "/pub/news", &[], "");
    assert_eq!(plain.closed(), Some(4410));
    assert_eq!(meta.closed(), Some(4410));
}

#[test]
fn stream_ends_with_its_topic_and_then_gets_204() {
    let server = Server::start();
    let mut stream = Stream::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    let event = stream.event().expect("an event");
    once(&server, "DELETE", "/pub/news", &[], "");
    assert_eq!(stream.event(), None, "the stream ends");
    let again = [
        ("Accept", "text/event-stream"),
        ("Last-Event-ID", event.id.as_str()),
    ];
    assert_eq!(
        once(&server, "GET", "/sub/news", &again, "").status,
        204,
        "which stops an EventSource"
    );
}

#[test]
fn deleted_topic_may_be_created_again() {
    let server = Server::start();
    publish(&server, "news", "old");
    once(&server, "DELETE", "/pub/news", &[], "");
    publish(&server, "news", "new");
    let mut conn = Conn::open(&server);
    let response = conn.get("/sub/news", &[]);
    assert_eq!((response.status, response.text()), (200, "new"));
    let tag = response.header("etag").expect("an ETag");
    publish(&server, "news", "newer");
    assert_eq!(
        conn.get("/sub/news", &[("If-None-Match", &tag)]).text(),
        "newer"
    );
}
