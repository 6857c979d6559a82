//! System calls that the standard library does not offer: epoll, non-blocking sockets, signals and limits. They are made with `rustix`, or
//! with `crore_net` if the server needs the same call.
//!
//! This and `sys/tun.rs` are the only files of the crate with `unsafe`. Sockets are plain descriptor numbers here, because a
//! load tool keeps a million of them in rows of 24 bytes. The code that opened a socket closes it, on the
//! same thread, because each thread may have its own descriptor table ([`unshare_descriptor_table`]).

#![allow(unsafe_code)]

pub mod tun;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crore_net::Fd;
use crore_net::kernel::socket;
use rustix::event::epoll::{self, CreateFlags, EventData};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, socket_with,
    sockopt,
};
use rustix::process::{self, Pid};

/// Binds the calling thread, and the threads that it starts later, to one core.
pub use crore_net::affinity::pin_to as pin;
/// Nanoseconds of the machine's monotonic clock: the same in all processes of one machine.
pub use crore_net::clock::monotonic_ns as now_ns;
/// The events for which a descriptor is watched: `IN` (readable) and `OUT` (writable). Errors are always reported.
pub use rustix::event::epoll::EventFlags as Interest;
pub use rustix::process::Signal;

/// Listen backlog: the usual `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// The flags of every socket.
const SOCKET: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Nanoseconds of processor time that this process has used, all threads together.
pub fn process_cpu_ns() -> u64 {
    cpu_ns_of(0).unwrap_or(0)
}

/// Processor time of process `pid` so far (0 is this process), in nanoseconds. Threads that have ended are included.
///
/// # Errors
/// If the process does not exist.
pub fn cpu_ns_of(pid: u32) -> io::Result<u64> {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock` and `time` are valid places for the results. If the process has ended between the two calls, `time` stays 0.
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

/// Borrows a descriptor for one system call.
#[inline]
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the holder of a descriptor forgets the descriptor when it closes it, so the descriptor is open during the call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The events to watch on a connection that is read: readable and, if `and_writing`, also writable.
pub fn reading(and_writing: bool) -> Interest {
    if and_writing {
        Interest::IN | Interest::OUT
    } else {
        Interest::IN
    }
}

/// One descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The key with which the descriptor was added.
    pub key: u64,
    /// A read gives bytes, the end or an error.
    pub readable: bool,
    /// There is room to write, or the connect has finished.
    pub writable: bool,
}

/// A level-triggered epoll set, with room for the events of one wait.
pub struct Epoll {
    set: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    /// A new set whose waits return at most `capacity` events.
    pub fn new(capacity: usize) -> io::Result<Epoll> {
        let none = epoll::Event {
            flags: Interest::empty(),
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
        Ok(epoll::add(&self.set, borrow(fd), key, interest)?)
    }

    /// Changes the events for which `fd` is watched.
    pub fn modify(&self, fd: RawFd, interest: Interest, key: u64) -> io::Result<()> {
        let key = EventData::new_u64(key);
        Ok(epoll::modify(&self.set, borrow(fd), key, interest)?)
    }

    /// Waits at most `timeout` (to the nanosecond) and returns how many descriptors are ready.
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

    /// The ready descriptor `index` of the last wait.
    pub fn ready(&self, index: usize) -> Ready {
        let epoll::Event { flags, data, .. } = self.events[index];
        let broken = Interest::HUP | Interest::ERR;
        Ready {
            key: data.u64(),
            readable: flags.intersects(Interest::IN | broken),
            writable: flags.intersects(Interest::OUT | broken),
        }
    }
}

/// The addresses and options of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct DialOptions {
    /// The server.
    pub remote: SocketAddr,
    /// The local address. With port 0 the kernel chooses the port only at connect (`IP_BIND_ADDRESS_NO_PORT`), when it knows the server's
    /// address. So the same local port can be used once for each port of the server.
    pub local: Option<SocketAddr>,
    /// `SO_RCVBUF` in bytes, if it is not the system's default.
    pub receive_buffer: Option<u32>,
}

/// Opens a non-blocking connection. The flag says whether the connection is established already, as nearly always over loopback. Otherwise
/// the descriptor becomes writable when it is.
pub fn dial(dial: &DialOptions) -> io::Result<(RawFd, bool)> {
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
        // `rustix` does not have this option, with which the kernel chooses the port at connect.
        let fd = Fd(socket.as_raw_fd() as u32);
        crore_net::set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        net::bind(&socket, &local)?;
    }
    let connected = match net::connect(&socket, &dial.remote) {
        Err(Errno::INPROGRESS) => false,
        result => result.map(|()| true)?,
    };
    Ok((socket.into_raw_fd(), connected))
}

/// The result of a connect that was in progress.
pub fn connect_result(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::socket_error(borrow(fd))??)
}

/// Sends small writes at once instead of gathering them (`TCP_NODELAY`).
pub fn no_delay(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrow(fd), true)?)
}

/// Opens a non-blocking listener and returns its address.
pub fn listen(address: SocketAddr) -> io::Result<(RawFd, SocketAddr)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    // The socket listens already. A second `listen` only raises the backlog.
    net::listen(&listener, BACKLOG)?;
    Ok((listener.into_raw_fd(), bound))
}

/// Accepts one connection as a non-blocking socket; `None` if none waits.
pub fn accept(listener: RawFd) -> io::Result<Option<RawFd>> {
    match accept_with(borrow(listener), SOCKET) {
        Err(Errno::AGAIN) => Ok(None),
        accepted => Ok(Some(accepted?.into_raw_fd())),
    }
}

/// Reads; `None` if no data is available, `Some(0)` at the end of the stream.
#[inline]
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match net::recv(borrow(fd), buffer, RecvFlags::empty()) {
        Err(Errno::AGAIN) => Ok(None),
        received => Ok(Some(received?.0)),
    }
}

/// Writes as much as the socket accepts, possibly 0 bytes. Never raises SIGPIPE.
#[inline]
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    match net::send(borrow(fd), bytes, SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN) => Ok(0),
        sent => Ok(sent?),
    }
}

/// Waits until `fd` has room to write.
pub fn wait_writable(fd: RawFd) {
    let fd = borrow(fd);
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
}

/// Closes a descriptor of this thread's table.
pub fn close(fd: RawFd) {
    socket::close(Fd(fd as u32));
}

/// Closes a connection with a reset, so that it leaves nothing in `TIME_WAIT`.
pub fn reset(fd: RawFd) {
    socket::reset(Fd(fd as u32));
}

/// Gives the calling thread its own descriptor table, so that `RLIMIT_NOFILE` limits the thread and not the process. The new
/// table has only the three standard descriptors, because a socket in two tables would stay open when its owner closes it.
pub fn unshare_descriptor_table() -> io::Result<()> {
    crore_net::kernel::fd_table::unshare(&[])
}

/// Moves the calling thread, and the processes that it starts, into a new mount namespace.
pub fn unshare_mounts() -> io::Result<()> {
    tun::unshare(libc::CLONE_NEWNS)
}

/// Raises the soft limit of descriptors to the hard limit, and returns the size of one descriptor table.
pub fn raise_descriptor_limit() -> usize {
    crore_net::kernel::fd_table::raise_limit() as usize
}

/// Makes a child run on `core`, if given, and end when the calling thread ends: then the kernel sends SIGKILL to the child, or SIGINT if
/// the child has children that it must end itself.
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
    // SAFETY: between fork and exec only two system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(prepare) };
}

/// Sends a signal to a process, if it still exists.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = process::kill_process(pid, signal);
    }
}

/// Raises the scheduling priority of the calling thread, if this process may do so.
pub fn favour_thread() {
    /// This niceness is enough to run before hundreds of ready threads of normal priority.
    const NICER: i32 = -10;
    let _ = process::nice(NICER);
}

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    process::geteuid().is_root()
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes the first Ctrl-C only set a flag ([`interrupted`]), so that the tools can print their last report.
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

/// Whether Ctrl-C was pressed since [`catch_interrupt`].
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
