//! Starts a server: opens its ports, state and engine, starts the shards' threads, logs addresses and retention, and then runs the control
//! plane on the calling thread until the server stops.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Barrier, mpsc};

use anyhow::{Context as _, anyhow, bail};
use crore_broker::admission::Admission;
use crore_broker::node::Node;
use crore_broker::rules::Rules;
use crore_broker::settings::{Limits, RetentionMode, Rule, Settings};
use crore_broker::{Offsets, Placement, ShardId, World};
use crore_net::kernel::listener::{HeldPort, SocketOptions};
use crore_net::kernel::steering::Group;
use crore_net::kernel::{Kernel, acceptor, fd_table};
use crore_net::signal::Signals;
use crore_net::xdp::XdpTransport;
use crore_net::{Fd, Sender, affinity, mailbox, memory};
use crore_settings::ClientFilter;
use crore_shard_loop::counters::{Counters, Meter};
use crore_shard_loop::{Appender, ControlLetter, Letter, Run, ShardStart};

use crate::access::{self, VerdictSender, pusher_apps};
use crate::backend::{self, AnswerSender, Backends};
use crate::config::{ALL_TOPICS, DEFAULT_FILE, EffectiveSettings, ServeArgs};
use crate::control;
use crate::doctor::{USUAL_CONNECTIONS, formula};
use crate::engine::{Engine, start_disk};
use crate::http_client::port_in_use;
use crate::lifecycle::{self, RestoredServer, cluster, state};
use crate::settings::file::{DEFAULT_LISTEN, File};
use crate::settings::numbers::format_count;
use crate::settings::problems::size_text;
use crate::settings::tls::Tls;
use crate::settings::units::format_seconds;
use crate::{tls, xdp};

/// The stack size of a shard's thread, in bytes. Pages of the stack that are never touched cost nothing.
const STACK_BYTES: usize = 1 << 20;

/// Serves until the control plane stops.
pub fn serve(
    args: &ServeArgs,
    effective: EffectiveSettings,
    signals: Signals,
) -> anyhow::Result<()> {
    // Ports and files come first, so that faulty settings end the start early.
    let file = &effective.file;
    let (addresses, reserved_ports) = resolve_ports(&file.listen)?;
    let xdp = xdp::attach(file)?;
    let admin_listener = control::open_admin_port(&file.admin)?;
    let shards = file.shards;
    let tls = tls::open(file)?;
    if let Some(fault) = endpoint_faults(file).into_iter().next() {
        return Err(fault);
    }
    let cores = affinity::cores();
    let node = this_node(&addresses, admin_listener.as_ref());
    let revoked = lifecycle::revoke::read_revoked(&effective, None).map_err(anyhow::Error::msg)?;
    let pusher_apps = pusher_apps::read(&file.pusher_apps).map_err(|faults| {
        let lines = faults
            .iter()
            .map(|(key, message)| format!("{key}: {message}"));
        anyhow::anyhow!(lines.collect::<Vec<_>>().join("\n"))
    })?;
    let new_world = |identity: state::StateIdentity| {
        let placement = Placement::for_server(identity.partitions, shards, cores.len());
        let mut settings = effective.settings(node.clone());
        settings.access.revoked = Arc::clone(&revoked);
        settings.pusher_apps.clone_from(&pusher_apps);
        settings.mqtt.durable_sessions = identity.has_durable_sessions;
        create_world(file, settings, placement, &identity)
    };

    // Next the state is read, which may take long. Meanwhile the admin port answers that the server is starting.
    let mailboxes = (0..shards).map(|_| mailbox().context("cannot make a shard's mailbox"));
    let (senders, inboxes): (Vec<_>, Vec<_>) = mailboxes.collect::<anyhow::Result<_>>()?;
    let starting = control::Starting::begin(admin_listener.as_ref(), &file.admin)?;
    let mut restored_server = restore_or_join(file, new_world, &senders)?;
    // Each shard's thread gets a copy of the descriptor table. So the thread that serves the admin port meanwhile must end first, or the copies would
    // keep its sockets open.
    drop(starting);

    let world = restored_server.world;
    let (reports, report_inbox) =
        mailbox::<ControlLetter>().context("cannot make the control thread's mailbox")?;
    let inbox_fds = inboxes.iter().map(|inbox| inbox.fd());
    let revoked = match &restored_server.engine {
        Some(Engine::Nats(member)) => lifecycle::revoke::read_revoked(&effective, Some(member)),
        _ => Ok(revoked),
    };
    let revoked = revoked.map_err(anyhow::Error::msg)?;
    let (verifier, verification_requests) =
        access::start(file.access.as_ref(), revoked, verdict_senders(&senders))?;

    // Next the shards' threads start. They wait until all have opened their sockets, and until the state files are committed.
    let setup = ShardSetup {
        listen: addresses.clone(),
        backlog: file.backlog,
        listeners: Group::new(),
        kept_fds: (inbox_fds.chain([report_inbox.fd()]))
            .chain(xdp.as_ref().map(|it| it.fd()))
            .collect(),
        xdp: xdp.as_ref().map(|it| it.shard_setup()),
        may_serve: Arc::new(Barrier::new(shards + 1)),
    };
    let counters = Counters::new(shards, world.admission.clone());
    let (opened_sender, opened_results) = mpsc::channel();
    let backends = Backends::start(&file.backends)?;
    let logged_clients: Arc<[ClientFilter]> = file.log.clients.clone().into();
    for ((id, inbox), requests) in inboxes.into_iter().enumerate().zip(verification_requests) {
        let (backends, shard) = (backends.clone(), senders[id].clone());
        let reply: AnswerSender =
            Arc::new(move |conn, answer| shard.post(Letter::BackendAnswer(conn, answer)));
        let start = ShardStart {
            id: id as ShardId,
            world: world.clone(),
            restored: restored_server.shards.pop_front(),
            inbox,
            peers: senders.clone(),
            reports: reports.clone(),
            meter: Meter::new(counters.clone(), id as ShardId),
            ask_verifier: Box::new(move |conn, question| requests.ask(conn, question)),
            ask_backend: Box::new(move |conn, call| backends.ask(conn, call, &reply)),
            appender: (restored_server.engine.clone())
                .map(|it| Appender::new(Box::new(it), world.partitions)),
            tls: tls.as_ref().map(tls::Shared::of_shard),
            logged_clients: Arc::clone(&logged_clients),
        };
        let core = file.pin.then(|| cores[id % cores.len()]);
        spawn_shard(start, setup.clone(), core, opened_sender.clone())
            .context("cannot start a shard's thread")?;
    }
    drop(opened_sender);
    opened_results.iter().collect::<anyhow::Result<()>>()?;
    drop(reserved_ports);
    commit_and_serve(restored_server.start_commit, &setup.may_serve)?;

    warn_of_few_connections(shards as u64, &world.settings.limits);
    log_start(&addresses, admin_listener.as_ref(), &effective)?;
    let webhooks = file.webhooks.clone();
    control::run(control::ControlArgs {
        listener: admin_listener,
        admin: file.admin.clone(),
        counters,
        senders,
        reports: report_inbox,
        data_addresses: addresses.clone(),
        data_port: control::DataPortClient::new(
            &addresses,
            tls.as_ref().filter(|_| file.tls.required),
        ),
        signals,
        lifecycle: lifecycle::LifecycleArgs {
            args: args.clone(),
            effective,
            world,
            verifier,
            engine: restored_server.engine,
            restore_time: restored_server.restore_time,
            tls,
        },
        webhooks,
    })
}

/// Checks whether a server with these settings could start on this host: whether the files, directories and addresses in the settings can
/// be used (except the files of `[access]`, and whether the ports are free). Changes nothing, and works while a server with the same settings runs.
///
/// # Errors
/// All faults, one on each line.
pub fn check_host(file: &File) -> anyhow::Result<()> {
    let mut faults = Vec::new();
    faults.extend(tls::open(file).err());
    faults.extend(state::check(&file.state).err());
    faults.extend(endpoint_faults(file));
    if file.xdp.place().is_some() {
        faults.extend(xdp::find(&file.xdp).err());
    }
    let files = file.cluster.files().into_iter();
    let unreadable = files.filter_map(|(key, path)| tls::file(key, path).err());
    faults.extend(unreadable);
    let admin = file.admin.listen.iter().map(|addr| ("admin.listen", addr));
    let data = file.listen.iter().map(|addr| ("listen", addr));
    for (key, addr) in data.chain(admin) {
        // The port of the address is not checked, since a running server may have it.
        let mut any_port = *addr;
        any_port.set_port(0);
        if let Err(error) = UdpSocket::bind(any_port) {
            let ip = addr.ip();
            faults.push(anyhow::anyhow!(
                "{key}: {ip} is no address of this host: {error}; name one that is"
            ));
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = faults.iter().map(|fault| format!("{fault:#}")).collect();
    bail!("{}", lines.join("\n"))
}

/// The faults of webhooks, backends and apps, and of the files that they name.
fn endpoint_faults(file: &File) -> Vec<anyhow::Error> {
    let of_webhooks = control::check_webhooks(&file.webhooks).err();
    let of_backends = backend::check(&file.backends).err();
    let of_apps = pusher_apps::read(&file.pusher_apps).err();
    let faults = of_webhooks.into_iter().chain(of_backends).chain(of_apps);
    let faults = faults.flatten();
    faults
        .map(|(key, message)| anyhow::anyhow!("{key}: {message}"))
        .collect()
}

/// Makes the state that all shards share.
fn create_world(
    file: &File,
    settings: Settings,
    placement: Placement,
    identity: &state::StateIdentity,
) -> Arc<World> {
    let admission = Admission::new(&settings, identity.seed);
    if file.state.is_durable() {
        admission.begin_counting_kept_bytes();
    }
    Arc::new(World {
        admission,
        rules: Rules::new(&settings.rules),
        settings,
        shards: file.shards as ShardId,
        homes: placement.homes(),
        partitions: placement.partitions(),
        epoch: identity.epoch,
        // The writer number is new at each start.
        writer: (file.state.is_durable() || file.cluster.is_on()).then(|| memory::random_u64() | 1),
        offsets: match file.cluster.is_on() {
            true => Offsets::ByLog,
            false => Offsets::ByWriter,
        },
        seed: identity.seed,
    })
}

/// Marks the state files of the former process as used, so that no later start reads them again, and then lets the shards serve.
fn commit_and_serve(
    start_commit: Option<state::StartCommit>,
    may_serve: &Barrier,
) -> anyhow::Result<()> {
    if let Some(start_commit) = start_commit {
        start_commit.commit()?;
    }
    may_serve.wait();
    Ok(())
}

/// The functions that send verdicts about credentials to the shards, one for each shard.
fn verdict_senders(shards: &[Sender<Letter>]) -> Vec<VerdictSender> {
    let sender = |shard: Sender<Letter>| -> VerdictSender {
        Box::new(move |conn, verdict| shard.post(Letter::Verdict(conn, verdict)))
    };
    shards.iter().cloned().map(sender).collect()
}

/// The name of this node (host and data port), and the URL of its admin port, for the other nodes of a cluster.
fn this_node(listen: &[SocketAddr], admin: Option<&TcpListener>) -> Node {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let port = listen.first().map_or(0, SocketAddr::port);
    let admin = admin.and_then(|listener| listener.local_addr().ok());
    Node {
        name: format!("{}:{port}", host.trim()),
        admin_address: admin.map_or(String::new(), |admin| match admin.ip().is_unspecified() {
            true => format!("http://{}:{}", host.trim(), admin.port()),
            false => format!("http://{admin}"),
        }),
    }
}

/// Joins the cluster, or restores the state in the state directory. Starts the engine, if there is a log.
fn restore_or_join(
    file: &File,
    new_world: impl Fn(state::StateIdentity) -> Arc<World>,
    shards: &[Sender<Letter>],
) -> anyhow::Result<RestoredServer> {
    if file.cluster.is_on() {
        return cluster::join(file, new_world, shards);
    }
    let resumed = state::resume(&file.state, file.partitions, new_world)?;
    let start = |log| {
        let (world, admission) = (&resumed.world, resumed.world.admission.clone());
        let report_log_space = move |space: crore_disk::LogSpace| {
            admission.set_disk_full(space.is_full);
            admission.set_disk_room(space.free_bytes, space.bytes_max);
        };
        start_disk(log, world.placement(), shards.to_vec(), report_log_space)
    };
    let engine = resumed.log.map(start).transpose();
    let engine = engine.context("cannot start the thread of the log")?;
    Ok(RestoredServer {
        world: resumed.world,
        shards: resumed.shards,
        engine: engine.map(Engine::Disk),
        start_commit: resumed.start_commit,
        restore_time: resumed.restore_time,
    })
}

/// Starts a shard's thread, which reports through `opened_sender` whether its sockets are open.
fn spawn_shard(
    start: ShardStart,
    setup: ShardSetup,
    core: Option<usize>,
    opened_sender: mpsc::Sender<anyhow::Result<()>>,
) -> std::io::Result<()> {
    let thread = std::thread::Builder::new()
        .name(format!("shard-{}", start.id))
        .stack_size(STACK_BYTES);
    let run = move || match open_shard(start, &setup, core) {
        Ok(shard) => {
            let _ = opened_sender.send(Ok(()));
            drop(opened_sender);
            setup.may_serve.wait();
            shard.run();
        }
        Err(error) => {
            let _ = opened_sender.send(Err(error));
        }
    };
    thread.spawn(run).map(drop)
}

/// The setup of the shards' sockets, which is the same for all shards.
#[derive(Clone)]
struct ShardSetup {
    listen: Vec<SocketAddr>,
    /// The length of the accept queue.
    backlog: u32,
    /// For each address, the listeners of all shards.
    listeners: Arc<Group>,
    /// The eventfds of all inboxes, and what shards need of `xdp`.
    kept_fds: Vec<Fd>,
    /// Connections over `AF_XDP`, if there are any.
    xdp: Option<xdp::ShardSetup>,
    /// Opens when the state files of the former process are marked as used. No shard serves before.
    may_serve: Arc<Barrier>,
}

/// Pins the calling thread to its core, gives it a descriptor table of its own, opens a shard's sockets there, and makes the shard's loop.
fn open_shard(
    start: ShardStart,
    setup: &ShardSetup,
    core: Option<usize>,
) -> anyhow::Result<Box<dyn Run>> {
    if let Some(core) = core {
        affinity::pin_to(core)?;
    }
    fd_table::unshare(&setup.kept_fds)?;
    let limits = &start.world.settings.limits;
    let unsent_bytes = limits.send_buffer_bytes;
    let limits = acceptor::Limits {
        backlog: setup.backlog,
        connections_max: u32::try_from(limits.connections_per_shard).unwrap_or(u32::MAX),
        sockets: SocketOptions {
            unsent_bytes: (unsent_bytes > 0)
                .then(|| u32::try_from(unsent_bytes).unwrap_or(u32::MAX)),
        },
    };
    let endpoint = match &setup.xdp {
        Some(xdp) => xdp.open(start.id)?,
        None => None,
    };
    let mut sockets = Kernel::open(&setup.listen, limits, &setup.listeners)?;
    sockets.woken_by(&start.inbox)?;
    Ok(match endpoint {
        Some(endpoint) => {
            let sockets = XdpTransport::new(sockets, endpoint)?;
            crore_shard_loop::new_xdp_loop(start, sockets)
        }
        None => crore_shard_loop::new_loop(start, sockets),
    })
}

/// The addresses with their final ports. All shards listen on the same port. So for port 0 the kernel chooses a port here, once, and the port is
/// reserved until the shards listen on it.
///
/// # Errors
/// An address cannot be bound, or its port is in use. This must be checked here: the shards bind with `SO_REUSEPORT`, so they would silently share
/// the port with another server, and each server would get a part of the clients.
fn resolve_ports(listen: &[SocketAddr]) -> anyhow::Result<(Vec<SocketAddr>, Vec<HeldPort>)> {
    let (mut addresses, mut reserved_ports) = (Vec::new(), Vec::new());
    for addr in listen {
        let listen_address = match addr.port() {
            0 => HeldPort::choose(*addr).map(|port| {
                let chosen = port.addr();
                reserved_ports.push(port);
                chosen
            }),
            // This socket has no `SO_REUSEPORT`, so binding it fails if the port is in use. It is closed at once.
            _ => TcpListener::bind(addr).and_then(|listener| listener.local_addr()),
        };
        let bound = listen_address.map_err(|error| {
            let remedy = port_in_use::remedy(*addr, &error, "--listen");
            anyhow!("cannot listen on {addr}: {remedy}")
        });
        addresses.push(bound?);
    }
    Ok((addresses, reserved_ports))
}

/// Logs the addresses, the retention, the source of the settings, and the first steps.
fn log_start(
    listen: &[SocketAddr],
    admin: Option<&TcpListener>,
    effective: &EffectiveSettings,
) -> anyhow::Result<()> {
    log_addresses(listen, &effective.file.tls);
    if let Some(admin) = admin {
        tracing::info!(
            "admin port at http://{} (a console in a browser)",
            admin.local_addr()?
        );
    }
    log_retention(&effective.file);
    match &effective.file_path {
        Some(path) => tracing::info!("settings of {}", path.display()),
        None => tracing::info!("built-in settings, since there is no ./{DEFAULT_FILE}"),
    }
    let variables = effective.variables();
    if !variables.is_empty() {
        tracing::info!("settings of the environment: {}", variables.join(", "));
    }
    // The commands of the first steps would fail if clients need a token or a root to trust.
    if effective.file.access.is_none() && !effective.file.tls.required {
        log_first_steps(listen);
    }
    Ok(())
}

/// Logs the URLs of the data ports.
fn log_addresses(listen: &[SocketAddr], tls: &Tls) {
    for addr in listen {
        let urls = match (tls.is_on(), tls.required) {
            (false, _) => format!("http://{addr}"),
            (true, false) => format!("http://{addr} and https://{addr}"),
            (true, true) => format!("https://{addr} (tls.required is on: TLS only)"),
        };
        tracing::info!("listening on {urls}");
    }
}

/// Logs which messages are kept, and where.
fn log_retention(file: &File) {
    let is_for_all = |rule: &&Rule| rule.filter == ALL_TOPICS;
    let rule = file.rules.iter().find(is_for_all).cloned();
    let other_rules = match file.rules.len() - usize::from(rule.is_some()) {
        0 => String::new(),
        1 => "; one [[rule]] sets something else for some topics".to_string(),
        several => format!("; {several} [[rule]] tables set something else for some topics"),
    };
    let rule = rule.unwrap_or_default();
    let kept_at_most = match rule.keep {
        RetentionMode::Latest => format!("the latest message of up to {} keys", rule.keys_max),
        RetentionMode::Log if rule.log_messages == 0 => {
            return tracing::info!("topics keep no messages (rule.log_messages is 0){other_rules}");
        }
        RetentionMode::Log => {
            let mut limits = vec![size_text(rule.log_bytes)];
            // The default number of messages is so high that only bytes and age matter.
            if rule.log_messages < Rule::default().log_messages {
                let messages = format_count(rule.log_messages.into());
                limits.insert(0, format!("{messages} messages"));
            }
            let limits_text = limits.join(" and ");
            match rule.log_age_s {
                0 => format!("up to {limits_text} of messages"),
                age_s => format!(
                    "the messages of the last {}, up to {limits_text},",
                    format_seconds(age_s.into())
                ),
            }
        }
    };
    match file.state.directory() {
        None if file.cluster.is_on() => tracing::info!(
            "each topic keeps {kept_at_most} in the log of the cluster `{}` in NATS, which outlives every node{other_rules}",
            file.cluster.name
        ),
        None => tracing::info!(
            "each topic keeps {kept_at_most} in memory, until a restart (state.directory keeps them on disk){other_rules}"
        ),
        Some(directory) if file.state.is_durable() && rule.durable => {
            tracing::info!(
                "each topic keeps {kept_at_most} on disk in {}{other_rules}",
                directory.display()
            );
        }
        Some(directory) => tracing::info!(
            "each topic keeps {kept_at_most} in memory, and over a planned restart in {}{other_rules}",
            directory.display()
        ),
    }
}

/// Logs the first steps, for a user who tries out the program.
fn log_first_steps(listen: &[SocketAddr]) {
    let server_flag = match listen.first() {
        Some(address) if address.to_string() != DEFAULT_LISTEN => {
            format!(" --server http://{address}")
        }
        _ => String::new(),
    };
    tracing::info!(
        "try it: `crore sub news{server_flag}`, and in another terminal `crore pub news Hello{server_flag}`"
    );
}

/// Warns if the limit of file descriptors leaves room for few connections.
fn warn_of_few_connections(shards: u64, limits: &Limits) {
    let by_descriptors = formula::connections_by_descriptors(fd_table::raise_limit(), shards);
    let by_shards = limits.connections_per_shard as u64 * shards;
    let by_settings = by_shards.min(limits.connections_max as u64);
    if by_descriptors < USUAL_CONNECTIONS.min(by_settings) {
        tracing::warn!(
            "room for {by_descriptors} connections only; `crore doctor` says what to raise"
        );
    }
}
