//! The system calls that the standard library does not offer: epoll, non-blocking sockets, signals and limits, by `rustix`
//! and, where the server's threads need the same, by `net`.
//!
//! The only file of this crate with `unsafe`. Sockets are plain descriptor numbers here, because a
//! load tool keeps a million of them in rows of 24 bytes; the code that opened one closes it, on the
//! thread that opened it (tables are private to threads, see [`part_descriptor_table`]).
//! Not a general wrapper: only what the tools call.

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, socket_with,
    sockopt,
};
use rustix::process::{self, Pid};

/// Binds the calling thread, and the threads that it will start, to one core.
pub use crore_net::affinity::pin_to as pin;
/// Nanoseconds of the machine's monotonic clock: the same in all processes of one machine.
pub use crore_net::clock::monotonic_ns as now_ns;
pub use rustix::process::Signal;

/// Connections that wait to be accepted; the usual `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// How every socket is made.
const SOCKET: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Nanoseconds of processor time that this process has used, all threads together.
pub fn process_cpu_ns() -> u64 {
    cpu_ns_of(0).unwrap_or(0)
}

/// Processor time of process `pid` (0 is this one) so far, in nanoseconds, that of its ended threads included.
///
/// # Errors
/// When there is no such process.
pub fn cpu_ns_of(pid: u32) -> io::Result<u64> {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock` and `time` are valid places for what is written; `time` stays 0 where the process has ended
    // between the two calls.
    let errno = unsafe {
        let errno = libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock);
        libc::clock_gettime(clock, &mut time);
        errno
    };
    match errno {
        0 => Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A descriptor that a row holds, for the length of one call.
#[inline]
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the rows that hold descriptors forget them when they close them.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The events that a descriptor is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Nothing but its end by an error.
    None,
    /// Bytes to read.
    Read,
    /// Room to write.
    Write,
    /// Bytes to read, or room to write.
    ReadWrite,
}

impl Interest {
    /// Bytes to read, and room to write where something waits to be sent.
    pub fn reading(and_writing: bool) -> Interest {
        if and_writing {
            Interest::ReadWrite
        } else {
            Interest::Read
        }
    }

    fn flags(self) -> EventFlags {
        match self {
            Interest::None => EventFlags::empty(),
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::ReadWrite => EventFlags::IN | EventFlags::OUT,
        }
    }
}

/// One readiness.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The key that the descriptor was added with.
    pub key: u64,
    /// Bytes, the end, or an error wait to be read.
    pub readable: bool,
    /// There is room to write, or the connect finished.
    pub writable: bool,
}

/// A level-triggered epoll set and room for the events of one wait.
pub struct Epoll {
    set: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    /// A new set whose waits return at most `capacity` events.
    pub fn new(capacity: usize) -> io::Result<Epoll> {
        let none = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        Ok(Epoll {
            set: epoll::create(CreateFlags::CLOEXEC)?,
            events: vec![none; capacity],
        })
    }

    /// Watches `fd`.
    pub fn add(&self, fd: RawFd, interest: Interest, key: u64) -> io::Result<()> {
        let key = EventData::new_u64(key);
        Ok(epoll::add(&self.set, borrow(fd), key, interest.flags())?)
    }

    /// Changes what `fd` is watched for.
    pub fn modify(&self, fd: RawFd, interest: Interest, key: u64) -> io::Result<()> {
        let key = EventData::new_u64(key);
        Ok(epoll::modify(&self.set, borrow(fd), key, interest.flags())?)
    }

    /// Waits for readiness, at most `timeout` (to the nanosecond), and returns how many came.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match epoll::wait(&self.set, &mut self.events[..], Some(&timeout)) {
            Err(Errno::INTR) => Ok(0),
            count => Ok(count?),
        }
    }

    /// The `index`th readiness of the last wait.
    pub fn ready(&self, index: usize) -> Ready {
        let epoll::Event { flags, data, .. } = self.events[index];
        let broken = EventFlags::HUP | EventFlags::ERR;
        Ready {
            key: data.u64(),
            readable: flags.intersects(EventFlags::IN | broken),
            writable: flags.intersects(EventFlags::OUT | broken),
        }
    }
}

/// Where a connection goes to and comes from.
#[derive(Clone, Copy, Debug)]
pub struct Dial {
    /// The server.
    pub remote: SocketAddr,
    /// The local address; port 0 lets the kernel choose at connect, when it knows the whole tuple
    /// (`IP_BIND_ADDRESS_NO_PORT`), so that a port serves once for each server port.
    pub local: Option<SocketAddr>,
    /// `SO_RCVBUF` in bytes, when not the system's default.
    pub receive_buffer: Option<u32>,
}

/// Opens a non-blocking connection. The flag says whether it is established already, as it nearly
/// always is over loopback; otherwise it becomes writable when it is.
pub fn dial(dial: &Dial) -> io::Result<(RawFd, bool)> {
    let family = if dial.remote.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::STREAM, SOCKET, None)?;
    if let Some(bytes) = dial.receive_buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes as usize)?;
    }
    if let Some(local) = dial.local {
        if local.port() == 0 {
            choose_port_at_connect(socket.as_fd())?;
        } else {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        net::bind(&socket, &local)?;
    }
    let connected = match net::connect(&socket, &dial.remote) {
        Err(Errno::INPROGRESS) => false,
        result => result.map(|()| true)?,
    };
    Ok((socket.into_raw_fd(), connected))
}

/// Sets the one option that `rustix` does not have.
fn choose_port_at_connect(socket: BorrowedFd<'_>) -> io::Result<()> {
    let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    let (value, length) = (1i32, size_of::<i32>() as libc::socklen_t);
    let place = (&raw const value).cast();
    // SAFETY: the pointer and the length describe `value`.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, place, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The result of a connect that was under way.
pub fn connect_result(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::socket_error(borrow(fd))??)
}

/// Sends small writes at once instead of gathering them (`TCP_NODELAY`).
pub fn no_delay(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrow(fd), true)?)
}

/// A non-blocking listener and the address that it got.
pub fn listen(address: SocketAddr) -> io::Result<(RawFd, SocketAddr)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    // A second listen only raises the backlog.
    net::listen(&listener, BACKLOG)?;
    Ok((listener.into_raw_fd(), bound))
}

/// Accepts one connection, non-blocking; `None` when none waits.
pub fn accept(listener: RawFd) -> io::Result<Option<RawFd>> {
    match accept_with(borrow(listener), SOCKET) {
        Err(Errno::AGAIN) => Ok(None),
        accepted => Ok(Some(accepted?.into_raw_fd())),
    }
}

/// Reads; `Ok(0)` is the end.
#[inline]
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (count, _) = net::recv(borrow(fd), buffer, RecvFlags::empty())?;
    Ok(count)
}

/// Writes, perhaps only a part; never raises SIGPIPE.
#[inline]
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(net::send(borrow(fd), bytes, SendFlags::NOSIGNAL)?)
}

/// Waits until `fd` has room to write.
pub fn wait_writable(fd: RawFd) {
    let fd = borrow(fd);
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
}

/// Closes a descriptor of this thread's table.
pub fn close(fd: RawFd) {
    // SAFETY: the rows that hold descriptors forget them when they close them.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Closes a connection with a reset: nothing waits in `TIME_WAIT`.
pub fn reset(fd: RawFd) {
    // Should the option fail, an ordinary close is the next best.
    let _ = sockopt::set_socket_linger(borrow(fd), Some(Duration::ZERO));
    close(fd);
}

/// Gives the calling thread a descriptor table of its own, so that `RLIMIT_NOFILE` bounds the
/// thread and not the process. Only the standard three are in it: a socket that lay in two tables
/// would stay open when its owner closes it.
pub fn part_descriptor_table() -> io::Result<()> {
    crore_net::kernel::fd_table::part(&[])
}

/// How many descriptors one table may hold: the hard limit, after raising the soft one to it.
pub fn raise_descriptor_limit() -> usize {
    crore_net::kernel::fd_table::limit() as usize
}

/// Makes a child run on one core (when given) and end when the calling thread ends: by a kill, or by
/// Ctrl-C's signal when it has children that it must end itself.
pub fn bind_child(command: &mut Command, core: Option<usize>, has_children: bool) {
    let signal = if has_children {
        Signal::INT
    } else {
        Signal::KILL
    };
    let prepare = move || {
        process::set_parent_process_death_signal(Some(signal))?;
        core.map_or(Ok(()), pin)
    };
    // SAFETY: between fork and exec only two system calls are made; nothing is allocated.
    unsafe { command.pre_exec(prepare) };
}

/// Sends a signal to a child that is not waited for yet, or to a process below one, if it is still there.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = process::kill_process(pid, signal);
    }
}

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    process::geteuid().is_root()
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on the first Ctrl-C is only noted, so that the tools can print their last report.
pub fn catch_interrupt() {
    let handler = note_interrupt as extern "C" fn(i32);
    // SAFETY: all zeroes is a valid `sigaction`; the handler only stores an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESETHAND;
        libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
    }
}

/// Whether Ctrl-C was noted.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
