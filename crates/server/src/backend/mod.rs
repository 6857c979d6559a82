//! Backends: endpoints of the operator that answer calls of clients (`[[backend]]`), in the form of Centrifugo's proxies.
//!
//! A shard gives a call to [`Backends`], which queues it; threads send the calls, and send each answer to the shard of the connection. Parties (users, or
//! addresses of clients without a user) take turns in the queue, and each has at most half of the threads, so that the calls of one do not delay those of
//! another. A call is sent once: the backend may have carried it out though no answer came.
//!
//! Invariants:
//! * Each call that is accepted gets one answer.
//! * No call leaves the queue after its deadline. Then it has `timeout_s` again for the connection and the answer, and the look-up of the name counts for neither.
//! * The calls that wait are bounded by `backend.calls_max`. Their bytes are in the memory account of the shard, and are counted for the party.

mod answer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_broker::ConnId;
use crore_broker::backend::{
    BackendAnswer, BackendCall, BackendRefusal, BackendResult, CallKind, CallSubject,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::access::jobs::{JobQueue, JobSender, QueueLoad, QueuedJob};
use crate::access::threads::spawn;
use crate::http_client::endpoint::{Endpoint, EndpointSettings, Request};
use crate::http_client::http::Connection;
use crate::settings::backend::Backend;

/// Limit of the size of an answer: that of a message by default.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The header with the kind of the call, for backends that answer several kinds at one URL.
const KIND_HEADER: &str = "Crore-Call";

/// Sends an answer to a shard.
pub type AnswerSender = Arc<dyn Fn(ConnId, BackendAnswer) + Send + Sync>;

/// The backends of a server.
#[derive(Clone)]
pub struct Backends {
    /// The backend that answers each kind of call, in the order of [`CallKind::ALL`].
    by_kind: [Option<Arc<RunningBackend>>; CallKind::ALL.len()],
}

/// A backend with its queue.
struct RunningBackend {
    calls_max: usize,
    timeout: Duration,
    load: Arc<Mutex<QueueLoad>>,
    sender: JobSender<QueuedCall>,
}

/// A call of a shard's connection.
struct QueuedCall {
    conn: ConnId,
    call: BackendCall,
    reply: AnswerSender,
    /// When it is too late to send the call.
    deadline: Instant,
}

impl QueuedJob for QueuedCall {
    fn asker(&self) -> u64 {
        self.call.asker
    }

    fn bytes(&self) -> usize {
        self.call.subject.data_bytes()
    }
}

/// Checks the settings of backends, and reads the files that they name.
///
/// # Errors
/// All faults, each with the path of the settings key and the remedy.
pub fn check(backends: &[Backend]) -> Result<(), Vec<(String, String)>> {
    let numbered = backends.iter().enumerate();
    let faults: Vec<_> = numbered
        .filter_map(|(index, entry)| endpoint(index + 1, entry).err())
        .collect();
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults),
    }
}

fn endpoint(number: usize, entry: &Backend) -> Result<Endpoint, (String, String)> {
    let settings = EndpointSettings {
        name: &format!("backend {number}"),
        url: &entry.url,
        url_key: "url",
        ca: Some(entry.ca.as_path()).filter(|path| !path.as_os_str().is_empty()),
        ca_key: "ca",
        public_only: false,
    };
    let timeout = Duration::from_secs(entry.timeout_s.into());
    Endpoint::new(&settings, timeout)
        .map_err(|(key, message)| (format!("backend[{number}].{key}"), message))
}

impl Backends {
    /// Starts the threads of all backends.
    ///
    /// # Errors
    /// As [`check`], or a thread cannot be started.
    pub fn start(entries: &[Backend]) -> anyhow::Result<Backends> {
        let mut by_kind = [const { None }; CallKind::ALL.len()];
        for (index, entry) in entries.iter().enumerate() {
            let endpoint = endpoint(index + 1, entry)
                .map_err(|(key, message)| anyhow::anyhow!("{key}: {message}"))?;
            let running = Arc::new(RunningBackend::start(entry, endpoint)?);
            for event in &entry.events {
                by_kind[event.kind() as usize] = Some(Arc::clone(&running));
            }
        }
        Ok(Backends { by_kind })
    }

    /// Queues a call. `reply` gets its answer.
    ///
    /// # Errors
    /// Why the call is not sent.
    pub fn ask(
        &self,
        conn: ConnId,
        call: BackendCall,
        reply: &AnswerSender,
    ) -> Result<(), BackendRefusal> {
        let backend = self.by_kind[call.subject.kind() as usize].as_ref();
        let backend = backend.ok_or(BackendRefusal::Absent)?;
        {
            let mut load = backend.load.lock().unwrap_or_else(PoisonError::into_inner);
            if !load.may_add(call.asker, backend.calls_max) {
                return Err(BackendRefusal::Busy);
            }
            load.add(call.asker);
        }
        let reply = Arc::clone(reply);
        backend.sender.push(QueuedCall {
            conn,
            call,
            reply,
            deadline: Instant::now() + backend.timeout,
        });
        Ok(())
    }
}

impl RunningBackend {
    fn start(entry: &Backend, endpoint: Endpoint) -> anyhow::Result<RunningBackend> {
        let load = Arc::<Mutex<QueueLoad>>::default();
        let calls_per_party_max = (entry.concurrency / 2).max(1);
        let sender = JobSender(Arc::new(JobQueue::with_share(calls_per_party_max)));
        let endpoint = Arc::new(endpoint);
        for _ in 0..entry.concurrency {
            let (jobs, load) = (Arc::clone(&sender.0), Arc::clone(&load));
            let endpoint = Arc::clone(&endpoint);
            spawn("backend", move || send_calls(&jobs, &load, &endpoint))
                .context("cannot start a thread that calls a backend")?;
        }
        Ok(RunningBackend {
            calls_max: entry.calls_max,
            timeout: Duration::from_secs(entry.timeout_s.into()),
            load,
            sender,
        })
    }
}

/// Sends calls one after another, over a connection that is kept.
fn send_calls(jobs: &JobQueue<QueuedCall>, load: &Mutex<QueueLoad>, endpoint: &Endpoint) {
    let mut connection = None;
    while let Some(queued) = jobs.next() {
        let QueuedCall {
            conn,
            call,
            reply,
            deadline,
        } = queued;
        let result = match Instant::now() < deadline {
            true => send(endpoint, &call, &mut connection),
            false => {
                endpoint.log_failure("calls wait longer than timeout_s before they can be sent");
                answer::failure()
            }
        };
        let answer = BackendAnswer {
            kind: call.subject.kind(),
            number: call.number,
            result,
        };
        let asker = call.asker;
        // Its bytes are released before the client is answered.
        drop(call);
        let mut load = load.lock().unwrap_or_else(PoisonError::into_inner);
        load.remove(asker);
        drop(load);
        reply(conn, answer);
        jobs.finish(asker);
    }
}

fn send(
    endpoint: &Endpoint,
    call: &BackendCall,
    connection: &mut Option<Connection>,
) -> BackendResult {
    let kind = call.subject.kind();
    let body = request_body(call);
    let request = Request {
        method: "POST",
        headers: &[
            ("Content-Type", "application/json"),
            ("Accept-Encoding", "identity"),
            (KIND_HEADER, kind.name()),
        ],
        body: Some(body.as_bytes()),
        answer_bytes_max: ANSWER_BYTES_MAX,
    };
    let answer = endpoint.exchange(&request, connection);
    let read = answer.and_then(|(head, body)| match head.status {
        200 => answer::read(kind, &body, call.is_protobuf),
        _ => Err(format!("its answer has the status {}", head.status_text())),
    });
    read.unwrap_or_else(|reason| {
        endpoint.log_failure(&reason);
        answer::failure()
    })
}

/// The body of a request, as Centrifugo's proxies have it. JSON of clients is sent as it is: it may have numbers and depths that no value of `serde_json` has.
#[derive(Serialize)]
struct RequestBody<'a> {
    client: &'a str,
    transport: &'a str,
    protocol: &'a str,
    encoding: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    /// Data that is no JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    b64data: Option<String>,
}

fn request_body(call: &BackendCall) -> String {
    let (protocol, encoding) = match call.is_protobuf {
        true => ("protobuf", "binary"),
        false => ("json", "json"),
    };
    let data = call.subject.data().filter(|data| !data.is_empty());
    let json: Option<&RawValue> = data.and_then(|data| serde_json::from_slice(data).ok());
    let mut body = RequestBody {
        client: &call.client,
        transport: call.transport,
        protocol,
        encoding,
        user: Some(&call.user),
        name: None,
        version: None,
        channel: None,
        method: None,
        meta: serde_json::from_slice(&call.meta).ok(),
        data: json,
        b64data: data
            .filter(|_| json.is_none())
            .map(|data| STANDARD.encode(data)),
    };
    match &call.subject {
        CallSubject::Connect { name, version, .. } => {
            (body.user, body.name, body.version) = (None, Some(&**name), Some(&**version));
        }
        CallSubject::Refresh => {}
        CallSubject::Subscribe { channel, .. }
        | CallSubject::SubRefresh { channel }
        | CallSubject::Publish { channel, .. } => body.channel = Some(channel),
        CallSubject::Rpc { method, .. } => body.method = Some(method),
    }
    serde_json::to_string(&body).expect("texts and JSON can be written")
}

#[cfg(test)]
mod tests {
    use crore_broker::access::QuestionBytes;
    use crore_broker::admission::{Admission, Party};
    use crore_broker::backend::BackendCaller;
    use crore_broker::settings::Settings;

    use super::*;

    fn body_with(data: &[u8]) -> String {
        let caller = BackendCaller {
            asker: Party::user("ann", 7),
            payer: Party::user("ann", 7),
            client: "c".into(),
            user: "ann",
            meta: b"",
            transport: "websocket",
            is_protobuf: true,
        };
        let subject = CallSubject::Rpc { method: "m", data };
        let admission = Admission::new(&Settings::default(), 7);
        request_body(&BackendCall::new(
            1,
            caller,
            &subject,
            &QuestionBytes::default(),
            &admission,
        ))
    }

    #[test]
    fn json_reaches_the_backend_as_it_is() {
        let deep = ["[".repeat(500), "]".repeat(500)].concat();
        for data in [
            "1e400",
            "12345678901234567890123",
            r#"{"a":1,"a":2}"#,
            &deep,
        ] {
            let body = body_with(data.as_bytes());
            assert!(body.contains(&format!(r#""data":{data}"#)), "{data}");
        }
        assert!(body_with(b"\xff").contains(r#""b64data":"/w==""#));
    }
}
