//! Tests `/metrics` and the stream of stats.

use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{ReasonCode, Version};
use serde_json::Value;

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message};
use crate::support::port::{ask, await_metric, get, line, metric, raw, stream};
use crate::support::state::State;
use crate::support::{Server, eventually};

#[test]
fn metrics_are_prometheus_text_or_openmetrics_as_requested() {
    let server = Server::with_admin("");
    let admin = server.admin();
    let prometheus = "text/plain; version=0.0.4; charset=utf-8";
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    for (accept, content_type) in [
        ("", prometheus),
        ("*/*", prometheus),
        ("text/html,*/*;q=0.8", prometheus),
        ("text/plain;version=0.0.4", prometheus),
        ("application/openmetrics-text;q=0, text/plain", prometheus),
        (
            "text/plain;version=0.0.4, application/openmetrics-text;q=0.5",
            prometheus,
        ),
        ("application/openmetrics-text", open_metrics),
        // The Accept headers of Prometheus 2 and 3.
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            open_metrics,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.2",
            open_metrics,
        ),
    ] {
        let headers = format!("Host: {admin}\r\nAccept: {accept}\r\n");
        let answer = raw(admin, "GET /metrics", &headers, None);
        let is_type = format!("content-type: {content_type}");
        assert!(
            answer.head.to_lowercase().contains(&is_type),
            "{accept}: {}",
            answer.head
        );
        assert_eq!(
            answer.body.ends_with("# EOF\n"),
            content_type == open_metrics,
            "{accept}"
        );
    }
    let answer = ask(admin, "GET /metrics", None);
    let types = answer.body.matches("# TYPE crore_").count();
    assert!(types > 80, "{types}: {}", answer.body);
    assert_eq!(types, answer.body.matches("# HELP crore_").count());
    for line in [
        concat!(
            "crore_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1\n"
        ),
        "# TYPE crore_accepted_connections_total counter\n",
        "crore_accepted_connections_total 0\n",
        "crore_shard_turns_total{shard=\"1\"}",
        "crore_limit_used{name=\"limits.connections_max\",unit=\"connections\"} 0\n",
    ] {
        assert!(answer.body.contains(line), "{line}: {}", answer.body);
    }
}

#[test]
fn counters_follow_what_clients_do() {
    let server = Server::with_admin("");
    let admin = server.admin();
    let readers = [(); 3].map(|()| stream(server.address(), "/sub/news"));
    let sse = "crore_connections{transport=\"sse\"}";
    await_metric(admin, sse, 3.0);
    for _ in 0..5 {
        let published = ask(server.address(), "POST /pub/news", Some("{}"));
        assert_eq!(published.status, 201);
    }
    // Each shard reports its counters when its turn comes, so the test waits for the values.
    for (name, value) in [
        ("crore_delivered_messages_total", 15.0),
        ("crore_published_messages_total", 5.0),
        ("crore_published_bytes_total", 10.0),
        ("crore_delivery_seconds_count", 15.0),
        ("crore_delivery_seconds_bucket{le=\"+Inf\"}", 15.0),
        ("crore_log_messages", 5.0),
    ] {
        await_metric(admin, name, value);
    }
    assert!(metric(admin, "crore_sent_bytes_total").unwrap() > 15.0 * 10.0);
    drop(readers);
    eventually("three ends by their peers", || {
        metric(admin, "crore_closed_connections_total{reason=\"peer\"}")
            .filter(|count| *count >= 3.0)
    });
    await_metric(admin, sse, 0.0);
    assert_eq!(ask(server.address(), "PATCH /pub/news", None).status, 405);
    let refused = ask(server.address(), "GET nowhere", None);
    assert_eq!(refused.status, 400, "{}", refused.body);
    await_metric(
        admin,
        "crore_closed_connections_total{reason=\"refused\"}",
        1.0,
    );
}

#[test]
fn stats_are_streamed_once_a_second_with_current_values() {
    let server = Server::with_admin("");
    let _reader = stream(server.address(), "/sub/a");
    let mut stats = stream(server.admin(), "/api/v1/stats");
    let mut next_sample = || loop {
        let line = line(&mut stats);
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str::<Value>(data).unwrap();
        }
    };
    // The first sample comes at once, and the second one perhaps too.
    let (first, _, mut second) = (next_sample(), next_sample(), next_sample());
    assert!(second["time_ms"].as_u64() > first["time_ms"].as_u64());
    assert_eq!(second["shards"].as_array().unwrap().len(), 2);
    for _ in 0..60 {
        assert_eq!(ask(server.address(), "POST /pub/a", Some("{}")).status, 201);
        second = next_sample();
        let is_counted = second["connections"]["by_transport"]["sse"] == 1;
        if is_counted && second["messages"]["out_total"].as_u64() >= Some(1) {
            break;
        }
    }
    assert!(
        second["messages"]["in_total"].as_u64() >= Some(1),
        "{second}"
    );
    assert_eq!(second["connections"]["by_transport"]["sse"], 1, "{second}");
    assert_eq!(second["topics"], 1);
    let limits = second["limits"].as_array().unwrap();
    let names: Vec<_> = limits
        .iter()
        .map(|limit| limit["name"].as_str().unwrap())
        .collect();
    for name in [
        "limits.connections_max",
        "limits.connections_per_shard",
        "limits.log_bytes",
        "memory",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    // The same sample without a stream.
    assert_eq!(get(server.admin(), "stats")["version"], second["version"]);
}

#[test]
fn stats_show_disk_use_only_with_durable_messages() {
    assert!(get(Server::with_admin("").admin(), "stats")["disk"].is_null());
    let state = State::new();
    let server = Server::with_admin(&state.settings());
    let mut stats = stream(server.admin(), "/api/v1/stats");
    // Rates are those of the last second, which may be over when they are read. So the test publishes until they are above zero.
    let disk = loop {
        let answer = ask(server.address(), "POST /pub/a", Some("{}"));
        assert_eq!(answer.status, 202, "{}", answer.body);
        let line = line(&mut stats);
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let mut stats = serde_json::from_str::<Value>(data).unwrap();
        if stats["disk"]["syncs_per_s"].as_f64() > Some(0.0) {
            break stats["disk"].take();
        }
    };
    assert!(disk["batches_per_sync"].as_f64() >= Some(1.0), "{disk}");
    let mean = disk["sync_us_mean"].as_f64().unwrap();
    assert!(
        0.0 < mean && disk["sync_us_p99"].as_u64() > Some(0),
        "{disk}"
    );
    // The log has one segment in use, and two that are prepared.
    let log = disk["log_bytes"].as_u64().unwrap();
    assert!(
        log >= 3 << 20 && disk["base_bytes"].as_u64() > Some(0),
        "{disk}"
    );
    assert_eq!(disk["full"], false);
    assert!(disk["recovery_s"].is_f64());
}

#[test]
fn refused_origins_are_counted_and_a_few_are_named_in_the_log() {
    let server = Server::with_admin("");
    let (address, admin) = (server.address(), server.admin());
    let origin = |origin: &str| {
        let headers = format!("Host: {address}\r\nOrigin: {origin}\r\n");
        assert_eq!(raw(address, "POST /pub/a", &headers, Some("x")).status, 403);
    };
    let host = |host: &str| {
        let headers = format!("Host: {host}\r\n");
        assert_eq!(raw(address, "GET /pub/a", &headers, None).status, 403);
    };
    let assert_logged = |assert_logged: &str, setting: &str| {
        eventually(assert_logged, || {
            let log = server.log();
            let line = log.lines().find(|line| line.ends_with(assert_logged))?;
            assert!(line.contains(setting), "{line}");
            Some(())
        });
    };
    origin("http://\u{e9}.example");
    host(&"h".repeat(200));
    // The log shows the origin in ASCII and cut, and names the setting that would allow it.
    let (first, cut) = (r"http://\xc3\xa9.example", "h".repeat(100));
    assert_logged(&format!("example={first}"), "http.allowed_origins");
    assert_logged(&format!("example={cut}"), "http.hosts");
    // Another origin soon after is named too.
    origin("http://second.example");
    host("second.example");
    assert_logged("example=http://second.example", "http.allowed_origins");
    assert_logged("example=second.example", "http.hosts");
    // The same origins are only counted now, and so are many others.
    origin("http://second.example");
    for n in 0..20 {
        origin(&format!("http://other-{n}.example"));
    }
    eventually("all are counted", || {
        metric(admin, "crore_refused_origins_total").filter(|count| *count == 23.0)
    });
    let named_origins = || server.log().matches("web pages of other origins").count();
    assert!(named_origins() <= 4, "{}", server.log());
}

#[test]
fn refusals_are_counted_by_their_reason_in_every_protocol() {
    let server = Server::with_admin("");
    let (address, admin) = (server.address(), server.admin());
    let batch = "{\"topic\": \"$own\", \"data\": \"x\"}\n{\"topic\": \"a/+\", \"data\": \"x\"}\n";
    let ndjson = "Host: localhost\r\nContent-Type: application/x-ndjson\r\n";
    let reserved = raw(address, "POST /pub/$own", "Host: localhost\r\n", Some("x"));
    assert_eq!(reserved.status, 403);
    assert_eq!(raw(address, "POST /pub", ndjson, Some(batch)).status, 403);
    let assert_logged = raw(address, "GET /sub/a%2B", "Host: localhost\r\n", None);
    assert_eq!(assert_logged.status, 400);
    let posted = raw(address, "POST /history/a", "Host: localhost\r\n", Some("x"));
    assert_eq!(posted.status, 405);
    assert_eq!(raw(address, "GET /sub/a", "", None).status, 400, "no Host");

    let broker = Broker::Crore(server);
    let mut conn = Conn::connected(&broker, Version::V5, "it");
    conn.publish(&message("$own", 1, 1, b"x"));
    assert_eq!(conn.packet().ack(PubAck), (1, ReasonCode::NOT_AUTHORIZED));
    conn.publish(&message("a/\u{1}", 1, 2, b"x"));
    let invalid = (2, ReasonCode::TOPIC_NAME_INVALID);
    assert_eq!(conn.packet().ack(PubAck), invalid);
    assert_eq!(
        conn.subscribe("a\u{1}/#", 0),
        ReasonCode::TOPIC_FILTER_INVALID
    );
    for (reason, transport, count) in [
        ("Reserved", "http", 2.0),
        ("Reserved", "mqtt", 1.0),
        ("BadName", "http", 2.0),
        ("Method", "http", 1.0),
        ("BadHead", "http", 1.0),
        ("BadName", "mqtt", 2.0),
    ] {
        let metric =
            format!("crore_refusals_total{{reason=\"{reason}\",transport=\"{transport}\"}}");
        await_metric(admin, &metric, count);
    }
}
