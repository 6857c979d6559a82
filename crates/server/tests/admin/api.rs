//! Tests the admin API against its OpenAPI description. The test walks every path, method and status; every answer has the fields that its
//! schema names and no others.

use std::collections::BTreeSet;
use std::io::{BufReader, Write as _};
use std::net::TcpStream;

use crore_wire::mqtt::Version;
use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::mqtt::Conn;
use crate::support::port::{Answer, ask, get, raw, stream};
use crate::support::{Server, eventually, until};

/// The maximum of open tails (streams of a topic's messages in the console).
const TAILS: usize = 64;

/// Checks a value against a schema. Panics with the place of the first difference.
fn assert_matches(api: &Value, schema: &Value, value: &Value, path: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().expect("a name");
        return assert_matches(api, &api["components"]["schemas"][name], value, path);
    }
    if let Some(alternatives) = schema["oneOf"].as_array() {
        assert!(
            alternatives
                .iter()
                .any(|schema_of_value| schema_of_value["type"] != "null"),
            "{path}"
        );
        if !value.is_null() {
            let schema_of_value = alternatives
                .iter()
                .find(|schema_of_value| schema_of_value["type"] != "null");
            assert_matches(api, schema_of_value.expect("a schema"), value, path);
        }
        return;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_allowed = kinds.contains(&kind) || kind == "integer" && kinds.contains(&"number");
    assert!(
        is_allowed || kinds.is_empty(),
        "{path} is {value}, not {kinds:?}"
    );
    if let Some(list) = value.as_array() {
        list.iter().for_each(|schema_of_value| {
            assert_matches(api, &schema["items"], schema_of_value, path)
        });
    }
    let (Some(fields), Some(described)) = (value.as_object(), schema["properties"].as_object())
    else {
        return;
    };
    let names = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(fields), names(described), "{path}");
    for (name, value) in fields {
        assert_matches(api, &described[name], value, &format!("{path}.{name}"));
    }
}

/// Records which answers of the description were seen.
struct ApiCalls {
    api: Value,
    documented_calls_made: BTreeSet<(String, String, String)>,
}

impl ApiCalls {
    /// Records an answer, and checks it against the description.
    fn saw(&mut self, method: &str, path: &str, answer: &Answer) {
        let status = answer.status.to_string();
        let described = &self.api["paths"][path][method.to_lowercase()]["responses"][&status];
        assert!(
            described.is_object(),
            "{method} {path}: {status} is not described: {}",
            answer.body
        );
        let schema = &described["content"]["application/json"]["schema"];
        if schema.is_object() {
            assert_matches(&self.api, schema, &answer.json(), path);
        }
        self.documented_calls_made
            .insert((path.to_string(), method.to_lowercase(), status));
    }

    /// Sends a request, and expects this status.
    fn ask(
        &mut self,
        server: &Server,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&str>,
        status: u16,
    ) -> Answer {
        let line = format!(
            "{method} {}{query}",
            path.split('{').next().expect("a path")
        );
        let answer = ask(server.admin(), &line, body);
        assert_eq!(answer.status, status, "{line} {body:?}: {}", answer.body);
        self.saw(method, path, &answer);
        answer
    }

    /// Answers that the description names and that no request received.
    fn missed(&self) -> Vec<(String, String, String)> {
        let mut missed = Vec::new();
        let mut ids = BTreeSet::new();
        for (path, methods) in self.api["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                let id = operation["operationId"].as_str().expect("a name");
                assert!(ids.insert(id), "{method} {path}: another one is {id}");
                let responses = operation["responses"].as_object().expect("responses");
                for (status, response) in responses {
                    let words = response["description"].as_str().unwrap_or_default();
                    assert_ne!(words, "", "{method} {path}: {status}");
                    let call = (path.clone(), method.clone(), status.clone());
                    if !self.documented_calls_made.contains(&call) {
                        missed.push(call);
                    }
                }
            }
        }
        missed
    }
}

#[test]
fn server_gives_every_answer_of_the_api_description() {
    let server = Server::with_admin(
        "[limits]\ntopics_max = 4\nmessage_bytes = 1000\n[drain]\nrate_per_s = 1\ndeadline_s = 600\n",
    );
    let mut calls = ApiCalls {
        api: get(server.admin(), "openapi.json"),
        documented_calls_made: BTreeSet::new(),
    };
    assert_eq!(calls.api["openapi"], "3.1.0");
    // By the description a token is optional, since a server may be set up without tokens.
    assert_eq!(calls.api["security"], json!([{}, {"token": []}]));
    let fields = &calls.api["components"]["schemas"]["ToPublish"]["properties"];
    assert_eq!(fields["data"]["maxLength"], 1000);
    assert_eq!(fields["topic"]["maxLength"], 255);
    calls.ask(&server, "GET", "/api/v1/openapi.json", "", None, 200);

    call_publish(&mut calls, &server);
    call_topics(&mut calls, &server);
    call_connections(&mut calls, &server);

    for (query, status) in [("", 200), ("?limit=0", 400)] {
        calls.ask(&server, "GET", "/api/v1/sessions", query, None, status);
    }
    let broker = Broker::Crore(server);
    Conn::open(&broker, Version::V5).resume("away");
    let Broker::Crore(server) = broker else {
        unreachable!("it was just made");
    };
    let session = "/api/v1/session";
    until("it is away", || {
        let line = format!("GET {session}?client_id=away");
        ask(server.admin(), &line, None).status == 200
    });
    for (query, status) in [
        ("?client_id=away", 200),
        ("?client_id=none", 404),
        ("", 400),
    ] {
        calls.ask(&server, "GET", session, query, None, status);
        calls.ask(&server, "DELETE", session, query, None, status);
    }
    calls.ask(&server, "GET", "/api/v1/rules", "", None, 200);
    calls.ask(&server, "GET", "/api/v1/webhooks", "", None, 200);
    calls.ask(&server, "GET", "/api/v1/config", "", None, 200);
    calls.ask(&server, "GET", "/api/v1/stats", "", None, 200);
    calls.ask(&server, "GET", "/api/v1/stats/recent", "", None, 200);
    calls.ask(&server, "GET", "/metrics", "", None, 200);
    calls.ask(&server, "GET", "/api/v1/tail", "", None, 400);
    call_tails(&mut calls, &server);
    call_revocations(&mut calls, &server);

    calls.ask(&server, "POST", "/api/v1/reload", "", Some("{}"), 200);
    std::fs::write(server.settings_file(), "shards = 'many'").expect("a settings file");
    calls.ask(&server, "POST", "/api/v1/reload", "", Some("{}"), 422);
    let _readers: Vec<_> = (0..30)
        .map(|_| stream(server.address(), "/sub/a/b"))
        .collect();
    calls.ask(&server, "POST", "/api/v1/drain", "", Some("{}"), 202);

    calls.ask(&server, "GET", "/api/v1/cluster", "", None, 404);
    let mut missed = calls.missed();
    // The tests of the cluster check the answers that only a node of a cluster gives.
    let of_a_node = |path: &str, status: &str| {
        (path, status) == ("/api/v1/cluster", "200")
            || path.starts_with("/api/v1/revocations") && status == "503"
    };
    missed.retain(|(path, _, status)| !of_a_node(path, status));
    assert!(missed.is_empty(), "described and never seen: {missed:?}");
}

fn call_revocations(calls: &mut ApiCalls, without: &Server) {
    let (list, entry) = ("/api/v1/revocations", "/api/v1/revocations/{id}");
    let ann = Some(r#"{"user": "ann"}"#);
    calls.ask(without, "GET", list, "", None, 409);
    calls.ask(without, "POST", list, "", ann, 409);
    calls.ask(without, "DELETE", entry, "user:ann", None, 409);
    let file = format!("revoked-{}.json", std::process::id());
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let settings = format!("[access]\nrevoked = '{}'\n", file.display());
    let server = &Server::with_admin(&settings);
    calls.ask(server, "POST", list, "", ann, 200);
    calls.ask(server, "POST", list, "", Some("{}"), 400);
    let unnamed = raw(
        server.admin(),
        &format!("POST {list}"),
        &format!("Host: {}\r\n", server.admin()),
        Some("{}"),
    );
    calls.saw("POST", list, &unnamed);
    calls.ask(server, "GET", list, "", None, 200);
    calls.ask(server, "DELETE", entry, "user:ann", None, 200);
    calls.ask(server, "DELETE", entry, "user:ann", None, 404);
}

fn call_publish(calls: &mut ApiCalls, server: &Server) {
    let admin = server.admin();
    let publish = "/api/v1/publish";
    for (body, status) in [
        (
            json!({"topic": "a/b", "data": "x", "event": "e", "key": "k", "content_type": "text/plain"}),
            200,
        ),
        (
            json!({"topic": "a/b", "data_base64": "/w==", "ttl_s": 60}),
            200,
        ),
        (json!({"topic": "a/b", "data": "x", "retain": true}), 200),
        (json!({"topic": "a/b"}), 400),
        (
            json!({"topic": "a/b", "data": "x", "data_base64": "eA=="}),
            400,
        ),
        (json!({"topic": "a/b", "data_base64": "?"}), 400),
        (json!({"topic": "a/+", "data": "x"}), 400),
        (json!({"topic": "$SYS/x", "data": "x"}), 400),
        (json!({"topic": "a/b", "data": "x", "event": "a\nb"}), 400),
        (json!({"topic": "a/b", "data": "x", "surprise": 1}), 400),
        (json!({"topic": "a/b", "data": "x".repeat(1001)}), 413),
        (json!({"topic": "a/b", "data": "x".repeat(200_000)}), 413),
    ] {
        let body = body.to_string();
        let answer = calls.ask(server, "POST", publish, "", Some(&body), status);
        if status == 413 {
            // The shard refuses a body that is a little too long. A body that is far too long is refused before it is read. The answer is
            // the same.
            assert!(
                answer.body.contains("limits.message_bytes"),
                "{}",
                answer.body
            );
        }
    }
    let torn = calls.ask(server, "POST", publish, "", Some("{"), 400);
    assert!(torn.body.contains("the body is no JSON: "), "{}", torn.body);
    let plain = format!("Host: {admin}\r\nContent-Type: text/plain\r\n");
    let answer = raw(admin, "POST /api/v1/publish", &plain, Some("{}"));
    calls.saw("POST", publish, &answer);
    assert!(answer.body.contains("Content-Type: application/json"));
    let full = (0..100).find_map(|n| {
        let body = json!({"topic": format!("full/{n}"), "data": "x"}).to_string();
        Some(ask(admin, "POST /api/v1/publish", Some(&body))).filter(|answer| answer.status != 200)
    });
    calls.saw("POST", publish, &full.expect("the limit of topics"));
}

fn call_topics(calls: &mut ApiCalls, server: &Server) {
    let (topics, topic, log) = ("/api/v1/topics", "/api/v1/topic", "/api/v1/topic/messages");
    let page = calls
        .ask(server, "GET", topics, "?filter=a/%23", None, 200)
        .json();
    assert_eq!(page["topics"][0]["name"], "a/b");
    assert_eq!(page["topics"][0]["messages"], 3);
    for query in [
        "?filter=a%23",
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?cursor=x",
        "?what=1",
    ] {
        let refused = calls.ask(server, "GET", topics, query, None, 400);
        assert!(!refused.body.contains("deserialize"), "{}", refused.body);
    }
    // Beyond the end there are no topics, and there is no next page.
    let beyond = calls
        .ask(server, "GET", topics, "?cursor=99.4000000000", None, 200)
        .json();
    assert_eq!(
        beyond["topics"].as_array().map(Vec::len),
        Some(0),
        "{beyond}"
    );
    calls.ask(server, "GET", topic, "?name=a/b", None, 200);
    calls.ask(server, "GET", topic, "?name=a/nobody", None, 404);
    calls.ask(server, "GET", topic, "?name=", None, 400);
    let presence = "/api/v1/topic/presence";
    let nobody = calls
        .ask(server, "GET", presence, "?name=a/b", None, 200)
        .json();
    assert_eq!(
        (&nobody["clients"], &nobody["members"]),
        (&json!(0), &json!([]))
    );
    for query in [
        "?name=",
        "?name=a/b&limit=0",
        "?name=a/b&after=x",
        "?what=1",
    ] {
        calls.ask(server, "GET", presence, query, None, 400);
    }
    let read = calls
        .ask(server, "GET", log, "?name=a/b&limit=2", None, 200)
        .json();
    assert_eq!(read["messages"][0]["data"], "x");
    assert_eq!(read["messages"][0]["event"], "e");
    assert_eq!(read["messages"][1]["data_base64"], "/w==");
    let query = format!("?name=a/b&after={}", read["next"]);
    let page = calls.ask(server, "GET", log, &query, None, 200).json();
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(1));
    assert!(page["next"].is_null() && page["lost"] == false, "{page}");
    // After the last message there is nothing to read, and nothing is lost.
    let last = read["messages"][1]["offset"].as_u64().expect("an offset") + 1_000_000;
    let beyond = format!("?name=a/b&after={last}");
    let beyond = calls.ask(server, "GET", log, &beyond, None, 200).json();
    assert_eq!(beyond["messages"], json!([]), "{beyond}");
    assert!(beyond["next"].is_null(), "{beyond}");
    calls.ask(server, "GET", log, "?name=a/b&after=x", None, 400);
    calls.ask(server, "GET", log, "?name=a/nobody", None, 404);
    let purged = calls
        .ask(server, "DELETE", log, "?name=a/b", None, 200)
        .json();
    assert_eq!(purged["purged"], 3);
    // A reader that goes on after the first message gets none of the others.
    let first = read["messages"][0]["offset"].to_string();
    let query = format!("?name=a/b&after={first}");
    let read = calls.ask(server, "GET", log, &query, None, 200).json();
    assert_eq!(read["messages"].as_array().map(Vec::len), Some(0), "{read}");
    calls.ask(server, "DELETE", log, "?name=a/nobody", None, 404);
    calls.ask(server, "DELETE", log, "?name=%23", None, 400);
    calls.ask(server, "DELETE", topic, "?name=a/b", None, 200);
    calls.ask(server, "DELETE", topic, "?name=a/b", None, 404);
    calls.ask(server, "DELETE", topic, "?name=", None, 400);
    for line in ["GET /api/v1/nothing", "GET /api/v2/topics", "PATCH /api/x"] {
        let answer = ask(server.admin(), line, None);
        assert_eq!(answer.status, 404, "{line}");
        assert!(answer.json()["error"].is_string());
    }
    assert_eq!(
        ask(server.admin(), "PATCH /api/v1/topics", None).status,
        405
    );
}

fn call_connections(calls: &mut ApiCalls, server: &Server) {
    let (list, connection) = ("/api/v1/connections", "/api/v1/connections/{id}");
    let readers: Vec<BufReader<TcpStream>> = (0..5)
        .map(|_| stream(server.address(), "/sub/full/0"))
        .collect();
    let page = eventually("five subscribers", || {
        let page = calls
            .ask(
                server,
                "GET",
                list,
                "?filter=full/%23&transport=sse",
                None,
                200,
            )
            .json();
        (page["connections"].as_array()?.len() == 5).then_some(page)
    });
    assert_eq!(page["connections"][0]["topics"], json!(["full/0"]));
    assert_eq!(page["connections"][0]["address"], "127.0.0.1");
    assert!(page["next"].is_null());
    assert_eq!(connections_by_page(calls, server), 5);
    for cursor in ["1.4000000000", "99.0", "65535.4294967295"] {
        let query = format!("?cursor={cursor}");
        let beyond = calls.ask(server, "GET", list, &query, None, 200).json();
        assert_eq!(beyond["connections"], json!([]), "{cursor}: {beyond}");
        assert!(beyond["next"].is_null(), "{cursor}: {beyond}");
    }
    for query in [
        "?transport=carrier",
        "?filter=%23a",
        "?limit=0",
        "?cursor=1",
    ] {
        calls.ask(server, "GET", list, query, None, 400);
    }
    let id = page["connections"][0]["id"].as_str().expect("an id");
    calls.ask(server, "GET", connection, id, None, 200);
    calls.ask(server, "DELETE", connection, id, None, 200);
    calls.ask(server, "DELETE", connection, "99-0-0", None, 404);
    for unknown in ["x", "0-4000000000-0", "0-0-70000", "0-0"] {
        calls.ask(server, "GET", connection, unknown, None, 404);
    }
    assert_eq!(call_disconnects(calls, server), 4);
    drop(readers);
}

/// Pages through the event streams, and checks that no connection appears twice. Returns their number.
fn connections_by_page(calls: &mut ApiCalls, server: &Server) -> usize {
    let list = "/api/v1/connections";
    let (mut ids, mut query) = (BTreeSet::new(), "?transport=sse&limit=2".to_string());
    loop {
        let page = calls.ask(server, "GET", list, &query, None, 200).json();
        for connection in page["connections"].as_array().expect("a list") {
            assert!(ids.insert(connection["id"].to_string()), "{page}");
        }
        match page["next"].as_str() {
            Some(next) => query = format!("?transport=sse&limit=2&cursor={next}"),
            None => break,
        }
    }
    ids.len()
}

/// Ends the subscribers of the topics below `full`. Returns their number.
fn call_disconnects(calls: &mut ApiCalls, server: &Server) -> u64 {
    let end = "/api/v1/connections/disconnect";
    for (body, status) in [
        ("{}", 400),
        (r#"{"slow":false}"#, 400),
        (r#"{"filter":"a#"}"#, 400),
        (r#"{"everybody":true}"#, 400),
        (r#"{"user":"nobody"}"#, 200),
    ] {
        calls.ask(server, "POST", end, "", Some(body), status);
    }
    let host = format!("Host: {}\r\n", server.admin());
    let answer = raw(
        server.admin(),
        "POST /api/v1/connections/disconnect",
        &host,
        Some("{}"),
    );
    calls.saw("POST", end, &answer);
    let answer = calls
        .ask(server, "POST", end, "", Some(r#"{"filter":"full/#"}"#), 200)
        .json();
    answer["disconnected"].as_u64().expect("a count")
}

/// Opens the maximum of tails, and expects that one more is refused.
fn call_tails(calls: &mut ApiCalls, server: &Server) {
    let path = "/api/v1/tail";
    let admin = server.admin();
    let mut tails = Vec::new();
    for _ in 0..TAILS {
        tails.push(stream(admin, "/api/v1/tail?topic=full/0"));
    }
    let head = Answer {
        status: 200,
        head: String::new(),
        body: String::new(),
    };
    calls.saw("GET", path, &head);
    calls.ask(server, "GET", path, "?topic=full/0", None, 503);
    for tail in &mut tails {
        let _ = tail.get_mut().flush();
    }
}

#[test]
fn purge_removes_a_log_that_needs_several_turns() {
    let server = Server::with_admin("[[rule]]\nmatch = '#'\nlog_bytes = '1 MiB'\n");
    let lines = "{\"topic\":\"a\",\"data\":\"x\"}\n".repeat(9_000);
    let (data, admin) = (server.address(), server.admin());
    let headers = format!("Host: {data}\r\nContent-Type: application/x-ndjson\r\n");
    assert_eq!(raw(data, "POST /pub", &headers, Some(&lines)).status, 200);
    assert_eq!(get(admin, "topic?name=a")["messages"], 9_000);
    let purged = ask(admin, "DELETE /api/v1/topic/messages?name=a", None);
    assert_eq!(purged.json()["purged"], 9_000);
    assert_eq!(get(admin, "topic?name=a")["messages"], 0);
}
