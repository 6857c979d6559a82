//! Commands and settings for the peers, with which Crore is compared: Nchan and Mosquitto from Debian's packages, and NATS if it is
//! installed. Each has one serving process.
//!
//! The settings let no peer drop a message that it could deliver, and switch off extra work (access logs, persistence, statistics). The
//! system's configuration is not read, and nothing outside the peer's directory is written.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::certificate::Certificate;
use super::directory::Directory;
use super::nats;
use crate::sys;

/// The error log, in the server's directory.
pub const LOG: &str = "error.log";

/// The maximum number of connections of the nginx worker, which allocates all of them at its start. It is enough for the 15,000 connections
/// of the row `idle` of the scenario `pair`, and below the 20,000 descriptors of a process whose limit cannot be raised.
const WORKER_CONNECTIONS: usize = 16_384;
/// Limit of the memory of Nchan's channels and messages, in MiB. A few messages in each of 10,000 channels fill its
/// default of 128.
const NCHAN_MEMORY_MIB: usize = 512;
/// Where Debian puts the module.
const NCHAN_MODULE: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";

/// The command for nginx with Nchan, which listens on this address and keeps `keep` messages in each channel.
pub fn nchan(
    directory: &Directory,
    address: SocketAddr,
    keep: u32,
    tls: Option<&Certificate>,
) -> Result<Command> {
    let program = program("nginx")?;
    std::fs::metadata(NCHAN_MODULE).with_context(|| missing(NCHAN_MODULE))?;
    let config = nchan_config(directory.path(), address, keep, tls);
    let path = directory.write("nginx.conf", &config)?;
    let mut command = Command::new(program);
    // nginx opens this log before it reads its configuration.
    let directory = directory.path();
    command.arg("-e").arg(directory.join(LOG));
    command.arg("-p").arg(directory).arg("-c").arg(path);
    Ok(command)
}

fn nchan_config(
    directory: &Path,
    address: SocketAddr,
    keep: u32,
    tls: Option<&Certificate>,
) -> String {
    // Without this line, an nginx that is started as root would change to another user. With this line, an nginx that is not started as
    // root prints a warning.
    let user = if sys::is_root() { "user root;" } else { "" };
    let directory = directory.display();
    let ssl = if tls.is_some() { " ssl" } else { "" };
    let certificate = tls.map_or(String::new(), |tls| {
        let (chain, key) = (tls.chain.display(), tls.key.display());
        format!("ssl_certificate {chain};\nssl_certificate_key {key};\n")
    });
    // Names with a leading `/` are sent as `?topic=`, as with Crore.
    let location = |path: &str, role: &str| {
        format!(
            "location = /{path} {{ {role} nchan_channel_id $arg_topic; }}\n\
             location ~ ^/{path}/(.+)$ {{ {role} nchan_channel_id $1; }}\n"
        )
    };
    let publisher = location("pub", "nchan_publisher;");
    let subscriber = location(
        "sub",
        // A long-poll begins with the kept messages, as with Crore. For the other protocols no messages are kept.
        "nchan_subscriber; nchan_subscriber_first_message oldest; nchan_subscriber_timeout 0;",
    );
    format!(
        "daemon off;
{user}
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/{LOG} crit;
load_module {NCHAN_MODULE};
events {{ worker_connections {WORKER_CONNECTIONS}; }}
http {{
access_log off;
client_body_temp_path {directory}/body;
proxy_temp_path {directory}/proxy;
fastcgi_temp_path {directory}/fastcgi;
uwsgi_temp_path {directory}/uwsgi;
scgi_temp_path {directory}/scgi;
client_body_buffer_size 64k;
keepalive_requests 1000000000;
keepalive_timeout 1h;
nchan_shared_memory_size {NCHAN_MEMORY_MIB}M;
nchan_message_buffer_length {keep};
nchan_message_timeout 1h;
server {{
listen {address} backlog=4096{ssl};
{certificate}{publisher}{subscriber}}}
}}
"
    )
}

/// The command for Mosquitto.
pub fn mosquitto(
    directory: &Directory,
    port: u16,
    tls: Option<&Certificate>,
    durable: bool,
) -> Result<Command> {
    let config = mosquitto_config(directory.path(), port, tls, durable);
    let path = directory.write("mosquitto.conf", &config)?;
    let mut command = Command::new(program("mosquitto")?);
    command.arg("-c").arg(path);
    Ok(command)
}

/// Mosquitto's configuration. Limits of 0 mean none: by default Mosquitto drops messages of QoS 0 once a subscriber's queue is full. With
/// persistence Mosquitto writes its state at most once a second.
fn mosquitto_config(
    directory: &Path,
    port: u16,
    tls: Option<&Certificate>,
    durable: bool,
) -> String {
    let user = if sys::is_root() { "user root" } else { "" };
    let directory = directory.display();
    let certificate = tls.map_or(String::new(), |tls| {
        let (chain, key) = (tls.chain.display(), tls.key.display());
        format!("certfile {chain}\nkeyfile {key}\n")
    });
    let persistence = if durable {
        format!("true\npersistence_location {directory}/\nautosave_interval 1")
    } else {
        "false".into()
    };
    format!(
        "{user}
listener {port} 127.0.0.1
{certificate}allow_anonymous true
persistence {persistence}
set_tcp_nodelay true
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages 0
max_inflight_bytes 0
sys_interval 0
connection_messages false
log_dest file {directory}/{LOG}
log_type error
log_type notice
"
    )
}

/// The command for NATS with JetStream, which syncs every message before it acknowledges it. Debian has no package of NATS.
pub fn nats(directory: &Directory, port: u16, program: Option<&Path>) -> Result<Command> {
    let store = directory.path().join("jetstream");
    let config = nats::config(&format!("127.0.0.1:{port}"), &store, "");
    let mut command = Command::new(nats::program(program)?);
    command
        .arg("-c")
        .arg(directory.write("nats.conf", &config)?);
    Ok(command)
}

/// Finds a program in `PATH` or in `/usr/sbin`, which only root's `PATH` contains.
pub fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .with_context(|| missing(name))
}

fn missing(what: &str) -> String {
    format!("{what} is not there; `cargo xtask compare` installs it")
}

/// The versions of the peers' packages, for the result; `None` on other systems than Debian.
pub fn versions() -> Option<String> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${Version}\n"])
        .args(["nginx", "libnginx-mod-nchan", "mosquitto"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().replace('\n', ", ")).filter(|text| !text.is_empty())
}
