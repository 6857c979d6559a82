//! Tests durable messages. Answered publishes, retained values, positions and idempotency keys survive a crash. A client whose messages are
//! damaged is told a gap (that it missed messages).

use std::path::PathBuf;

use crore_wire::sse::GAP_EVENT;

use super::life::does_not_start;
use crate::support::Server;
use crate::support::http::{Conn, Response, publish};
use crate::support::state::State;
use crate::support::stream::Stream;

const KEY: [(&str, &str); 1] = [("Idempotency-Key", "\"k\"")];

/// The next `count` messages of a topic after a position, as pairs of the event name and the data.
fn messages_after(
    server: &Server,
    topic: &str,
    position: &str,
    count: usize,
) -> Vec<(String, String)> {
    let target = format!("/sub/{topic}");
    let mut stream = Stream::open(server, &target, &[("Last-Event-ID", position)]);
    let events = (0..count).map(|_| stream.event().expect("an event"));
    events.map(|event| (event.kind, event.data)).collect()
}

fn first_position(server: &Server, topic: &str) -> String {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    stream.event().expect("an event").id
}

fn messages(texts: &[&str]) -> Vec<(String, String)> {
    let event = |text: &&str| ("message".to_string(), (*text).to_string());
    texts.iter().map(event).collect()
}

fn segment(state: &State) -> PathBuf {
    state.directory.join("log/segment-0000000001.log")
}

#[test]
fn answered_messages_positions_and_keys_survive_crash_after_crash() {
    let state = State::new();
    let mut server = Server::with(&state.settings());
    publish(&server, "a", "seen");
    let seen_position = first_position(&server, "a");
    let subscriber = Stream::open(&server, "/sub/keyed", &[]);
    let first = Conn::open(&server).request("POST", "/pub/keyed", &KEY, b"once");
    drop(subscriber);
    let mut published = Vec::new();
    for (round, shards) in [2, 1, 3].into_iter().enumerate() {
        for n in 0..3 {
            let text = format!("{round}/{n}");
            publish(&server, "a", &text);
            published.push(("message".to_string(), text));
        }
        server.kill();
        server = Server::with_shards(shards, &state.settings());
        assert_eq!(
            messages_after(&server, "a", &seen_position, published.len()),
            published
        );
        let retry = Conn::open(&server).request("POST", "/pub/keyed", &KEY, b"once");
        let replayed = retry.header("idempotency-replayed");
        assert_eq!(replayed.as_deref(), Some("true"), "round {round}");
        let position = |response: &Response| response.text().lines().last().map(str::to_string);
        assert_eq!(position(&retry), position(&first));
        // Subscribers are not stored in the log.
        assert_eq!((first.status, retry.status), (201, 202));
        assert!(retry.text().contains("active subscribers: 0"));
    }
    server.stop();
    let server = Server::with(&state.settings());
    assert_eq!(
        messages_after(&server, "a", &seen_position, published.len()),
        published
    );
}

#[test]
fn deleted_and_purged_messages_stay_removed_after_a_crash() {
    let state = State::new();
    let server = Server::with(&state.settings());
    for topic in ["deleted", "emptied"] {
        publish(&server, topic, "old");
    }
    let mut conn = Conn::open(&server);
    assert_eq!(conn.request("DELETE", "/pub/deleted", &[], b"").status, 200);
    let emptied = conn.request("DELETE", "/pub/emptied?purge", &[], b"");
    assert_eq!(emptied.status, 200);
    server.kill();
    let server = Server::with(&state.settings());
    let mut conn = Conn::open(&server);
    assert_eq!(conn.get("/pub/deleted", &[]).status, 404);
    publish(&server, "emptied", "new");
    let mut stream = Stream::open(&server, "/sub/emptied?since=oldest", &[]);
    assert_eq!(stream.data(1), ["new"]);
}

#[test]
fn crash_after_a_planned_restart_keeps_messages_from_before_and_after() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "before the stop");
    let seen_position = first_position(&server, "a");
    server.stop();
    let server = Server::with(&state.settings());
    publish(&server, "a", "before the crash");
    server.kill();
    let server = Server::with(&state.settings());
    let expected = messages(&["before the crash"]);
    assert_eq!(messages_after(&server, "a", &seen_position, 1), expected);
    let mut stream = Stream::open(&server, "/sub/a?since=oldest", &[]);
    assert_eq!(stream.data(2), ["before the stop", "before the crash"]);
}

/// Damages the message that contains the word `needle` in the log. The server must have ended.
fn damage(state: &State) {
    let mut bytes = std::fs::read(segment(state)).expect("the segment");
    let needle = b"needle";
    let offset = bytes
        .windows(needle.len())
        .position(|window| window == needle);
    bytes[offset.expect("the message is in the log")] ^= 1;
    std::fs::write(segment(state), bytes).expect("the segment");
}

/// The first `count` items of a stream that begins after `position`, and the position after them. An item is the data of a message, or
/// `GAP`.
fn items_after(
    server: &Server,
    target: &str,
    position: &str,
    count: usize,
) -> (Vec<String>, String) {
    let mut stream = Stream::open(server, target, &[("Last-Event-ID", position)]);
    let (mut items_after, mut id) = (Vec::new(), String::new());
    for _ in 0..count {
        let event = stream.event().expect("an event");
        items_after.push(match event.kind.as_str() {
            GAP_EVENT => GAP.to_string(),
            _ => event.data,
        });
        id = event.id;
    }
    (items_after, id)
}

const GAP: &str = "(gap)";

#[test]
fn damage_in_the_log_is_a_gap_and_the_other_messages_stay() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "seen");
    let seen_position = first_position(&server, "a");
    publish(&server, "a", "damaged: needle");
    publish(&server, "a", "kept");
    server.kill();
    damage(&state);
    let mut server = Server::with(&state.settings());
    server.await_log("of the log is damaged");
    let (received, behind_it) = items_after(&server, "/sub/a", &seen_position, 3);
    assert_eq!(received, [GAP, "seen", "kept"]);
    let mut stream = Stream::open(&server, "/sub/a?since=oldest", &[]);
    assert_eq!(stream.data(2), ["seen", "kept"]);
    publish(&server, "a", "new");
    for _ in 0..2 {
        // A position from after the damage is valid. A client with a position from before it is told the gap again.
        assert_eq!(
            messages_after(&server, "a", &behind_it, 1),
            messages(&["new"])
        );
        let newest = first_position(&server, "a");
        assert_eq!(
            messages_after(&server, "a", &newest, 2),
            messages(&["kept", "new"])
        );
        let (received, _) = items_after(&server, "/sub/a", &seen_position, 4);
        assert_eq!(received, [GAP, "seen", "kept", "new"]);
        server.kill();
        server = Server::with(&state.settings());
    }
}

/// Publishes a message to topics of three partitions (the name of a topic decides its partition). Returns the positions after these
/// messages.
fn three_topics(server: &Server) -> [String; 3] {
    ["a", "b", "c"].map(|topic| {
        publish(server, topic, "seen");
        first_position(server, topic)
    })
}

#[test]
fn damage_in_one_partition_is_a_gap_only_for_its_subscribers() {
    let state = State::new();
    let server = Server::with(&state.settings());
    let [a, b, c] = three_topics(&server);
    let several = [
        ("/sub?topic=a&topic=b&topic=c", 3),
        ("/sub?filter=%2B", 3),
        ("/sub?topic=b&topic=c", 2),
    ];
    let earlier_position = several.map(|(target, count)| {
        let mut stream = Stream::open(&server, &format!("{target}&since=oldest"), &[]);
        let events = (0..count).map(|_| stream.event().expect("an event").id);
        let ids: Vec<String> = events.collect();
        ids.last().expect("several").clone()
    });
    publish(&server, "a", "damaged: needle");
    publish(&server, "b", "b kept");
    publish(&server, "a", "a kept");
    server.kill();
    damage(&state);
    let mut server = Server::with(&state.settings());
    publish(&server, "b", "b new");
    // This partition has no messages after the damage.
    publish(&server, "c", "c new");
    // A further crash changes nothing.
    let mut ends = Vec::new();
    for _ in 0..2 {
        assert_eq!(
            items_after(&server, "/sub/a", &a, 3).0,
            [GAP, "seen", "a kept"]
        );
        assert_eq!(items_after(&server, "/sub/b", &b, 2).0, ["b kept", "b new"]);
        assert_eq!(items_after(&server, "/sub/c", &c, 1).0, ["c new"]);
        // A subscriber of several partitions receives all that is left of the damaged partition again.
        let expected_parts = &[GAP, "a kept", "b kept", "b new", "c new", "seen"][..];
        let expected_parts = [
            expected_parts,
            expected_parts,
            &["b kept", "b new", "c new"],
        ];
        for (((target, _), earlier_position), expected) in
            several.iter().zip(&earlier_position).zip(expected_parts)
        {
            let (mut received, behind_it) =
                items_after(&server, target, earlier_position, expected.len());
            received.sort_unstable();
            assert_eq!(received, expected, "{target}");
            ends.push((*target, behind_it));
        }
        server.kill();
        server = Server::with(&state.settings());
    }
    publish(&server, "b", "last");
    for (target, end) in ends {
        assert_eq!(
            items_after(&server, target, &end, 1).0,
            ["last"],
            "{target}"
        );
    }
}

#[test]
fn damage_to_the_last_message_is_a_gap_in_every_possible_partition() {
    let state = State::new();
    let server = Server::with(&state.settings());
    let [a, b, c] = three_topics(&server);
    publish(&server, "a", "damaged: needle");
    publish(&server, "b", "b kept");
    server.kill();
    damage(&state);
    let server = Server::with(&state.settings());
    for topic in ["a", "b", "c"] {
        publish(&server, topic, "new");
    }
    assert_eq!(
        items_after(&server, "/sub/a", &a, 3).0,
        [GAP, "seen", "new"]
    );
    assert_eq!(items_after(&server, "/sub/b", &b, 2).0, ["b kept", "new"]);
    assert_eq!(
        items_after(&server, "/sub/c", &c, 3).0,
        [GAP, "seen", "new"]
    );
}

#[test]
fn damage_after_an_orderly_stop_is_a_gap_only_for_its_subscribers() {
    let state = State::new();
    let server = Server::with(&state.settings());
    let [a, b, c] = three_topics(&server);
    server.stop();
    let server = Server::with(&state.settings());
    publish(&server, "b", "b kept");
    publish(&server, "a", "damaged: needle");
    publish(&server, "a", "a kept");
    server.kill();
    damage(&state);
    let server = Server::with(&state.settings());
    publish(&server, "c", "new");
    publish(&server, "b", "new");
    assert_eq!(
        items_after(&server, "/sub/a", &a, 3).0,
        [GAP, "seen", "a kept"]
    );
    assert_eq!(items_after(&server, "/sub/b", &b, 2).0, ["b kept", "new"]);
    assert_eq!(items_after(&server, "/sub/c", &c, 1).0, ["new"]);
}

#[test]
fn log_that_ends_before_its_base_is_a_gap() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "seen");
    let seen_position = first_position(&server, "a");
    server.stop();
    std::fs::remove_file(segment(&state)).expect("the segment");
    let server = Server::with(&state.settings());
    server.await_log("before group");
    assert_eq!(
        messages_after(&server, "a", &seen_position, 1)[0].0,
        GAP_EVENT
    );
    let mut stream = Stream::open(&server, "/sub/a?since=oldest", &[]);
    assert_eq!(stream.data(1), ["seen"]);
}

#[test]
fn torn_end_of_the_log_is_no_gap() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "seen");
    let seen_position = first_position(&server, "a");
    publish(&server, "a", "torn: needle");
    server.kill();
    let mut bytes = std::fs::read(segment(&state)).expect("the segment");
    let needle = b"needle";
    let offset = bytes
        .windows(needle.len())
        .position(|window| window == needle);
    let offset = offset.expect("the message is in the log");
    // The log ends here, as after a power failure.
    bytes[offset..].fill(0);
    std::fs::write(segment(&state), bytes).expect("the segment");
    let server = Server::with(&state.settings());
    publish(&server, "a", "new");
    assert_eq!(
        messages_after(&server, "a", &seen_position, 1),
        messages(&["new"])
    );
}

#[test]
fn a_directory_that_another_server_uses_is_refused() {
    let state = State::new();
    let server = Server::with(&state.settings());
    let log = does_not_start("127.0.0.1:0", "locked", &state.settings());
    assert!(log.contains("is in use by another process"), "{log}");
    publish(&server, "a", "here");
}

#[test]
fn durability_can_be_turned_off_and_on_again_without_a_loss() {
    let (state, other) = (State::new(), State::for_planned_restarts());
    let server = Server::with(&state.settings());
    publish(&server, "a", "durable");
    let seen_position = first_position(&server, "a");
    server.kill();
    // The settings without durability, for the same directory.
    let not_durable = other.settings().replace(
        other.directory.to_str().expect("text"),
        state.directory.to_str().expect("text"),
    );
    let server = Server::with(&not_durable);
    publish(&server, "a", "not durable");
    server.stop();
    let server = Server::with(&state.settings());
    publish(&server, "a", "durable again");
    server.kill();
    let server = Server::with(&state.settings());
    let expected = messages(&["not durable", "durable again"]);
    assert_eq!(messages_after(&server, "a", &seen_position, 2), expected);
}

const PASSING: &str = "[[rule]]\nmatch = \"m/#\"\ndurable = false\n";

/// The position after the first message that a filter matches.
fn first_position_by(server: &Server, filter: &str) -> String {
    let mut stream = Stream::open(server, &format!("/sub?filter={filter}&since=oldest"), &[]);
    stream.event().expect("an event").id
}

#[test]
fn crash_is_a_gap_only_for_topics_that_are_not_durable() {
    let state = State::new();
    let settings = format!("{PASSING}{}", state.settings());
    let server = Server::with(&settings);
    for n in 0..3 {
        publish(&server, "m/a", format!("m{n}"));
        publish(&server, "d/a", format!("d{n}"));
    }
    let targets = [
        "/sub/m/a",
        "/sub?filter=m/%2B",
        "/sub/d/a",
        "/sub?filter=d/%2B",
    ];
    let mut positions = vec![
        first_position(&server, "m/a"),
        first_position_by(&server, "m/%2B"),
    ];
    positions.extend([
        first_position(&server, "d/a"),
        first_position_by(&server, "d/%2B"),
    ]);
    let bytes = std::fs::read(segment(&state)).expect("the segment");
    for (needle, is_there) in [(&b"m/a"[..], false), (b"$SYS", false), (b"d/a", true)] {
        let is_found = bytes.windows(needle.len()).any(|window| window == needle);
        assert_eq!(is_found, is_there, "{}", String::from_utf8_lossy(needle));
    }
    server.kill();
    let server = Server::with(&settings);
    publish(&server, "m/a", "m new");
    publish(&server, "d/a", "d new");
    let events_after_crash =
        |target: &str, positions: &str, count: usize| -> Vec<(String, String)> {
            let mut stream = Stream::open(&server, target, &[("Last-Event-ID", positions)]);
            let events = (0..count).map(|_| stream.event().expect("an event"));
            events.map(|event| (event.kind, event.data)).collect()
        };
    for (target, positions) in targets.iter().zip(&positions).take(2) {
        let received = events_after_crash(target, positions, 2);
        assert_eq!(received[0].0, GAP_EVENT, "{target}");
        assert_eq!(received[1], messages(&["m new"])[0], "{target}");
    }
    for (target, positions) in targets.iter().zip(&positions).skip(2) {
        assert_eq!(
            events_after_crash(target, positions, 3),
            messages(&["d1", "d2", "d new"]),
            "{target}"
        );
    }
}

#[test]
fn crash_before_a_topic_became_durable_is_a_gap() {
    let state = State::new();
    let settings = format!("{PASSING}{}", state.settings());
    for clean in [true, false] {
        let server = Server::with(&settings);
        publish(&server, "m/a", "seen");
        let seen_position = first_position(&server, "m/a");
        publish(&server, "m/a", "missed");
        match clean {
            true => drop(server.stop()),
            false => server.kill(),
        }
        // Two crashes: the second one must not change the result.
        for _ in 0..2 {
            let server = Server::with(&state.settings());
            let mut stream =
                Stream::open(&server, "/sub/m/a", &[("Last-Event-ID", &seen_position)]);
            match clean {
                true => assert_eq!(stream.data(1), ["missed"]),
                false => assert_eq!(stream.event().expect("an event").kind, GAP_EVENT),
            }
            server.kill();
        }
        // The next round begins with a state of a server that was stopped, not killed.
        Server::with(&settings).stop();
        Server::with(&settings).stop();
    }
}

#[test]
fn messages_that_are_not_durable_survive_a_planned_restart_but_no_crash() {
    let state = State::new();
    let settings = format!("{PASSING}{}", state.settings());
    let server = Server::with(&settings);
    publish(&server, "m/a", "old");
    let seen_position = first_position(&server, "m/a");
    publish(&server, "m/a", "kept");
    server.stop();
    let server = Server::with(&settings);
    assert_eq!(
        messages_after(&server, "m/a", &seen_position, 1),
        messages(&["kept"])
    );
    publish(&server, "m/a", "lost");
    server.kill();
    let server = Server::with(&settings);
    publish(&server, "m/a", "new");
    let received = messages_after(&server, "m/a", &seen_position, 2);
    assert_eq!(
        (received[0].0.as_str(), received[1].1.as_str()),
        (GAP_EVENT, "new")
    );
}

#[test]
fn rules_that_change_the_topics_in_the_log_are_refused_by_a_reload() {
    let state = State::new();
    let server = Server::with(&state.settings());
    server.reload(&format!("shards = 2\n{PASSING}{}", state.settings()));
    server.await_log("changes with a restart only");
}

/// Continues the CRC32C checksum `seed` over these bytes.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
    !bytes
        .iter()
        .fold(!seed, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Changes these bytes in the last group of the log, and makes its checksum right again (`docs/internals/LOG-FORMAT.md`).
fn forge(state: &State, written: &[u8], changed: &[u8]) {
    let mut bytes = std::fs::read(segment(state)).expect("the segment");
    let word = |bytes: &[u8], offset: usize| {
        let word = bytes[offset..offset + 4].try_into().expect("four bytes");
        u32::from_le_bytes(word)
    };
    let (salt, mut group) = (word(&bytes, 12), 4096);
    let end = |bytes: &[u8], group| group + 32 + word(bytes, group) as usize;
    let next = |bytes: &[u8], group| end(bytes, group).next_multiple_of(8);
    while word(&bytes, next(&bytes, group)) != 0 {
        group = next(&bytes, group);
    }
    let end = end(&bytes, group);
    assert_eq!(
        crc32c(salt, &bytes[group + 8..end]),
        word(&bytes, group + 4)
    );
    let windows = bytes[group..end].windows(written.len());
    let offset = windows.into_iter().position(|window| window == written);
    let offset = group + offset.expect("the message is in the last group");
    bytes[offset..offset + written.len()].copy_from_slice(changed);
    let crc = crc32c(salt, &bytes[group + 8..end]).to_le_bytes();
    bytes[group + 4..group + 8].copy_from_slice(&crc);
    std::fs::write(segment(state), bytes).expect("the segment");
}

#[test]
fn impossible_message_on_disk_is_damage_although_its_checksum_is_right() {
    for (written, changed) in [
        ("text/needle", "text/need\r\n"),
        ("topic/of/it", "topic/of/#t"),
    ] {
        let state = State::new();
        let server = Server::with(&state.settings());
        publish(&server, "topic/of/it", "before");
        let fields = [("Content-Type", "text/needle")];
        let published = crate::support::http::once(
            &server,
            "POST",
            "/pub/topic/of/it",
            &fields,
            "with the content type",
        );
        assert!([201, 202].contains(&published.status));
        server.kill();
        forge(&state, written.as_bytes(), changed.as_bytes());
        let server = Server::with(&state.settings());
        server.await_log("a batch of the log cannot be read");
        // A content type of a message would stand in the head of a long-poll's answer.
        let target = "/sub/topic/of/it?since=oldest";
        let first = crate::support::http::once(&server, "GET", target, &[], "");
        assert_eq!(first.text(), "before");
        publish(&server, "topic/of/it", "after");
        let mut stream = Stream::open(&server, target, &[]);
        assert_eq!(stream.data(2), ["before", "after"]);
    }
}
