//! Tests topics of another shard that are deleted while clients subscribe to them. A client that asked before the deletion learns of it. A client that
//! asked after it begins a new topic.

use super::*;

/// A topic that is kept at this one of two shards.
fn name_at(home: u8) -> String {
    let names = (0..).map(|n: u32| n.to_string());
    let mut of_home = names.filter(|name| crore_wire::topic::slot(name.as_bytes()) % 2 == home);
    of_home.next().expect("each has some")
}

fn delete(server: &mut TestServer, topic: &str) {
    server.connect_and_send(format!(
        "DELETE /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ));
}

const STREAM: &str = "Accept: text/event-stream\r\n";

#[test]
fn subscription_after_a_delete_gets_no_report_of_it() {
    let (near, far) = (name_at(0), name_at(1));
    for target in [
        format!("/sub/{far}"),
        format!("/sub?topic={near}&topic={far}"),
        format!("/sub?topic={far}&topic={near}"),
    ] {
        for fields in ["", STREAM] {
            let mut server = TestServer::with(Settings::default(), TurnLimits::default(), 2);
            let former = server.ask(Kind::Plain, &far);
            server.settle();
            server.run_remote_shard();
            server.take_received(former);
            delete(&mut server, &far);
            let link = server.connect_and_send(format!(
                "GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
            ));
            server.settle();
            server.run_remote_shard();
            assert!(
                server.take_received(former).contains("deleted"),
                "who was there is told"
            );
            let received = server.take_received(link);
            assert!(!received.contains("410"), "{target}: {received}");
            assert!(server.is_open(link), "{target}");
            server.publish([(&far[..], "first of a new life".into())]);
            server.settle();
            server.run_remote_shard();
            let received = server.take_received(link);
            assert!(
                received.contains("first of a new life"),
                "{target}: {received}"
            );
        }
    }
}

#[test]
fn subscription_before_a_delete_is_told_of_it_after_all_homes_have_answered() {
    let (near, far) = (name_at(0), name_at(1));
    for fields in ["", STREAM] {
        let mut server = TestServer::with(Settings::default(), TurnLimits::default(), 2);
        let link = server.connect_and_send(format!(
            "GET /sub?topic={near}&topic={far} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
        ));
        server.settle();
        // The local home (the part of a shard that keeps topics) has answered, and the remote one has not.
        delete(&mut server, &near);
        server.settle();
        assert_eq!(server.take_received(link), "");
        server.run_remote_shard();
        let received = server.take_received(link);
        match fields {
            "" => assert!(received.starts_with("HTTP/1.1 410 "), "{received}"),
            _ => assert!(received.ends_with("\r\n0\r\n\r\n"), "{received}"),
        }
        assert_eq!(server.is_open(link), fields.is_empty());
    }
}

/// Bytes after a request are buffered up to the limit of a head. Then the socket is not read until the request is answered.
#[test]
fn socket_with_many_bytes_after_a_request_is_read_again_when_the_stream_begins() {
    let far = name_at(1);
    for (kind, bytes, is_read) in [
        (Kind::Plain, 100, true),
        (Kind::Plain, 100_000, false),
        (Kind::Sse, 100, true),
        (Kind::Sse, 100_000, false),
    ] {
        let mut settings = Settings::default();
        settings.limits.head_bytes = 4096;
        let mut server = TestServer::with(settings, TurnLimits::default(), 2);
        let link = server.ask(kind, &far);
        server.settle();
        // Unsolicited pongs, which the server ignores.
        let pong = "\u{8a}\u{80}\0\0\0\0";
        let pongs: Vec<u8> = pong.chars().map(|byte| byte as u8).collect();
        server.send(link, pongs.repeat(bytes / pongs.len()));
        assert_eq!(server.reads_from(link), is_read);
        server.run_remote_shard();
        assert!(server.reads_from(link) && server.is_open(link));
        server.publish([(&far[..], "message".into())]);
        server.settle();
        server.run_remote_shard();
        assert!(server.take_received(link).contains("message"));
        assert_eq!(server.accounts().receive_bytes, 0);
    }
}
