//! An endpoint for webhooks: it keeps the requests, and answers them as the test says.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::until;

/// The secret that signs the requests.
pub const SECRET: &[u8] = b"a secret that only the test knows";

/// What a receiver answers.
#[derive(Clone)]
pub enum Mode {
    Status(u16),
    RedirectTo(SocketAddr),
    Never,
    /// 200, and a body that never comes.
    WithoutItsBody,
    /// 200, with a head that comes by single bytes and never ends.
    ByBytes,
}

/// A request that a receiver got.
#[derive(Clone)]
pub struct Request {
    headers: Vec<(String, String)>,
    pub body: String,
    /// Whether the answer had a good status.
    pub is_taken: bool,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    pub fn events(&self) -> Vec<Value> {
        let json = self.json();
        json["events"].as_array().expect("a list").clone()
    }
}

/// An endpoint on a port of the kernel's choice.
pub struct Receiver {
    pub address: SocketAddr,
    mode: Arc<Mutex<Mode>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    pub fn start(mode: Mode) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let receiver = Receiver {
            address: listener.local_addr().expect("an address"),
            mode: Arc::new(Mutex::new(mode)),
            requests: Arc::default(),
        };
        let (mode, requests) = (receiver.mode.clone(), receiver.requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mode, requests) = (mode.clone(), requests.clone());
                std::thread::spawn(move || serve(stream, &mode, &requests));
            }
        });
        receiver
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock().expect("the mode") = mode;
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("the requests").clone()
    }

    /// All events so far, of requests that were answered well or badly.
    pub fn events(&self) -> Vec<Value> {
        let requests = self.requests();
        requests.iter().flat_map(Request::events).collect()
    }

    /// Waits until an event of this name has come. Returns all events so far.
    pub fn await_event(&self, name: &str) -> Vec<Value> {
        let mut events = Vec::new();
        until(&format!("the event {name}"), || {
            events = self.events();
            events.iter().any(|event| event["event"] == name)
        });
        events
    }

    /// The settings of a webhook to this endpoint.
    pub fn settings(&self, more: &str) -> String {
        let (address, secret) = (self.address, secret_file().display().to_string());
        format!(
            "[[webhook]]\nurl = 'http://{address}/hook'\nsecret_file = '{secret}'\nbatch_ms = 10\n{more}\n"
        )
    }
}

fn serve(stream: TcpStream, mode: &Mutex<Mode>, requests: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    loop {
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            match line.trim_end().split_once(": ") {
                Some((name, value)) => {
                    headers.push((name.to_ascii_lowercase(), value.to_string()));
                }
                None if line.trim_end().is_empty() => break,
                None => assert_eq!(line, "POST /hook HTTP/1.1\r\n"),
            }
        }
        let mut request = Request {
            headers,
            body: String::new(),
            is_taken: false,
        };
        let length: u64 = request.header("content-length").parse().expect("a length");
        let body = reader.by_ref().take(length);
        let mut body = BufReader::new(body);
        body.read_to_string(&mut request.body).expect("a body");
        let mode = mode.lock().expect("the mode").clone();
        request.is_taken = match mode {
            Mode::Status(status) => status < 300,
            Mode::WithoutItsBody => true,
            Mode::RedirectTo(_) | Mode::Never | Mode::ByBytes => false,
        };
        requests.lock().expect("the requests").push(request);
        let answer = match mode {
            Mode::Status(status) => format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"),
            Mode::RedirectTo(address) => format!(
                "HTTP/1.1 307 X\r\nLocation: http://{address}/hook\r\nContent-Length: 0\r\n\r\n"
            ),
            Mode::WithoutItsBody => "HTTP/1.1 200 X\r\nContent-Length: 100000\r\n\r\n".into(),
            Mode::Never => continue,
            Mode::ByBytes => {
                let mut sent = (&stream).write_all(b"HTTP/1.1 200 X\r\nX-Slow: ");
                while sent.is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    sent = (&stream).write_all(b"x");
                }
                return;
            }
        };
        if (&stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The file with the secret, as Standard Webhooks writes it.
fn secret_file() -> PathBuf {
    let name = format!("crore-webhook-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let text = format!("whsec_{}\n", STANDARD.encode(SECRET));
    std::fs::write(&path, text).expect("a file");
    path
}
