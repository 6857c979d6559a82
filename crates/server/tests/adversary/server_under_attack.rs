//! The server under attack, and a control group around it. Half of the servers have small limits, so that a small attack reaches them. The
//! others have wide limits, so that many attackers can make the server work at once.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::version::TLS12;
use rustls::{ClientConfig, RootCertStore};

use crate::cgroup::Group;
use crate::connection::TlsConfigs;
use crate::judge::{Process, bound_bytes};
use crate::support::Server;
use crate::tool::Certificates;

/// The size of the server's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSize {
    Small,
    Wide,
}

/// Memory of all logs in bytes, as in the settings.
pub const LOG_BYTES: u64 = 64 << 20;

impl LimitSize {
    /// Memory of everything else that clients make the server hold, in bytes, as in the settings.
    pub const fn memory_bytes(self) -> u64 {
        match self {
            LimitSize::Small => 32 << 20,
            LimitSize::Wide => 512 << 20,
        }
    }

    /// Memory that the control group permits on top of the process's own: the kernel's buffers for its sockets. With wide limits the
    /// kernel may buffer megabytes for each of hundreds of connections that read nothing.
    const fn kernel_bytes(self) -> u64 {
        match self {
            LimitSize::Small => 192 << 20,
            LimitSize::Wide => 4 << 30,
        }
    }

    /// The settings of the memory limit: as they are now, and as older builds name them, which had several limits instead of one.
    fn memory(self) -> [String; 2] {
        let mib = self.memory_bytes() >> 20;
        let quarter = mib / 4;
        [
            format!("[limits]\nmemory_bytes = \"{mib} MiB\"\n"),
            format!(
                "[limits]\noutbox_bytes_per_shard = \"{quarter} MiB\"\nreceive_bytes_per_shard = \"{quarter} MiB\"\n"
            ),
        ]
    }

    /// The other limits that differ by size.
    const fn other_limits(self) -> &'static str {
        match self {
            LimitSize::Small => SMALL,
            LimitSize::Wide => WIDE,
        }
    }

    /// The settings of access. With small limits they are empty, so every client may do everything. If rights are granted, the sessions of
    /// anonymous clients end with their connections.
    fn access(self) -> String {
        match self {
            LimitSize::Small => String::new(),
            LimitSize::Wide => access(),
        }
    }

    /// How long a session outlives its connection. With wide limits this is longer, so that hundreds of sessions can be open.
    const fn session_expiry_s(self) -> u32 {
        match self {
            LimitSize::Small => 6,
            LimitSize::Wide => 12,
        }
    }
}

/// Time after which a new server has allocated all that an idle server needs.
const IDLE_PAUSE: Duration = Duration::from_millis(400);

/// Number of granted filters that nobody uses.
const GRANTS: usize = 420;

const SMALL: &str = r#"
topics_per_shard = 5000
filters_per_shard = 50000
connections_per_address_max = 220
send_buffer_bytes = "16 KiB"
outbox_bytes = "512 KiB"
publish_credit_bytes = "2 MiB"
"#;
const WIDE: &str = r#"
topics_per_shard = 100000
filters_per_shard = 50000
connections_per_address_max = 450
head_bytes = "64 KiB"
"#;

/// The settings after the limits, up to those of sessions.
const SETTINGS: &str = r##"
batch_bytes = "2 MiB"
connections_max = 3000
log_bytes = "64 MiB"

[http]
allowed_origins = ["https://a.example", "https://b.example", "https://c.example:8443", "https://xn--bcher-kva.example", "http://d.example"]

[timeouts]
head_s = 4
body_s = 5
keep_alive_s = 6
drain_s = 1

[heartbeat]
interval_s = 5

[interest]
debounce_s = 1
followers_max = 64

[[rule]]
match = "own/#"
log_messages = 400
poll_timeout_s = 3
log_bytes = "4 MiB"

[[rule]]
match = "shared/#"
log_messages = 400
poll_timeout_s = 3
log_bytes = "4 MiB"

[[rule]]
match = "evil/3"
keep = "latest"
log_bytes = "1200 KiB"
poll_timeout_s = 2

[[rule]]
match = "evil/#"
log_messages = 20
log_bytes = "1200 KiB"
log_age_s = 20
position_age_s = 10
poll_timeout_s = 2
slow = "skip"

[mqtt]
inflight_max = 20
receive_max = 50
session_messages = 100
sys_interval_s = 1
session_expiry_max_s = "##;

/// Settings of `[http]` that let the attackers speak HTTP/2.
const HTTP2: &str = "h2_cleartext = true\nh2 = true\n";

/// Settings that let the attackers speak Centrifugo's protocol.
const CENTRIFUGO: &str = "[centrifugo]\nenabled = true\n";

/// The secret that signs tokens. The attackers do not know it.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Grants every client all that the clients do, and hundreds of filters that nobody uses. A refused action is compared with all of these
/// grants.
fn access() -> String {
    let unused_filters: String = (0..GRANTS).map(|n| format!(", \"unused/{n}/+\"")).collect();
    let other_rights = ["subscribe", "manage", "info", "interest"];
    let other_rights = other_rights
        .map(|right| format!("{right} = [\"#\", \"$SYS/#\"]\n"))
        .concat();
    format!(
        "[access]\nanonymous_wildcards = true\ntoken_bytes = \"64 KiB\"\n[[access.key]]\nalg = \"HS256\"\nsecret = \"{SECRET}\"\n\
         [access.anonymous]\n{other_rights}publish = [\"own/#\", \"shared/#\", \"evil/#\"{unused_filters}]\n"
    )
}

/// A running server, and what is known about it from outside.
pub struct ServerUnderAttack {
    pub server: Server,
    pub process: Process,
    pub group: Option<Group>,
    pub tls: TlsConfigs,
    _certificates: Certificates,
}

impl ServerUnderAttack {
    pub fn start(limits: LimitSize) -> ServerUnderAttack {
        let certificates = Certificates::new();
        let [memory, old_memory_settings] = limits.memory();
        let memory = match accepts_settings(&memory, &certificates) {
            true => memory,
            false => old_memory_settings,
        };
        // Older builds do not speak HTTP/2.
        let http = match accepts_settings(&format!("[http]\n{HTTP2}"), &certificates) {
            true => SETTINGS.replace("[http]\n", &format!("[http]\n{HTTP2}")),
            false => SETTINGS.to_string(),
        };
        let centrifugo = match accepts_settings(CENTRIFUGO, &certificates) {
            true => CENTRIFUGO,
            false => "",
        };
        let settings = format!(
            "{memory}{}{http}{}\n{}\n{centrifugo}{}",
            limits.other_limits(),
            limits.session_expiry_s(),
            limits.access(),
            certificates.settings("handshakes_max = 1000")
        );
        let server = Server::with_admin(&settings);
        std::thread::sleep(IDLE_PAUSE);
        let process = Process::new(server.pid());
        let limit = process.empty_bytes() + bound_bytes(limits) + limits.kernel_bytes();
        let group = Group::around(server.pid(), limit);
        ServerUnderAttack {
            process,
            group,
            tls: tls_configs(&certificates.path("ca.pem")),
            server,
            _certificates: certificates,
        }
    }

    /// How the server ended, after a moment: clients see the end before the kernel reports it.
    pub fn end_reason_after_delay(&self) -> Option<String> {
        std::thread::sleep(IDLE_PAUSE);
        self.end_reason()
    }

    /// How the server ended. `None` while it runs.
    pub fn end_reason(&self) -> Option<String> {
        let reason = self.process.end_reason()?;
        match self.group.as_ref().map_or(0, Group::kills) {
            0 => Some(reason),
            kills => Some(format!(
                "{reason}: out of the group's memory ({kills} kills)"
            )),
        }
    }
}

/// Whether the tested build accepts these settings.
fn accepts_settings(settings: &str, certificates: &Certificates) -> bool {
    certificates.write("known.toml", settings);
    let program = std::env::var_os("CRORE_TEST_PROGRAM")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_crore").into());
    let checked = Command::new(program)
        .args([
            "serve",
            "--check",
            "--config",
            &certificates.path("known.toml"),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    checked.expect("the server's program").success()
}

fn tls_configs(roots_path: &str) -> TlsConfigs {
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(Path::new(roots_path)).expect("the root");
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots
            .add(certificate.expect("a certificate"))
            .expect("a root");
    }
    let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let any_version = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    let tls12 = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS12])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConfigs {
        any_version: Arc::new(any_version),
        tls12: Arc::new(tls12),
    }
}
