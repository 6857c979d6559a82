//! Runs the integration specs of pusher-js, in Node and in Chromium, with the addresses changed. `cargo xtask conformance pusher` fetches them; no
//! other run has them. Specs of transports without WebSocket are left out, since Crore has none of these.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crore_net::kernel::listener::HeldPort;
use serde_json::Value;

use crate::client::{path_of, tools};
use crate::pusher::{Ended, SECRET, secret_file};
use crate::support::state::State;
use crate::support::{Server, hold_port, until};
use crate::tls::Certificates;

/// The ids and keys of the apps that the specs name.
const APPS: [(&str, &str); 2] = [("1", "c49a449b916bb4246729"), ("2", "cb7d5e50f5669e5c9ae6")];

/// What the specs need of the repository.
const NEEDED: [&str; 6] = [
    "src",
    "spec",
    "webpack",
    "integration_tests_server",
    "package.json",
    "tsconfig.json",
];

/// The bundle of the specs for Chromium, with the settings that pusher-js has for it.
const PAGE_BUNDLE: &str = "const { webpack } = require('./spec/config/karma/config.integration');\n\
    module.exports = { ...webpack, entry: './spec/javascripts/integration/index.web.js', output: { path: __dirname + '/tmp', filename: 'page.js' } };\n";

/// A copy of the specs for a server, and the backend of the specs: its ports are those of the two apps.
struct Specs {
    copy: PathBuf,
    certificates: Certificates,
    ports: [HeldPort; 2],
    _server: Server,
    _state: State,
    _backend: Ended,
}

impl Specs {
    fn new(name: &str) -> Specs {
        let state = State::new();
        let certificates = Certificates::new();
        let ports = [hold_port(), hold_port()];
        let page = ports[0].addr();
        let mut settings = format!("[http]\nallowed_origins = ['http://{page}']\n");
        for (id, key) in APPS {
            let file = secret_file(&state);
            settings += &format!(
                "[[pusher_app]]\nid = '{id}'\nkey = '{key}'\nsecret_file = '{file}'\nclient_events = true\n"
            );
        }
        let server = Server::with_admin(&certificates.settings(&settings));
        let copy = copy(name, &server, &ports);
        let mut backend = Command::new("node");
        backend
            .arg("index.js")
            .current_dir(copy.join("integration_tests_server"))
            .stdout(Stdio::null());
        for (cluster, (id, key)) in ["MT1", "EU"].into_iter().zip(APPS) {
            for (part, value) in [("APP_ID", id), ("KEY", key), ("SECRET", SECRET)] {
                backend.env(format!("INTEGRATION_TESTS_APP_{cluster}_{part}"), value);
            }
        }
        let backend = Ended(backend.spawn().expect("node starts"));
        until("the backend listens", || {
            let all = ports.iter().map(HeldPort::addr);
            all.map(TcpStream::connect).all(|it| it.is_ok())
        });
        Specs {
            copy,
            certificates,
            ports,
            _server: server,
            _state: state,
            _backend: backend,
        }
    }

    /// Runs webpack with this configuration.
    fn bundle(&self, configuration: &str) {
        let output = Command::new("node")
            .arg(tools().join("pusher-js/node_modules/webpack/bin/webpack.js"))
            .arg(format!("--config={configuration}"))
            .current_dir(&self.copy)
            .env("MINIMIZE", "false")
            .env("MINIMAL_INTEGRATION_TESTS", "true")
            .output()
            .expect("node starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
    }

    /// Runs the specs with this command, which prints one JSON object for each.
    fn pass(&self, command: &mut Command) {
        let output = command
            .current_dir(&self.copy)
            .env("NODE_EXTRA_CA_CERTS", self.certificates.path("ca.pem"))
            .stderr(Stdio::inherit())
            .output()
            .expect("node starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let specs: Vec<Value> = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let wrong: Vec<_> = specs
            .iter()
            .filter(|spec| spec["status"] != "passed")
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        // Those with a connection, for each of plain and TLS, and the rest.
        assert!(specs.len() > 60, "{} specs: {said}", specs.len());
    }
}

/// Copies the specs, with the addresses of this server and these ports of the backend.
fn copy(name: &str, server: &Server, ports: &[HeldPort; 2]) -> PathBuf {
    let suite = tools().join("pusher-js");
    let copy = suite.join(name);
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy).expect("a directory");
    let copied = Command::new("cp")
        .arg("-R")
        .args(NEEDED.map(|name| suite.join(name)))
        .arg(&copy)
        .status();
    assert!(copied.expect("cp starts").success());
    let edit = |file: &str, changes: &[(&str, String)]| {
        let path = copy.join(file);
        let mut text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        for (from, to) in changes {
            assert!(text.contains(from), "{file}: no {from}");
            text = text.replace(from, to);
        }
        fs::write(path, text).expect("a copy");
    };
    let port = |address: SocketAddr| address.port().to_string();
    let (data, admin) = (port(server.address()), port(server.admin()));
    let [first, second] = [0, 1].map(|number: usize| port(ports[number].addr()));
    // The part for React Native needs packages that the specs do not.
    let left_out = "\"node_modules\", \"src/runtimes/react-native\"".into();
    edit("tsconfig.json", &[("\"node_modules\"", left_out)]);
    edit(
        "src/core/config.ts",
        &[("ws-${cluster}.pusher.com", "127.0.0.1".into())],
    );
    edit(
        "src/core/defaults.ts",
        &[
            ("wsPort: 80,", format!("wsPort: {data},")),
            ("wssPort: 443,", format!("wssPort: {data},")),
        ],
    );
    for runtime in ["node", "web"] {
        edit(
            &format!("spec/javascripts/helpers/{runtime}/integration.js"),
            &[
                ("localhost:3000", format!("127.0.0.1:{first}")),
                ("localhost:3001", format!("127.0.0.1:{second}")),
            ],
        );
    }
    // The specs can leave out all but a WebSocket with TLS: here all with a WebSocket are wanted.
    edit(
        "spec/javascripts/integration/index.web.js",
        &[(
            "config.forceTLS && config.transport",
            "config.transport".into(),
        )],
    );
    let host = format!("host: '127.0.0.1', port: '{admin}', useTLS: false");
    edit(
        "integration_tests_server/index.js",
        &[
            ("start_app(3000,", format!("start_app({first},")),
            ("start_app(3001,", format!("start_app({second},")),
            ("cluster: \"mt1\"", host.clone()),
            ("cluster: \"eu\"", host),
        ],
    );
    copy
}

#[test]
#[ignore = "needs what `cargo xtask conformance pusher` prepares"]
fn integration_specs_of_pusher_js_pass_in_node() {
    let specs = Specs::new("changed-node");
    specs.bundle("spec/config/jasmine/webpack.integration.js");
    let reporter = path_of("pusher_js_reporter.cjs");
    let helper = specs.copy.join("spec/config/jasmine/helpers/reporter.js");
    fs::copy(reporter, helper).expect("a copy");
    let jasmine = tools().join("pusher-js/node_modules/jasmine/bin/jasmine.js");
    let mut command = Command::new("node");
    specs.pass(
        command
            .arg(jasmine)
            .arg("--config=spec/config/jasmine/integration.json"),
    );
}

#[test]
#[ignore = "needs what `cargo xtask conformance pusher` prepares"]
fn integration_specs_of_pusher_js_pass_in_chromium() {
    let specs = Specs::new("changed-web");
    fs::write(specs.copy.join("bundle.js"), PAGE_BUNDLE).expect("a file");
    specs.bundle("bundle.js");
    let mut command = Command::new("node");
    specs.pass(
        command
            .arg(path_of("pusher_js_page.mjs"))
            .arg(format!("http://{}/", specs.ports[0].addr()))
            .arg(specs.copy.join("tmp/page.js")),
    );
}
