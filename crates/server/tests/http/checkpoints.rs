//! Tests checkpoints. A checkpoint writes the state as a base, and deletes the log before it. Replaced, deleted and expired messages leave
//! the disk; kept ones survive a crash. While the disk is full, publishes are refused.

use std::path::Path;

use crate::support::http::{Conn, Response, publish};
use crate::support::port::await_metric;
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::{Server, connect_from, eventually};

/// The limit of bytes of the log and the base together. A segment of the log has a sixteenth of it.
const BYTES_MAX: u64 = 2 << 20;

fn settings(state: &State) -> String {
    format!(
        "{}bytes_max = {BYTES_MAX}\n\
         [[rule]]\nmatch = \"latest/#\"\nkeep = \"latest\"\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = 10000\nlog_bytes = \"64 MiB\"\n",
        state.settings()
    )
}

/// The bytes of all files below a directory.
fn bytes(directory: &Path) -> u64 {
    // Files may appear and disappear meanwhile.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes_of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(bytes_of_entry).sum()
}

fn try_post(conn: &mut Conn, topic: &str, data: &[u8]) -> Response {
    conn.request(
        "POST",
        &format!("/pub/{topic}"),
        &[("Content-Type", "text/plain")],
        data,
    )
}

/// Publishes, and tries again until there is room.
fn post(conn: &mut Conn, topic: &str, data: &str) {
    eventually("room for a message", || {
        match try_post(conn, topic, data.as_bytes()).status {
            201 | 202 => Some(()),
            503 => None,
            other => panic!("{other}"),
        }
    });
}

/// The newest value of a topic.
fn value(server: &Server, topic: &str) -> String {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=-1"), &[]);
    stream.event().expect("a value").data
}

#[test]
fn replaced_messages_leave_the_disk_and_kept_ones_survive_a_crash() {
    let state = State::new();
    let settings = settings(&state);
    let mut server = Server::with(&settings);
    publish(&server, "kept", "first");
    let mut stream = Stream::open(&server, "/sub/kept?since=oldest", &[]);
    let first = stream.event().expect("an event").id;
    let padding = "x".repeat(20_000);
    let mut received = Vec::new();
    for round in 0..3 {
        let mut conn = Conn::open(&server);
        for n in 0..150 {
            for value in 0..2 {
                post(
                    &mut conn,
                    &format!("latest/{value}"),
                    &format!("{round}.{n} {padding}"),
                );
            }
            let topic = format!("/pub/churned-{round}.{n}");
            post(&mut conn, &topic[5..], &padding);
            assert_eq!(conn.request("DELETE", &topic, &[], b"").status, 200);
            if n % 10 == 0 {
                post(&mut conn, "kept", &format!("{round}.{n}"));
                received.push(format!("{round}.{n}"));
            }
            // While a checkpoint is written, the new base is not counted in the limit.
            let used = bytes(&state.directory);
            assert!(used <= BYTES_MAX * 3 / 2, "{used} bytes on disk");
        }
        server.kill();
        server = Server::with_shards(round % 2 + 1, &settings);
        for topic in ["latest/0", "latest/1"] {
            assert_eq!(value(&server, topic), format!("{round}.149 {padding}"));
        }
        let mut stream = Stream::open(&server, "/sub/kept", &[("Last-Event-ID", &first)]);
        assert_eq!(stream.data(received.len()), received);
        assert_eq!(Conn::open(&server).get("/pub/churned-0.7", &[]).status, 404);
    }
    // The former bases and segments are deleted.
    assert_eq!(state.base().parent(), Some(&*state.directory));
    let log = std::fs::read_dir(state.directory.join("log"))
        .expect("the log")
        .count();
    assert!(log <= 16, "{log} files");
    let newest = state
        .base()
        .file_name()
        .and_then(|name| name.to_str())
        .map(str::to_string);
    let number = newest
        .as_deref()
        .and_then(|name| name.split('-').nth(1)?.parse::<u32>().ok());
    assert!(number.is_some_and(|number| number > 10), "{newest:?}");
}

/// The bytes of all complete bases.
fn base_bytes(state: &State) -> u64 {
    let files = state.files();
    let bases = files.iter().filter(|name| name.starts_with("base-"));
    bases.map(|name| bytes(&state.directory.join(name))).sum()
}

/// The minimum number of segment files: the spare ones, and the one that is being written.
const FILES_MIN: u64 = 3;

#[test]
fn disk_space_is_freed_when_most_messages_were_deleted() {
    for crashes in [false, true] {
        let state = State::new();
        let mut server = Server::with(&settings(&state));
        let mut conn = Conn::open(&server);
        publish(&server, "kept", "first");
        for n in 0..40 {
            post(&mut conn, &format!("big/{n}"), &"x".repeat(20_000));
        }
        // The other messages are in so few segments that a checkpoint is not worth its work.
        eventually("a base", || (base_bytes(&state) >= 400_000).then_some(()));
        for n in 0..40 {
            let target = format!("/pub/big/{n}");
            assert_eq!(conn.request("DELETE", &target, &[], b"").status, 200);
        }
        if crashes {
            server.kill();
            server = Server::with(&settings(&state));
        }
        // The file `lives` has its largest size from the first start on.
        let lives = std::fs::metadata(state.directory.join("lives")).expect("the lives");
        let bytes_max = (FILES_MIN + 2) * (BYTES_MAX / 16) + lives.len();
        eventually("room", || {
            (bytes(&state.directory) <= bytes_max).then_some(())
        });
        assert_eq!(value(&server, "kept"), "first");
        server.kill();
        let server = Server::with(&settings(&state));
        assert_eq!(value(&server, "kept"), "first");
        assert_eq!(Conn::open(&server).get("/pub/big/7", &[]).status, 404);
    }
}

/// Whether a file below this directory contains these bytes.
fn is_on_disk(directory: &Path, text: &str) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let path = entry.path();
        // Files may appear and disappear meanwhile.
        let has_text = |bytes: Vec<u8>| {
            bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        };
        path.is_dir() && is_on_disk(&path, text) || std::fs::read(&path).is_ok_and(has_text)
    })
}

/// Publishes the messages of `REMOVED`, one for each cause of a removal, and one that stays.
fn publish_removed(server: &Server) {
    let mut conn = Conn::open(server);
    post(&mut conn, "deleted", "secret-deleted");
    assert_eq!(conn.request("DELETE", "/pub/deleted", &[], b"").status, 200);
    post(&mut conn, "latest/one", "secret-replaced");
    post(&mut conn, "latest/one", "new");
    post(&mut conn, "kept", "stays");
    // An older message of this topic stays, so the expired one behind it is dropped from memory only when somebody reads.
    let ttl = [("Content-Type", "text/plain"), ("Crore-TTL", "1")];
    let answer = conn.request("POST", "/pub/kept", &ttl, b"secret-expired");
    assert!([201, 202].contains(&answer.status), "{answer:?}");
}

const REMOVED: [&str; 3] = ["secret-deleted", "secret-replaced", "secret-expired"];

#[test]
fn removed_messages_leave_the_files_in_time_over_restarts_and_kills() {
    for crashes in [false, true] {
        assert_removed_messages_leave_the_files(crashes);
    }
}

#[test]
fn deleted_messages_leave_the_files_after_the_wall_clock_was_set_back() {
    let state = State::new();
    let lines = format!("{}bytes_max = {BYTES_MAX}\n", state.settings());
    let server = Server::with(&lines);
    let mut conn = Conn::open(&server);
    post(&mut conn, "deleted", "secret-deleted");
    assert_eq!(conn.request("DELETE", "/pub/deleted", &[], b"").status, 200);
    server.kill();
    // The file says that the last erasure was in the year 2286.
    std::fs::write(state.directory.join("erased"), "9999999999").expect("a note");
    let _server = Server::with(&lines);
    eventually("an erasure", || {
        (!is_on_disk(&state.directory, "secret-deleted")).then_some(())
    });
}

fn assert_removed_messages_leave_the_files(crashes: bool) {
    let state = State::new();
    // The log grows too little to need a checkpoint, so only `erase_within_s` causes one.
    let lines = format!(
        "{}bytes_max = {BYTES_MAX}\nerase_within_s = 2\n[[rule]]\nmatch = \"latest/#\"\nkeep = \"latest\"\n",
        state.settings()
    );
    let server = Server::with(&lines);
    publish_removed(&server);
    assert!(is_on_disk(&state.directory, "stays"));
    match crashes {
        true => server.kill(),
        false => drop(server.stop()),
    }
    let server = Server::with(&lines);
    for text in REMOVED {
        eventually(text, || (!is_on_disk(&state.directory, text)).then_some(()));
    }
    assert!(is_on_disk(&state.directory, "stays"));
    server.kill();
    let server = Server::with(&lines);
    assert_eq!(value(&server, "latest/one"), "new");
    assert_eq!(value(&server, "kept"), "stays");
}

#[test]
fn full_disk_refuses_publishes_until_messages_are_removed() {
    let state = State::new();
    let server = Server::with(&settings(&state));
    let mut stream = Stream::open(&server, "/sub/big", &[]);
    let mut conn = Conn::open(&server);
    let data = [b'x'; 20_000];
    let mut answered = 0;
    let refused = loop {
        let response = try_post(&mut conn, "big", &data);
        if response.status == 503 {
            break response;
        }
        answered += 1;
        assert!(
            answered * data.len() < 4 * BYTES_MAX as usize,
            "it is not bounded"
        );
    };
    assert!(refused.header("retry-after").is_some());
    assert!(
        refused.text().contains("state.bytes_max"),
        "{}",
        refused.text()
    );
    // A checkpoint makes no room while all messages are kept, so the refusal must not come much earlier than at the limit.
    assert!(
        answered * data.len() > BYTES_MAX as usize / 4,
        "{answered} messages"
    );
    assert_eq!(stream.data(answered).len(), answered);
    assert_eq!(conn.get("/pub/big", &[]).status, 200);
    server.kill();
    let server = Server::with(&settings(&state));
    let mut stream = Stream::open(&server, "/sub/big?since=oldest", &[]);
    assert_eq!(stream.data(answered).len(), answered);
    let mut conn = Conn::open(&server);
    assert_eq!(conn.request("DELETE", "/pub/big", &[], b"").status, 200);
    for n in 0..20 {
        post(&mut conn, "small", &n.to_string());
    }
    server.kill();
    let server = Server::with(&settings(&state));
    assert_eq!(value(&server, "small"), "19");
}

#[test]
fn an_address_that_fills_the_disk_leaves_room_for_another() {
    let state = State::new();
    let server = Server::with(&settings(&state));
    let greedy = || Conn::from_stream(connect_from(2, server.address()), &server);
    // Once with messages that are all kept, and once with messages that replace each other, so that only segments grow.
    for topic in ["big/", "latest/"] {
        let mut conn = greedy();
        let mut refused = 0;
        for n in 0..400 {
            let topic = match topic {
                "latest/" => "latest/one".to_string(),
                topic => format!("{topic}{n}"),
            };
            let response = try_post(&mut conn, &topic, &[b'x'; 20_000]);
            assert!([201, 202, 503].contains(&response.status), "{response:?}");
            refused += usize::from(response.status == 503);
            if refused > 20 {
                break;
            }
        }
        assert!(refused > 0 || topic == "latest/", "it is bounded");
        let mut honest = Conn::open(&server);
        for n in 0..25 {
            let response = try_post(&mut honest, "modest", n.to_string().as_bytes());
            assert!(
                [201, 202].contains(&response.status),
                "{topic} {n}: {response:?}"
            );
        }
    }
    let refused = try_post(&mut greedy(), "big/more", &[b'x'; 20_000]);
    if refused.status == 503 {
        assert!(refused.text().contains("state.bytes_max"), "{refused:?}");
    }
    server.await_log("state.bytes_max (2 MiB) is less than three times limits.log_bytes");
    server.kill();
    let server = Server::with(&settings(&state));
    assert_eq!(value(&server, "modest"), "24");
}

#[test]
fn damage_under_a_running_server_is_logged_once_and_a_stop_loses_nothing() {
    let state = State::new();
    let server = Server::with_admin(&settings(&state));
    publish(&server, "kept", "first");
    let mut stream = Stream::open(&server, "/sub/kept?since=oldest", &[]);
    let first = stream.event().expect("an event").id;
    // Changes a byte of the first message.
    let segment = state.directory.join("log/segment-0000000001.log");
    let mut bytes = std::fs::read(&segment).expect("a segment");
    let offset = bytes.windows(5).position(|window| window == b"first");
    let offset = offset.expect("the message");
    bytes[offset] ^= 1;
    let file = std::fs::OpenOptions::new().write(true).open(&segment);
    let file = file.expect("a segment");
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[offset..=offset], offset as u64)
        .expect("a byte");
    let mut conn = Conn::open(&server);
    for n in 0..30 {
        let padding = "x".repeat(20_000);
        assert!(try_post(&mut conn, "latest/0", format!("{n} {padding}").as_bytes()).status < 300);
    }
    publish(&server, "kept", "second");
    server.await_log("memory still has all messages");
    await_metric(server.admin(), "crore_disk_damaged", 1.0);
    server.stop();
    let server = Server::with(&settings(&state));
    let mut stream = Stream::open(&server, "/sub/kept", &[("Last-Event-ID", &first)]);
    assert_eq!(stream.data(1), ["second"]);
    assert!(!server.log().contains("told a gap"), "{}", server.log());
    server.kill();
}
