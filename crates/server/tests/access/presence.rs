//! Tests who is present in a topic: what a request reads, what watchers are told, and who may do that.

use std::collections::BTreeMap;
use std::process::Command;

use crore_wire::mqtt::Version;
use serde_json::{Value, json};

use crate::support::http::{Conn, Response, once, publish};
use crate::support::mqtt::{self as packets, plain_connect};
use crate::support::port::get;
use crate::support::stream::Stream;
use crate::support::ws::{Ws, handshake};
use crate::support::{Server, connect_from, program, until};
use crate::tokens::{key_settings, now_s, token};

const OPEN: &str = "[[rule]]\nmatch = 'plain/#'\n[[rule]]\nmatch = '#'\npresence = true\n";
const CLOSE: u8 = 0x88;

/// A server on which tokens are needed, and on which everybody may subscribe.
fn closed(more: &str) -> Server {
    let everybody = "[access.anonymous]\nsubscribe = ['#']\ninfo = ['#']\n";
    let keys = key_settings();
    Server::with(&format!("{OPEN}{more}[access]\n{everybody}{keys}"))
}

fn bearer(user: &str, claims: Value) -> String {
    let mut all = json!({"sub": user, "exp": now_s() + 600, "subscribe": ["#"]});
    let all_claims = all.as_object_mut().expect("an object");
    all_claims.extend(claims.as_object().expect("an object").clone());
    format!("Bearer {}", token(all))
}

fn read(server: &Server, target: &str) -> Value {
    let answer = once(server, "GET", target, &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn counts(of: &Value) -> [u64; 3] {
    ["clients", "users", "listed"].map(|name| of[name].as_u64().expect("a count"))
}

fn await_members(server: &Server, topic: &str, count: usize) -> Vec<Value> {
    let mut members = Vec::new();
    until(&format!("{count} members of {topic}"), || {
        // One shard may have new rules before another.
        let answer = once(server, "GET", &format!("/presence/{topic}"), &[], "");
        if answer.status != 200 {
            return false;
        }
        members = answer.json()["members"].as_array().expect("a list").clone();
        members.len() == count
    });
    members
}

fn sse(server: &Server, topic: &str, headers: &[(&str, &str)]) -> Stream {
    let mut stream = Stream::open(server, &format!("/sub/{topic}"), headers);
    stream.conn.chunk();
    stream
}

/// A watcher that checks its events: only members that have not joined join, and only members that have joined leave.
struct Watcher {
    stream: Stream,
    members: BTreeMap<String, Value>,
    position: String,
}

impl Watcher {
    fn open(server: &Server, topic: &str, headers: &[(&str, &str)]) -> Watcher {
        Watcher {
            stream: Stream::open(server, &format!("/presence/{topic}"), headers),
            members: BTreeMap::new(),
            position: String::new(),
        }
    }

    fn next(&mut self) -> (String, Value) {
        let event = self.stream.event().expect("the stream goes on");
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        let id = || data["id"].as_str().expect("an id").to_string();
        match &*event.kind {
            "reset" => self.members.clear(),
            "join" => {
                let former = self.members.insert(id(), data.clone());
                assert_eq!(former, None, "{data} joins twice");
            }
            "leave" => assert!(self.members.remove(&id()).is_some(), "{data} leaves twice"),
            "whole" => assert_eq!(data["listed"], self.members.len()),
            "count" => {}
            kind => panic!("{kind} is no event of presence"),
        }
        self.position = event.id;
        (event.kind, data)
    }

    fn whole(&mut self) -> &mut Watcher {
        while self.next().0 != "whole" {}
        self
    }

    /// The next event, which must be of this kind, and whose member has this user.
    fn expect(&mut self, kind: &str, user: &str) -> Value {
        let (of, data) = self.next();
        let named = data["user"].as_str().unwrap_or_default();
        assert_eq!((&*of, named), (kind, user), "{data}");
        data
    }
}

#[test]
fn members_of_every_protocol_are_listed_with_user_info_and_time() {
    let settings = format!("{OPEN}[access]\n{}", key_settings());
    let server = Server::with(&format!(
        "{settings}[access.anonymous]\nsubscribe = ['#']\npresence = ['#']\ninfo = ['#']\n"
    ));
    assert_eq!(counts(&read(&server, "/presence/room")), [0, 0, 0]);
    let info = json!({"name": "Ann \"A\"", "tags": [1, null]});
    let ann = bearer("ann", json!({ "presence_info": info }));
    let _ws = Ws::open(&server, "/sub/room", &[("Authorization", &ann)]);
    await_members(&server, "room", 1);
    let _sse = sse(&server, "room", &[("Authorization", &ann)]);
    await_members(&server, "room", 2);
    let bob = bearer("bob", json!({}));
    let password = bob.strip_prefix("Bearer ").map(str::as_bytes);
    let mut mqtt = packets::Conn::to_server(&server, Version::V5);
    let mut connect = plain_connect(Version::V5, "device");
    connect.password = password;
    mqtt.connect(&connect);
    mqtt.subscribe("room", 0);
    await_members(&server, "room", 3);
    let mut other = packets::Conn::to_server(&server, Version::V311);
    other.connect(&plain_connect(Version::V311, "nobody"));
    other.subscribe("a", 0);
    other.subscribe("room", 1);
    let members = await_members(&server, "room", 4);
    let users: Vec<&str> = (members.iter())
        .map(|member| member["user"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(
        users,
        ["ann", "ann", "bob", ""],
        "in the order in which they came"
    );
    assert_eq!(members[0]["info"], info);
    assert_eq!(members[2].get("info"), None);
    for member in &members {
        let since = member["since"].as_u64().expect("a time");
        assert!(now_s().abs_diff(since) < 3_600, "{member}");
    }
    assert_eq!(counts(&read(&server, "/presence/room?stats=1")), [4, 3, 4]);
    let listed = Command::new(program())
        .args(["presence", "room", "--json", "--server", &server.url("")])
        .output()
        .expect("the program runs");
    let lines = String::from_utf8(listed.stdout).expect("text");
    let lines: Vec<Value> = (lines.lines())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines, members);
    // One that reads by filter, one that polls and one that reads the history are no members.
    let mut filter = packets::Conn::to_server(&server, Version::V5);
    filter.connect(&plain_connect(Version::V5, "filter"));
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/room", &[], "");
    server.await_subscribers("room", 5);
    once(&server, "GET", "/history/room", &[], "");
    assert_eq!(counts(&read(&server, "/presence/room?stats=1")), [4, 3, 4]);
    // To end the subscription, to disconnect and to close the socket properly are to leave at once.
    other.unsubscribe("room");
    mqtt.leave();
    await_members(&server, "room", 2);
    let mut ws = Ws::open(&server, "/sub/room", &[("Authorization", &bob)]);
    await_members(&server, "room", 3);
    ws.send(CLOSE, 1000u16.to_be_bytes());
    await_members(&server, "room", 2);
}

#[test]
fn watchers_get_the_members_and_then_each_change() {
    let server = closed("[presence]\nleave_s = 0\n");
    let ann = bearer("ann", json!({"presence": ["room"], "presence_info": 7}));
    let ann = [("Authorization", &*ann)];
    let bob = bearer("bob", json!({}));
    let first = sse(&server, "room", &ann);
    server_has(&server, &ann, 1);
    let mut watcher = Watcher::open(&server, "room", &ann);
    let kind = watcher.stream.head.header("content-type");
    assert_eq!(kind.as_deref(), Some("text/event-stream"));
    assert_eq!(watcher.next().0, "reset");
    assert_eq!(watcher.expect("join", "ann")["info"], 7);
    assert_eq!(watcher.next().0, "whole");
    let mut ws = Ws::open(&server, "/presence/room", &ann);
    let texts: Vec<Value> = (ws.texts(3).iter())
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect();
    assert_eq!(texts[0]["event"], "reset");
    assert_eq!(texts[1]["event"], "join");
    assert_eq!(counts(&texts[2]), [1, 1, 1]);
    let position = texts[2]["position"]
        .as_str()
        .expect("a position")
        .to_string();
    let second = sse(&server, "room", &[("Authorization", &bob)]);
    watcher.expect("join", "bob");
    let text = ws.message().text();
    assert!(
        text.contains(r#""event":"join""#) && text.contains("bob"),
        "{text}"
    );
    drop(first);
    watcher.expect("leave", "ann");
    drop(second);
    watcher.expect("leave", "bob");
    assert!(watcher.members.is_empty());
    // The WebSocket may come back with the position that it was told.
    ws.texts(2);
    drop(ws);
    let mut ws = Ws::open(&server, &format!("/presence/room?since={position}"), &ann);
    // Bob came and left meanwhile.
    let texts = ws.texts(1);
    assert!(
        texts[0].contains(r#""event":"leave""#) && texts[0].contains("ann"),
        "{texts:?}"
    );
}

/// Waits until the topic `room` has this many members.
fn server_has(server: &Server, headers: &[(&str, &str)], members: u64) {
    until("the members", || {
        let answer = once(server, "GET", "/presence/room?stats=1", headers, "");
        counts(&answer.json())[0] == members
    });
}

#[test]
fn watcher_that_comes_back_gets_only_what_it_missed_or_a_new_snapshot() {
    let server = Server::with(&format!("{OPEN}[presence]\nleave_s = 0\n"));
    let here = sse(&server, "room", &[]);
    await_members(&server, "room", 1);
    let mut watcher = Watcher::open(&server, "room", &[]);
    watcher.whole();
    let (members, position) = (watcher.members.clone(), watcher.position.clone());
    drop(watcher);
    let other = sse(&server, "room", &[]);
    await_members(&server, "room", 2);
    drop(here);
    let left = await_members(&server, "room", 1);
    let mut watcher = Watcher::open(&server, "room", &[("Last-Event-ID", &position)]);
    watcher.members = members;
    assert_eq!(
        (watcher.next().0, watcher.next().0),
        ("leave".into(), "join".into())
    );
    assert!(
        watcher
            .members
            .contains_key(left[0]["id"].as_str().expect("an id"))
    );
    let mut again = Watcher::open(&server, "room", &[("Last-Event-ID", &watcher.position)]);
    assert_eq!(again.next().0, "count", "nothing was missed");
    drop(again);
    for unknown in ["1-1", "ffffffff-0", &format!("{}9", watcher.position)] {
        let mut watcher = Watcher::open(&server, "room", &[("Last-Event-ID", unknown)]);
        assert_eq!(watcher.next().0, "reset", "{unknown}");
        assert_eq!(watcher.whole().members.len(), 1);
    }
    drop(other);
}

#[test]
fn reload_of_a_page_is_no_leave_and_a_closed_page_leaves_later() {
    let server = closed("[presence]\nleave_s = 3\n");
    let ann = bearer("ann", json!({"presence": ["room"]}));
    let ann = [("Authorization", &*ann)];
    let mut watcher = Watcher::open(&server, "room", &ann);
    watcher.whole();
    let mut ws = Ws::open(&server, "/sub/room", &ann);
    let id = watcher.expect("join", "ann")["id"].clone();
    for reload in 0..4 {
        match reload % 2 {
            // A browser closes the sockets of a page that it leaves with this code.
            0 => ws.send(CLOSE, 1001u16.to_be_bytes()),
            _ => drop(ws),
        }
        server.await_subscribers("room", 0);
        ws = Ws::open(&server, "/sub/room", &ann);
        server.await_subscribers("room", 1);
    }
    let bob = bearer("bob", json!({}));
    let _bob = Ws::open(&server, "/sub/room", &[("Authorization", &bob)]);
    watcher.expect("join", "bob");
    drop(ws);
    assert_eq!(watcher.expect("leave", "ann")["id"], id);
    assert_eq!(watcher.members.len(), 1);
}

#[test]
fn tags_tell_whether_anything_has_changed() {
    let server = Server::with(OPEN);
    let get = |target: &str, tag: &str| -> Response {
        once(&server, "GET", target, &[("If-None-Match", tag)], "")
    };
    let stream = sse(&server, "room", &[]);
    await_members(&server, "room", 1);
    for target in [
        "/presence/room",
        "/presence/room?stats=1",
        "/presence?topic=room",
    ] {
        let first = get(target, "\"x\"");
        let tag = first.header("etag").expect("a tag");
        assert_eq!(
            first.header("cache-control").as_deref(),
            Some("private, no-cache")
        );
        let same = get(target, &tag);
        assert_eq!((same.status, same.body.len()), (304, 0), "{target}");
        let head = Conn::open(&server).request("HEAD", target, &[], "");
        assert_eq!((head.status, head.header("etag")), (200, Some(tag)));
    }
    let tag = get("/presence/room", "").header("etag").expect("a tag");
    // The answer with counts only is another one, whichever was read first.
    let of_counts = get("/presence/room?stats=1", &tag);
    let of_counts = of_counts.header("etag").expect("another body, so a 200");
    let whole = get("/presence/room", &of_counts);
    assert_eq!(
        (whole.status, whole.header("vary").as_deref()),
        (200, Some("Origin, Accept"))
    );
    // Another topic's members are no change of this one.
    let _other = sse(&server, "other", &[]);
    await_members(&server, "other", 1);
    assert_eq!(get("/presence/room", &tag).status, 304);
    assert_eq!(get("/presence/room?stats=1", &tag).status, 200);
    let _second = sse(&server, "room", &[]);
    await_members(&server, "room", 2);
    assert_eq!(get("/presence/room", &tag).status, 200);
    drop(stream);
}

#[test]
fn many_members_are_read_in_pages_and_watched_completely() {
    const MEMBERS: usize = 1_300;
    let server = Server::with(
        "[[rule]]\nmatch = '#'\npresence = true\npresence_max = 5000\n[limits]\nconnections_max = 5000\n",
    );
    let all: Vec<Stream> = (0..MEMBERS).map(|_| sse(&server, "room", &[])).collect();
    until("all of them", || {
        counts(&read(&server, "/presence/room?stats=1")) == [1_300, 1, 1_300]
    });
    let (mut after, mut ids) = ("0".to_string(), Vec::new());
    loop {
        let page = once(
            &server,
            "GET",
            &format!("/presence/room?after={after}"),
            &[],
            "",
        );
        let members = page.json()["members"].as_array().expect("a list").clone();
        ids.extend(
            members
                .iter()
                .map(|it| it["id"].as_str().expect("an id").to_string()),
        );
        after = ids.last().expect("a member").clone();
        if page.header("crore-more").is_none() {
            break;
        }
    }
    assert_eq!(ids.len(), MEMBERS);
    let mut watcher = Watcher::open(&server, "room", &[]);
    let known = watcher.whole().members.keys().cloned();
    ids.sort();
    assert_eq!(known.collect::<Vec<String>>(), ids);
    drop(all);
}

#[test]
fn members_above_the_limit_are_only_counted_and_the_answer_says_so() {
    let server = Server::with(
        "[[rule]]\nmatch = '#'\npresence = true\npresence_max = 2\n[presence]\nleave_s = 0\n",
    );
    let mut watcher = Watcher::open(&server, "room", &[]);
    watcher.whole();
    let mut all: Vec<Stream> = (0..2).map(|_| sse(&server, "room", &[])).collect();
    await_members(&server, "room", 2);
    all.push(sse(&server, "room", &[]));
    until("the third is counted", || {
        counts(&read(&server, "/presence/room?stats=1")) == [3, 1, 2]
    });
    assert_eq!(await_members(&server, "room", 2).len(), 2);
    loop {
        let (kind, data) = watcher.next();
        if kind == "count" {
            assert_eq!(counts(&data), [3, 1, 2]);
            break;
        }
    }
    all.clear();
    until("all have left", || {
        counts(&read(&server, "/presence/room?stats=1")) == [0, 0, 0]
    });
    while !watcher.members.is_empty() {
        watcher.next();
    }
}

#[test]
fn requests_without_right_or_sense_are_refused() {
    let server = closed("[presence]\nwatchers_max = 2\n");
    let get = |target: &str, headers: &[(&str, &str)]| once(&server, "GET", target, headers, "");
    let stream = ("Accept", "text/event-stream");
    let ann = bearer("ann", json!({"presence": ["room", "plain/#"]}));
    let ann = ("Authorization", &*ann);
    let bob = bearer(
        "bob",
        json!({"info": ["#"], "interest": ["#"], "manage": ["#"]}),
    );
    let bob = ("Authorization", &*bob);
    for headers in [&[][..], &[stream]] {
        assert_eq!(get("/presence/room", headers).status, 401, "{headers:?}");
    }
    assert_eq!(get("/presence/room", &[bob]).status, 403);
    assert_eq!(get("/presence/room", &[bob, stream]).status, 403);
    assert_eq!(get("/presence/other", &[ann]).status, 403);
    assert_eq!(get("/presence/room", &[ann]).status, 200);
    let mut upgrade = Conn::open(&server);
    upgrade.ask("GET", "/presence/room", &handshake(&[bob]), "");
    assert_eq!(upgrade.head().status, 403);
    for (target, status) in [
        ("/presence", 400),
        ("/presence/", 400),
        ("/presence/room%00", 400),
        ("/presence/a%2fb", 400),
        ("/presence/room/+", 400),
        ("/presence/room/%23", 400),
        ("/presence?topic=room&topic=other", 403),
        ("/presence/room?stats=yes", 400),
        ("/presence/room?after=x", 400),
        ("/presence/room?match=x", 400),
        ("/presence/plain/x", 404),
    ] {
        assert_eq!(get(target, &[ann]).status, status, "{target}");
    }
    let wrong = get("/presence/room?since=live", &[ann, stream]);
    assert_eq!(wrong.status, 400, "{wrong:?}");
    assert_eq!(
        once(&server, "POST", "/presence/room", &[ann], "x").status,
        405
    );
    // What others are told of a member is limited, and a token with more is refused whole.
    let long = bearer("eve", json!({"presence_info": "i".repeat(1_100)}));
    let refused = get("/presence/room", &[("Authorization", &long)]);
    assert_eq!(refused.status, 401, "{refused:?}");
    // There are as many watchers as may be. Requests that do not watch are answered.
    let one = Stream::open(&server, "/presence/room", &[ann]);
    let two = Ws::open(&server, "/presence/room", &[ann]);
    let mut third = Conn::open(&server);
    third.ask("GET", "/presence/room", &handshake(&[ann]), "");
    assert_eq!(third.head().status, 503);
    let shed = get("/presence/room", &[ann, stream]);
    assert!(
        shed.status == 200 && shed.text().starts_with("retry: "),
        "{shed:?}"
    );
    assert_eq!(get("/presence/room", &[ann]).status, 200);
    drop((one, two));
    until("room again", || {
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/presence/room", &handshake(&[ann]), "");
        conn.head().status == 101
    });
}

#[test]
fn token_with_a_name_with_control_characters_or_info_of_a_megabyte_is_refused() {
    let server = closed("");
    let status = |user: &str, info: Value| {
        let token = bearer(user, json!({"presence": ["room"], "presence_info": info}));
        let headers = [("Authorization", &*token)];
        once(&server, "GET", "/presence/room", &headers, "").status
    };
    assert_eq!(status("eve", json!(1)), 200);
    for user in ["eve\n", "\u{0}", "a\u{7f}b", "\u{9b}31m"] {
        assert_eq!(status(user, json!(1)), 401, "{user:?}");
    }
    assert_eq!(status("eve", json!("i".repeat(1 << 20))), 431);
    // Control characters in info stay inside of its text.
    let info = json!("\u{0}\n\u{1b}[31m");
    let ann = bearer("ann", json!({"presence": ["room"], "presence_info": info}));
    let headers = [("Authorization", &*ann)];
    let mut watcher = Watcher::open(&server, "room", &headers);
    watcher.whole();
    let _ann = sse(&server, "room", &headers);
    assert_eq!(watcher.expect("join", "ann")["info"], info);
}

#[test]
fn join_storm_of_one_address_ends_at_its_limit_and_others_come_and_are_told() {
    let server = Server::with(
        "[[rule]]\nmatch = '#'\npresence = true\n[presence]\nleave_s = 0\n[limits]\nconnections_per_address_max = 40\n",
    );
    let mut watcher = Watcher::open(&server, "room", &[]);
    watcher.whole();
    let storm = (0..100).map(|_| {
        let stream = connect_from(3, server.address());
        let mut conn = Conn::from_stream(stream, &server);
        conn.ask("GET", "/sub/room", &handshake(&[]), "");
        let status = conn.head().status;
        (conn, status)
    });
    let storm: Vec<(Conn, u16)> = storm.collect();
    let of = |status: u16| storm.iter().filter(|(_, it)| *it == status).count();
    assert_eq!((of(101), of(429)), (40, 60));
    // One connection that joins and leaves without end.
    let mut mqtt = packets::Conn::to_server(&server, Version::V5);
    mqtt.connect(&plain_connect(Version::V5, "storm"));
    for _ in 0..1_000 {
        mqtt.subscribe("room", 0);
        mqtt.unsubscribe("room");
    }
    let mut ann = Ws::open(&server, "/sub/room", &[]);
    await_members(&server, "room", 41);
    publish(&server, "room", "hello");
    assert_eq!(ann.frame().text(), "hello");
    while watcher.members.len() != 41 {
        watcher.next();
    }
    drop(storm);
    await_members(&server, "room", 1);
    while watcher.members.len() != 1 {
        watcher.next();
    }
}

#[test]
fn new_rules_make_and_unmake_members() {
    let settings = |presence: bool| format!("[[rule]]\nmatch = 'room'\npresence = {presence}\n");
    let server = Server::with_admin(&settings(false));
    let _stream = sse(&server, "room", &[]);
    let mut mqtt = packets::Conn::to_server(&server, Version::V5);
    mqtt.connect(&plain_connect(Version::V5, "device"));
    mqtt.subscribe("room", 0);
    mqtt.subscribe("other", 0);
    assert_eq!(once(&server, "GET", "/presence/room", &[], "").status, 404);
    server.reload(&format!("shards = 2\n{}", settings(true)));
    until("presence is on", || {
        once(&server, "GET", "/presence/room", &[], "").status == 200
    });
    let members = await_members(&server, "room", 2);
    let of_admin = get(server.admin(), "topic/presence?name=room&limit=1");
    assert_eq!(
        (&of_admin["clients"], &of_admin["users"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(of_admin["members"][0]["connection"], members[0]["client"]);
    assert_eq!(of_admin["members"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        of_admin["next"].to_string(),
        members[0]["id"].as_str().expect("an id")
    );
    let mut watcher = Watcher::open(&server, "room", &[]);
    watcher.whole();
    let mut ws = Ws::open(&server, "/presence/room", &[]);
    ws.texts(4);
    server.reload(&format!("shards = 2\n{}", settings(false)));
    until("presence is off", || {
        once(&server, "GET", "/presence/room", &[], "").status == 404
    });
    // Watchers are told that nothing more will come. Before it the members may leave.
    assert_eq!(ws.closed(), Some(4404));
    while let Some(event) = watcher.stream.event() {
        assert_eq!(event.kind, "leave");
    }
    publish(&server, "room", "x");
    server.reload(&format!("shards = 2\n{}", settings(true)));
    until("presence is on again", || {
        once(&server, "GET", "/presence/room", &[], "").status == 200
    });
    await_members(&server, "room", 2);
}
