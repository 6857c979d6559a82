//! What `/metrics` and the stream of stats say, and that the documents name just what is there.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::port::{ask, eventually, get, line, metric, stream};
use crate::support::Server;

fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all series, without labels.
fn series(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split([' ', '{']).next().unwrap().to_string())
        .collect()
}

/// All words of a text that look like one of our metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| word.starts_with("crore_") && word.len() > 6);
    ours.map(ToString::to_string).collect()
}

#[test]
fn the_table_and_the_dashboard_name_the_metrics_that_there_are() {
    let server = Server::with_admin("");
    let answer = ask(server.admin(), "GET /metrics", None);
    assert!(
        answer.head.contains("application/openmetrics-text"),
        "{}",
        answer.head
    );
    assert!(answer.body.ends_with("# EOF\n"));
    let there = series(&answer.body);
    assert!(there.len() > 40, "{there:?}");
    let text = document("docs/OPERATIONS.md");
    let table: String = text
        .lines()
        .filter(|line| line.starts_with("| `crore_"))
        .map(|line| line.split('`').nth(1).unwrap().to_string() + "\n")
        .collect();
    let table = named(&table);
    // A histogram is one row.
    let rows: BTreeSet<String> = there
        .iter()
        .map(|name| match name.strip_prefix("crore_delivery_seconds") {
            Some(_) => "crore_delivery_seconds".to_string(),
            None => name.clone(),
        })
        .collect();
    assert_eq!(table, rows, "docs/OPERATIONS.md and /metrics");
    let dashboard: Value = serde_json::from_str(&document("examples/grafana/crore.json")).unwrap();
    let mut queries = String::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for target in panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten()
    {
        queries.push_str(target["expr"].as_str().unwrap());
        queries.push('\n');
    }
    let asked = named(&queries);
    assert!(asked.len() > 10, "{asked:?}");
    let unknown: Vec<_> = asked.difference(&there).collect();
    assert!(unknown.is_empty(), "the dashboard asks for {unknown:?}");
}

#[test]
fn counters_follow_what_clients_do() {
    let server = Server::with_admin("");
    let admin = server.admin();
    let readers = [(); 3].map(|()| stream(server.address(), "/sub/news"));
    let sse = || metric(admin, "crore_connections{transport=\"sse\"}");
    eventually("three event streams", || {
        sse().filter(|count| *count == 3.0)
    });
    for _ in 0..5 {
        assert!(ask(server.address(), "POST /pub/news", Some("{}")).status < 300);
    }
    eventually("fifteen deliveries", || {
        metric(admin, "crore_delivered_messages_total").filter(|count| *count == 15.0)
    });
    assert_eq!(metric(admin, "crore_published_messages_total"), Some(5.0));
    assert_eq!(metric(admin, "crore_published_bytes_total"), Some(10.0));
    assert_eq!(metric(admin, "crore_delivery_seconds_count"), Some(15.0));
    assert_eq!(
        metric(admin, "crore_delivery_seconds_bucket{le=\"+Inf\"}"),
        Some(15.0)
    );
    assert_eq!(metric(admin, "crore_log_messages"), Some(5.0));
    assert!(metric(admin, "crore_sent_bytes_total").unwrap() > 15.0 * 10.0);
    drop(readers);
    eventually("three ends by their peers", || {
        metric(admin, "crore_closed_connections_total{reason=\"peer\"}")
            .filter(|count| *count >= 3.0)
    });
    eventually("no event stream", || sse().filter(|count| *count == 0.0));
    assert_eq!(ask(server.address(), "PATCH /pub/news", None).status, 405);
    let refused = ask(server.address(), "GET nowhere", None);
    assert_eq!(refused.status, 400, "{}", refused.body);
    eventually("a refusal", || {
        metric(admin, "crore_closed_connections_total{reason=\"refused\"}")
            .filter(|count| *count >= 1.0)
    });
}

#[test]
fn stats_stream_once_a_second_and_say_what_goes_on() {
    let server = Server::with_admin("");
    let _reader = stream(server.address(), "/sub/a");
    let mut stats = stream(server.admin(), "/api/v1/stats");
    let mut next = || loop {
        let line = line(&mut stats);
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str::<Value>(data).unwrap();
        }
    };
    // The first one comes at once, and the second one perhaps too.
    let (first, _, mut second) = (next(), next(), next());
    assert!(second["time_ms"].as_u64() > first["time_ms"].as_u64());
    assert_eq!(second["shards"].as_array().unwrap().len(), 2);
    for _ in 0..60 {
        assert!(ask(server.address(), "POST /pub/a", Some("{}")).status < 300);
        second = next();
        let seen = second["connections"]["by_transport"]["sse"] == 1;
        if seen && second["messages"]["out_total"].as_u64() >= Some(1) {
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
    // The same without a stream.
    assert_eq!(get(server.admin(), "stats")["version"], second["version"]);
}
