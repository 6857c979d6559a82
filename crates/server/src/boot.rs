//! Starts the shards, says what they listen on and how much room this host has, and hands the thread over to the
//! control plane until a signal says to stop.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;

use anyhow::Context as _;
use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Limits;
use crore_broker::{ShardId, World};
use crore_net::signal::Signals;
use crore_net::steering::Group;
use crore_net::{affinity, fd_table, mailbox};

use crate::access;
use crate::board::{Board, Meter};
use crate::cli::ServeArgs;
use crate::config::{self, Effective};
use crate::control;
use crate::doctor::formula;
use crate::life::{self, state};
use crate::shard_loop::{Letter, Reported, ShardLoop, Start};
use crate::tls;

/// The stack of a shard's thread; what it never touches costs nothing.
const STACK_BYTES: usize = 1 << 20;

/// Serves until told to stop.
pub fn serve(args: &ServeArgs, effective: Effective) -> anyhow::Result<()> {
    let signals = Signals::block().context("cannot block signals")?;
    let Effective {
        listen,
        shards,
        pin,
        backlog,
        settings,
        access: access_settings,
        admin,
        tls,
        state,
        ..
    } = effective.clone();
    let admin_listener = control::listen(&admin)?;
    let listen = with_ports(&listen)?;
    let tls_only = tls.required;
    let spoken = spoken(&tls);
    let tls = tls::open(&tls, &settings, shards)?;
    let cores = affinity::cores();
    let homes = shards.min(cores.len());
    let new_world = |epoch, seed| {
        Arc::new(World {
            admission: Admission::new(&settings, seed),
            rules: Rules::new(&settings.rules),
            settings: settings.clone(),
            shards: shards as ShardId,
            homes: homes as ShardId,
            epoch,
            seed,
        })
    };
    let (world, used) = state::resume(state.directory(), homes, new_world)?;
    let (mut restored, ticket) = used.map(state::Used::part).unzip();
    let (mut senders, mut inboxes) = (Vec::new(), Vec::new());
    for _ in 0..shards {
        let (sender, inbox) = mailbox::<Letter>().context("cannot make a shard's mailbox")?;
        senders.push(sender);
        inboxes.push(inbox);
    }
    let (reports, reported) =
        mailbox::<Reported>().context("cannot make the control thread's mailbox")?;
    let mut wakes: Vec<_> = inboxes.iter().map(|inbox| inbox.fd()).collect();
    wakes.push(reported.fd());
    let (desk, askers) = access::start(access_settings.as_ref(), &senders)?;
    let group = Group::new();
    let board = Board::new(shards);
    let (ready, started) = mpsc::channel();
    for ((id, inbox), asker) in inboxes.into_iter().enumerate().zip(askers) {
        let start = Start {
            id: id as ShardId,
            world: world.clone(),
            restored: restored.as_mut().and_then(VecDeque::pop_front),
            listen: listen.clone(),
            backlog,
            group: group.clone(),
            inbox,
            peers: senders.clone(),
            reports: reports.clone(),
            meter: Meter::new(board.clone(), id as ShardId),
            asker,
            wakes: wakes.clone(),
            core: pin.then(|| cores[id % cores.len()]),
            tls: tls.clone(),
        };
        let ready = ready.clone();
        std::thread::Builder::new()
            .name(format!("shard-{id}"))
            .stack_size(STACK_BYTES)
            .spawn(move || match ShardLoop::new(start) {
                Ok(shard) => {
                    let _ = ready.send(Ok(()));
                    drop(ready);
                    shard.run();
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })
            .context("cannot start a shard's thread")?;
    }
    drop(ready);
    for begun in started {
        begun?;
    }
    if let Some(ticket) = ticket {
        ticket.used_up()?;
    }
    for addr in &listen {
        tracing::info!("listening on {}", spoken(addr));
    }
    say_room(shards as u64, &world.settings.limits);
    control::run(control::Start {
        listener: admin_listener,
        admin,
        board,
        senders,
        reports: reported,
        listen: listen.clone(),
        door: control::Door::new(&listen, tls.as_ref().filter(|_| tls_only)),
        signals,
        life: life::Start {
            args: args.clone(),
            effective,
            world,
            desk,
            tls,
        },
    })
}

/// All shards of a listener share one port: a port that the kernel chooses is chosen here. Nobody else may have it: their
/// sockets would share it with another server's (`SO_REUSEPORT`) just as silently, and each would get a part of the clients.
fn with_ports(listen: &[SocketAddr]) -> anyhow::Result<Vec<SocketAddr>> {
    let choose = |addr: &SocketAddr| {
        // It shares with nobody, and is closed before the shards open theirs.
        let alone = TcpListener::bind(addr).and_then(|listener| listener.local_addr());
        alone.with_context(|| {
            format!(
                "cannot listen on {addr}; name another address with --listen, or end the program that has this one"
            )
        })
    };
    listen.iter().map(choose).collect()
}

/// What a data port speaks, as the URLs by which it is reached.
fn spoken(tls: &config::Tls) -> fn(&SocketAddr) -> String {
    match (tls.is_on(), tls.required) {
        (false, _) => |addr| format!("http://{addr}"),
        (true, false) => |addr| format!("http://{addr} and https://{addr}"),
        (true, true) => |addr| format!("https://{addr} (tls.required is on: TLS only)"),
    }
}

/// How many connections the limits of this host allow, and what to raise for more.
fn say_room(shards: u64, limits: &Limits) {
    let by_descriptors = formula::room_by_descriptors(fd_table::limit(), shards);
    let by_shards = limits.connections_per_shard as u64 * shards;
    let connections_max = limits.connections_max as u64;
    let (room, raise) = if by_shards < by_descriptors.min(connections_max) {
        (by_shards, "limits.connections_per_shard binds first")
    } else if by_descriptors < connections_max {
        (
            by_descriptors,
            "raise RLIMIT_NOFILE (ulimit -n) or --shards for more (`crore doctor` says how far): each shard has a descriptor table of its own",
        )
    } else {
        (connections_max, "limits.connections_max binds first")
    };
    tracing::info!(
        descriptors = by_descriptors,
        connections_max,
        "room for {room} connections; {raise}"
    );
}
