//! Tests webhooks with real receivers: their events and signatures, and receivers that fail, redirect, or do not answer.

use std::collections::BTreeSet;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_wire::mqtt::Version;
use serde_json::{Value, json};

use crate::support::mqtt::{Conn, plain_connect};
use crate::support::port::get;
use crate::support::stream::Stream;
use crate::support::webhook_receiver::{Mode, Receiver, Request, SECRET};
use crate::support::{Server, until};
use crate::tokens::{key_settings, now_s, token};

fn signature(signed: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed)
}

/// Rules and access by which everybody may subscribe, and members that leave at once.
fn settings(webhooks: &str) -> String {
    format!(
        "{webhooks}[[rule]]\nmatch = '#'\npresence = true\n[presence]\nleave_s = 0\n[interest]\ndebounce_s = 0\n\
         [access.anonymous]\nsubscribe = ['#']\n{}",
        key_settings()
    )
}

fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["event"].as_str());
    names.map(|name| name.expect("a name")).collect()
}

const OF_CLIENTS: &str = "private = true\nevents = ['client_connected', 'client_disconnected']";
const OF_TOPICS: &str = "private = true\nevents = ['channel_occupied', 'channel_vacated', 'member_added', 'member_removed']";
const OCCUPIED: &str = "private = true\nevents = ['channel_occupied', 'channel_vacated']";

#[test]
fn webhook_reports_subscribers_and_members_in_order_and_signs_each_request() {
    let receiver = Receiver::start(Mode::Status(204));
    let pusher = Receiver::start(Mode::Status(200));
    let filter = format!("{OF_TOPICS}\nmatch = ['chat/#']");
    let of_pusher = format!("{filter}\nformat = 'pusher'\nkey = 'app-key'");
    let webhooks = receiver.settings(&filter) + &pusher.settings(&of_pusher);
    let server = Server::with(&settings(&webhooks));
    receiver.await_event("resync_end");
    let claims =
        json!({"sub": "ann", "exp": now_s() + 600, "subscribe": ["#"], "presence_info": {"n": 1}});
    let bearer = format!("Bearer {}", token(claims));
    let headers = [("Authorization", &*bearer)];
    let other = Stream::open(&server, "/sub/other", &[]);
    let stream = Stream::open(&server, "/sub/chat/1", &headers);
    receiver.await_event("member_added");
    drop((stream, other));
    receiver.await_event("channel_vacated");
    let events = receiver.await_event("member_removed");
    let told: Vec<Value> = events
        .iter()
        .map(|event| json!([event["event"], event["topic"], event["user"], event["info"]]))
        .collect();
    let member = |name: &str| json!([name, "chat/1", "ann", {"n": 1}]);
    let topic = |name: &str| json!([name, "chat/1", null, null]);
    assert_eq!(told[0], json!(["resync", null, null, null]));
    assert_eq!(told[1], json!(["resync_end", null, null, null]));
    assert_eq!(
        told[2..4],
        [topic("channel_occupied"), member("member_added")]
    );
    assert_eq!(told.len(), 6, "{told:?}: the topic `other` is not matched");
    assert!(told[4..].contains(&member("member_removed")), "{told:?}");
    assert!(told[4..].contains(&topic("channel_vacated")), "{told:?}");

    let ids: BTreeSet<&str> = events.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), events.len());
    for request in receiver.requests() {
        let (id, time) = (
            request.header("webhook-id"),
            request.header("webhook-timestamp"),
        );
        assert_eq!(request.events()[0]["id"], id);
        assert!(time.parse::<u64>().expect("a time").abs_diff(now_s()) < 300);
        let tag = signature(format!("{id}.{time}.{}", request.body).as_bytes());
        let signed = format!("v1,{}", STANDARD.encode(tag.as_ref()));
        assert_eq!(request.header("webhook-signature"), signed);
        assert_eq!(
            (&request.json()["part"], &request.json()["parts"]),
            (&json!(0), &json!(1))
        );
    }

    let mut of_pusher = Vec::new();
    until("Pusher's events", || {
        of_pusher = pusher.events();
        of_pusher.len() == 6
    });
    let added = json!({"name": "member_added", "channel": "chat/1", "user_id": "ann"});
    assert_eq!(
        of_pusher[2],
        json!({"name": "channel_occupied", "channel": "chat/1"})
    );
    assert_eq!(of_pusher[3], added);
    for request in pusher.requests() {
        let tag = signature(request.body.as_bytes());
        let hex: String = tag.as_ref().iter().map(|it| format!("{it:02x}")).collect();
        assert_eq!(request.header("x-pusher-signature"), hex);
        assert_eq!(request.header("x-pusher-key"), "app-key");
        assert!(request.json()["time_ms"].is_u64());
    }
}

#[test]
fn webhook_of_clients_reports_connects_and_disconnects() {
    let receiver = Receiver::start(Mode::Status(200));
    let server = Server::with(&settings(&receiver.settings(OF_CLIENTS)));
    receiver.await_event("resync_end");
    let mut conn = Conn::to_server(&server, Version::V5);
    assert!(!conn.connect(&plain_connect(Version::V5, "sensor-7")));
    conn.leave();
    drop(conn);
    let events = receiver.await_event("client_disconnected");
    let of_name = |name: &'static str| events.iter().filter(move |it| it["event"] == name);
    let ended = of_name("client_disconnected").find(|it| it["client"]["client_id"] == "sensor-7");
    let ended = ended.expect("an event of this client");
    let is_same = |it: &&Value| it["client"]["connection"] == ended["client"]["connection"];
    let connected = of_name("client_connected").find(is_same);
    let connected = connected.expect("an event of this connection");
    assert_eq!(connected["client"]["address"], "127.0.0.1");
    assert!(ended["client"]["reason"].is_string());
}

#[test]
fn client_id_of_a_connection_outlives_a_resync() {
    let receiver = Receiver::start(Mode::Status(500));
    let webhook = receiver.settings(&format!("{OF_CLIENTS}\nretry_s = 1"));
    let server = Server::with(&settings(&webhook));
    until("a request", || !receiver.requests().is_empty());
    let mut conn = Conn::to_server(&server, Version::V5);
    assert!(!conn.connect(&plain_connect(Version::V5, "sensor-7")));
    until("a request after another was given up", || {
        let requests = receiver.requests();
        let ids: BTreeSet<&str> = requests.iter().map(|it| it.header("webhook-id")).collect();
        ids.len() >= 2
    });
    receiver.set(Mode::Status(200));
    receiver.await_event("resync_end");
    conn.leave();
    drop(conn);
    until("the end of this client's connection", || {
        let events = receiver.events();
        let mut ended = events
            .iter()
            .filter(|it| it["event"] == "client_disconnected");
        ended.any(|it| it["client"]["client_id"] == "sensor-7")
    });
}

/// Clients that connect more often than the endpoint takes it cause a resync of clients only.
#[test]
fn many_connects_cost_no_resync_of_topics() {
    let receiver = Receiver::start(Mode::Never);
    let all = "private = true\ntimeout_s = 1\nevents = ['channel_occupied', 'client_connected', 'client_disconnected']";
    let server = Server::with_shards(1, &settings(&receiver.settings(all)));
    until("a request of each lane", || receiver.requests().len() >= 2);
    // In total more than the 256 KiB that a shard keeps.
    for n in 0..800 {
        let mut conn = Conn::to_server(&server, Version::V5);
        let id = format!("{n:0200}");
        assert!(!conn.connect(&plain_connect(Version::V5, &id)));
        conn.leave();
    }
    let _stream = Stream::open(&server, "/sub/a", &[]);
    receiver.set(Mode::Status(200));
    receiver.await_event("channel_occupied");
    let resyncs = |subject: &str| {
        let requests = receiver.requests();
        let ids: BTreeSet<String> = (requests.iter().flat_map(Request::events))
            .filter(|it| it["event"] == "resync" && it["of"] == subject)
            .map(|it| it["id"].to_string())
            .collect();
        ids.len()
    };
    until("a resync of clients", || resyncs("clients") >= 2);
    assert_eq!(resyncs("topics"), 1);
}

#[test]
fn answer_status_is_accepted_before_its_body() {
    let receiver = Receiver::start(Mode::WithoutItsBody);
    let webhook = receiver.settings(&format!("{OCCUPIED}\ntimeout_s = 1"));
    let server = Server::with(&settings(&webhook));
    receiver.await_event("resync_end");
    let _stream = Stream::open(&server, "/sub/a", &[]);
    receiver.await_event("channel_occupied");
    let requests = receiver.requests();
    let ids: BTreeSet<&str> = requests.iter().map(|it| it.header("webhook-id")).collect();
    assert_eq!(ids.len(), requests.len(), "no request is repeated");
}

#[test]
fn endpoint_that_answers_by_single_bytes_fails_and_delays_no_other() {
    let slow = Receiver::start(Mode::ByBytes);
    let other = Receiver::start(Mode::Status(200));
    let webhooks = slow.settings(&format!("{OCCUPIED}\ntimeout_s = 1")) + &other.settings(OCCUPIED);
    let server = Server::with_admin(&settings(&webhooks));
    until("a request", || !slow.requests().is_empty());
    let _stream = Stream::open(&server, "/sub/a", &[]);
    other.await_event("channel_occupied");
    until("no answer in time", || {
        let listed = &get(server.admin(), "webhooks")["webhooks"][0];
        listed["last_answer"] == "no answer within 1 s"
    });
    slow.set(Mode::Status(200));
    slow.await_event("channel_occupied");
}

#[test]
fn request_without_a_good_answer_is_repeated_with_the_same_id_and_body() {
    let receiver = Receiver::start(Mode::Status(500));
    let server = Server::with_admin(&settings(&receiver.settings(OCCUPIED)));
    until("two requests", || receiver.requests().len() >= 2);
    let listed = &get(server.admin(), "webhooks")["webhooks"][0];
    assert_eq!(listed["waiting"], 2, "{listed}");
    assert_eq!(listed["last_answer"], "500 X");
    assert!(listed["failed"].as_u64() >= Some(1) && listed["waiting_s"].is_u64());
    let _stream = Stream::open(&server, "/sub/a", &[]);
    receiver.set(Mode::Status(200));
    receiver.await_event("channel_occupied");
    let requests = receiver.requests();
    let [first, second, .., last] = &requests[..] else {
        panic!("{} requests", requests.len());
    };
    let of = |request: &Request| {
        (
            request.header("webhook-id").to_string(),
            request.body.clone(),
        )
    };
    assert_eq!(of(first), of(second));
    assert_eq!(names(&first.events()), ["resync", "resync_end"]);
    assert_eq!(names(&last.events()), ["channel_occupied"]);
    until("three events are taken", || {
        let listed = &get(server.admin(), "webhooks")["webhooks"][0];
        (&listed["delivered"], &listed["waiting"]) == (&json!(3), &json!(0))
    });
    let other = settings(&receiver.settings(OF_TOPICS));
    server.reload(&format!("shards = 2\n{other}"));
    server.await_log("kept=webhook");
}

#[test]
fn redirect_is_not_followed_and_a_private_address_needs_the_setting() {
    let target = Receiver::start(Mode::Status(200));
    let redirects = Receiver::start(Mode::RedirectTo(target.address));
    let other = Receiver::start(Mode::Status(200));
    let private = other.settings("events = ['channel_occupied']");
    let webhooks = redirects.settings(OCCUPIED) + &private;
    let server = Server::with_admin(&settings(&webhooks));
    let answer = |number: usize| -> String {
        let listed = get(server.admin(), "webhooks");
        let answer = &listed["webhooks"][number]["last_answer"];
        answer.as_str().unwrap_or_default().to_string()
    };
    until("both have failed twice", || {
        let listed = get(server.admin(), "webhooks");
        let failed = |n: usize| listed["webhooks"][n]["failed"].as_u64();
        failed(0) >= Some(2) && failed(1) >= Some(2)
    });
    assert_eq!(answer(0), "307 X: redirects are not followed");
    assert!(answer(1).contains("private network"), "{}", answer(1));
    assert!(target.requests().is_empty() && other.requests().is_empty());
}

/// More events than a shard keeps happen while the endpoint does not answer. Then it gets the state as a whole.
#[test]
fn slow_endpoint_gets_a_resync_with_the_true_state() {
    const TOPICS: usize = 350;
    let receiver = Receiver::start(Mode::Never);
    let of_one_shard = format!("{OCCUPIED}\ntimeout_s = 1");
    let mut server = settings(&receiver.settings(&of_one_shard));
    server.push_str("[limits]\ntopic_bytes = 1_000\nsubscription_bytes = '2 MiB'\n");
    let server = Server::with_shards(1, &server);
    until("a request", || !receiver.requests().is_empty());
    // In total 280 KB, of which a shard keeps 256 KiB.
    let topics: BTreeSet<String> = (0..TOPICS).map(|n| format!("{n:0800}")).collect();
    let mut conn = Conn::to_server(&server, Version::V5);
    assert!(!conn.connect(&plain_connect(Version::V5, "many")));
    for topic in &topics {
        conn.subscribe(topic, 0);
    }
    receiver.set(Mode::Status(200));
    let mut known = BTreeSet::new();
    until("the true state", || {
        known.clear();
        for event in receiver.events() {
            let topic = || event["topic"].as_str().expect("a topic").to_string();
            match event["event"].as_str() {
                Some("resync") => known.clear(),
                Some("channel_occupied") => drop(known.insert(topic())),
                Some("channel_vacated") => drop(known.remove(&topic())),
                _ => {}
            }
        }
        known == topics
    });
    let listed = &get(server.admin(), "webhooks")["webhooks"][0];
    assert!(listed["resyncs"].as_u64() >= Some(2), "{listed}");
}
