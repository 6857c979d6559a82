//! Tests requests on persistent connections: each must leave the state of its connection as it was.

use crore_broker::settings::Settings;

use crate::served::Step::{Drip, Publish, Say, Seconds};
use crate::served::{Exchange, POLL_S, Step, all_leave_nothing};

/// A request with these header fields.
fn request(line: &str, fields: &[&str]) -> Vec<u8> {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").into_bytes()
}

/// A request with these header fields and a body.
fn posting(line: &str, fields: &[&str], body: &str) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    let fields: Vec<&str> = fields.iter().copied().chain([&length[..]]).collect();
    [request(line, &fields), body.into()].concat()
}

fn says(
    name: &'static str,
    told: &'static [&'static str],
    requests: impl IntoIterator<Item = Vec<u8>>,
) -> Exchange {
    does(name, told, requests.into_iter().map(Say))
}

fn does(
    name: &'static str,
    told: &'static [&'static str],
    steps: impl IntoIterator<Item = Step>,
) -> Exchange {
    Exchange {
        name,
        steps: steps.into_iter().collect(),
        expected_parts: told,
    }
}

const INFO: &str = "GET /pub/####";
const JSON: &str = "Accept: application/json";
const BATCH: &str = "Content-Type: application/x-ndjson";

/// Requests for the information of topics, and other requests that are answered at once.
fn plain() -> Vec<Exchange> {
    let post = || posting("POST /pub/####", &[], "hello");
    let info = || request(INFO, &[]);
    vec![
        says("info", &["202", "200 OK"], [post(), info()]),
        says(
            "info as JSON",
            &["202", "\"messages\""],
            [post(), request(INFO, &[JSON])],
        ),
        says(
            "info of no topic",
            &["404"],
            [request("GET /pub/none", &[])],
        ),
        says(
            "HEAD",
            &["202", "200 OK"],
            [post(), request("HEAD /pub/####", &[])],
        ),
        says(
            "PUT and DELETE",
            &["201", "200 OK", "200 OK", "404"],
            [
                request("PUT /pub/new####", &[]),
                request("PUT /pub/new####", &[]),
                request("DELETE /pub/new####", &[]),
                request("DELETE /pub/new####", &[]),
            ],
        ),
        says(
            "purge",
            &["202", "200 OK"],
            [post(), request("DELETE /pub/####?purge", &[])],
        ),
        says(
            "purge that is none",
            &["400"],
            [request("DELETE /pub/####?purge=no", &[])],
        ),
        says("OPTIONS", &["204"], [request("OPTIONS /pub/####", &[])]),
        says(
            "preflight",
            &["204", "https://app.example"],
            [request(
                "OPTIONS /pub/####",
                &["Origin: https://app.example"],
            )],
        ),
        says("no such path", &["404"], [request("GET /nothing", &[])]),
        says(
            "no such method",
            &["405"],
            [request("PATCH /pub/####", &[])],
        ),
        says(
            "a method of another path",
            &["405"],
            [request("DELETE /sub/####", &[])],
        ),
        says(
            "a parameter that is not read",
            &["400"],
            [request("GET /sub/####?sinse=1", &[])],
        ),
        says(
            "several topics",
            &["400"],
            [request("GET /pub?topic=a&topic=b", &[])],
        ),
        says(
            "a topic of the server's",
            &["403"],
            [request("PUT /pub/$SYS/x", &[])],
        ),
        says("no upgrade", &["426"], [request("GET /pubsub/####", &[])]),
        says(
            "half an upgrade",
            &["426"],
            [request(
                "GET /sub/####",
                &["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="],
            )],
        ),
        says(
            "requests at once",
            &["202", "200 OK", "200 OK", "404"],
            [[
                post(),
                info(),
                request("GET /history/####", &[]),
                request("GET /nothing", &[]),
            ]
            .concat()],
        ),
        does(
            "requests byte by byte",
            &["202", "200 OK"],
            [Drip(post()), Drip(info())],
        ),
    ]
}

/// Requests that publish.
fn publishing() -> Vec<Exchange> {
    let chunked = [
        request("POST /pub/####", &["Transfer-Encoding: chunked"]),
        b"5\r\nhello\r\n0\r\n\r\n".to_vec(),
    ];
    let expects = |body| posting("POST /pub/####", &["Expect: 100-continue"], body);
    let retry = || posting("POST /pub/####", &["Idempotency-Key: once"], "hello");
    let line = "{\"topic\":\"####\",\"data\":\"x\"}\n";
    let lines = line.repeat(3);
    let long = line.repeat(600);
    let fields = [
        "Content-Type: text/html",
        "X-EventSource-Event: tick",
        "Crore-Key: k",
        "Crore-TTL: 60",
    ];
    vec![
        says(
            "publish",
            &["202"],
            [posting("POST /pub/####", &[], "hello")],
        ),
        says(
            "publish with fields",
            &["202"],
            [posting("POST /pub/####", &fields, "hello")],
        ),
        says(
            "publish of nothing",
            &["202"],
            [posting("POST /pub/####", &[], "")],
        ),
        says("publish in chunks", &["202"], [chunked.concat()]),
        does(
            "publish in chunks, byte by byte",
            &["202"],
            [Drip(chunked.concat())],
        ),
        does(
            "publish after 100 Continue",
            &["100 Continue", "202"],
            [
                Say(expects("hello")[..expects("hello").len() - 5].to_vec()),
                Say(b"hello".to_vec()),
            ],
        ),
        says(
            "publish again",
            &["202", "Idempotency-Replayed: true"],
            [retry(), retry()],
        ),
        says(
            "publish with a bad field",
            &["400"],
            [posting("POST /pub/####", &["Crore-TTL: soon"], "hello")],
        ),
        says(
            "batch",
            &["\"published\": 3"],
            [posting("POST /pub", &[BATCH], &lines)],
        ),
        says(
            "long batch",
            &["\"published\": 600"],
            [posting("POST /pub", &[BATCH], &long)],
        ),
        says(
            "batch of nothing",
            &["\"published\": 0"],
            [posting("POST /pub", &[BATCH], "")],
        ),
        says(
            "batch with faults",
            &["\"published\": 3", "\"line\": 4"],
            [posting(
                "POST /pub",
                &[BATCH],
                &format!("{lines}{{\"topic\":\"a\nno\n"),
            )],
        ),
        says(
            "batch of faults",
            &["400"],
            [posting("POST /pub", &[BATCH], "no\n")],
        ),
    ]
}

/// Requests for histories, and long-polls.
fn reading() -> Vec<Exchange> {
    let get = |path: &str| request(&format!("GET {path}"), &[]);
    let waits = || Say(get("/sub/####?since=live"));
    let post = || Say(posting("POST /pub/####", &[], "hello"));
    let over = || Seconds(POLL_S + 1);
    vec![
        does(
            "history",
            &["202", "hello"],
            [post(), Say(get("/history/####"))],
        ),
        does(
            "part of the history",
            &["202", "hello"],
            [post(), Say(get("/history/####?limit=1"))],
        ),
        says("history of no topic", &["[]"], [get("/history/none")]),
        says(
            "history of no length",
            &["400"],
            [get("/history/####?limit=x")],
        ),
        does(
            "history that is known",
            &["202", "304"],
            [
                post(),
                Say(request("GET /history/####", &["If-None-Match: *"])),
            ],
        ),
        says(
            "HEAD of a history",
            &["200 OK"],
            [request("HEAD /history/####", &[])],
        ),
        does(
            "poll that is answered at once",
            &["202", "hello"],
            [post(), Say(get("/sub/####?since=oldest"))],
        ),
        does("poll that waits", &["200 OK", "other"], [waits(), Publish]),
        does("poll that ends", &["204"], [waits(), over()]),
        does(
            "poll with a tag that ends",
            &["304"],
            [
                Say(request(
                    "GET /sub/####",
                    &["If-Modified-Since: Fri, 15 Jan 2027 09:00:00 GMT"],
                )),
                over(),
            ],
        ),
        does(
            "HEAD of a poll",
            &["204"],
            [Say(request("HEAD /sub/####?since=live", &[]))],
        ),
        does(
            "poll of topics",
            &["200 OK", "other"],
            [
                Say(get("/sub?topic=a&topic=####&topic=b&since=live")),
                Publish,
            ],
        ),
        does(
            "poll of topics that ends",
            &["204"],
            [
                Say(get("/sub?topic=a&topic=####&topic=b&since=live")),
                over(),
            ],
        ),
        does(
            "poll by filter",
            &["200 OK", "other"],
            [Say(get("/sub?filter=%23&since=live")), Publish],
        ),
        does(
            "poll by filter that ends",
            &["204"],
            [Say(get("/sub?filter=a/%2B&since=live")), over()],
        ),
        does(
            "poll as an envelope",
            &["200 OK", "other"],
            [Say(get("/sub/####?since=live&envelope=json")), Publish],
        ),
        does(
            "poll from nowhere",
            &["400"],
            [Say(get("/sub/####?since=xyz"))],
        ),
        does(
            "requests behind a poll",
            &["200 OK", "other", "404", "200 OK"],
            [
                Say([get("/sub/####?since=live"), get("/nothing")].concat()),
                Say(get("/pub/####")),
                Publish,
            ],
        ),
        does(
            "HEAD of a stream",
            &["200 OK"],
            [Say(request(
                "HEAD /sub/####",
                &["Accept: text/event-stream"],
            ))],
        ),
        does(
            "HEAD of interest",
            &["200 OK"],
            [Say(request("HEAD /interest", &[]))],
        ),
        does(
            "interest in no filter",
            &["400"],
            [Say(get("/interest?match=a/"))],
        ),
    ]
}

#[test]
fn no_request_changes_the_state_of_its_kept_alive_connection() {
    let set = |settings: &mut Settings| {
        settings.http.allowed_origins = vec!["https://app.example".into()];
    };
    let all = [plain(), publishing(), reading()];
    all_leave_nothing(set, &request("GET /nothing", &[]), all.iter().flatten());
}

#[test]
fn no_request_with_a_credential_changes_the_state_of_its_kept_alive_connection() {
    let header = &["Authorization: Bearer t"];
    let all = [
        says(
            "token in the header",
            &["202"],
            [posting("POST /pub/####", header, "hello")],
        ),
        says(
            "token in the query",
            &["200 OK"],
            [request("GET /history/####?token=t", &[])],
        ),
        says(
            "token in a cookie",
            &["200 OK"],
            [request("GET /history/####", &["Cookie: crore_token=t"])],
        ),
        says("no token", &["401"], [request("GET /history/####", &[])]),
        says(
            "two tokens",
            &["401"],
            [request("GET /history/####?token=t&token=u", &[])],
        ),
        says(
            "no such right",
            &["403"],
            [request("GET /interest", header)],
        ),
        does(
            "poll that ends",
            &["204"],
            [
                Say(request("GET /sub/####?since=live", header)),
                Seconds(POLL_S + 1),
            ],
        ),
    ];
    all_leave_nothing(
        |settings| settings.access.closed = true,
        &request("GET /nothing", &[]),
        &all,
    );
}
