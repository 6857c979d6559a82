//! The system calls that the standard library does not offer: epoll, raw sockets, private
//! descriptor tables, core affinity, clocks.
//!
//! The only file of this crate with `unsafe`. Sockets are plain descriptor numbers here, because a
//! load tool keeps a million of them in rows of 24 bytes; whoever opened one closes it, on the
//! thread that opened it (tables are private to threads, see [`part_descriptor_table`]).
//! Not a general wrapper: only what the tools call.

#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Connections that wait to be accepted; the usual `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Nanoseconds of the machine's monotonic clock: the same in all processes of one machine.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of processor time that this process has used, all threads together.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time of process `pid` so far, in nanoseconds, that of its ended threads included.
///
/// # Errors
/// When there is no such process.
pub fn cpu_ns_of(pid: u32) -> io::Result<u64> {
    let mut clock = 0;
    // SAFETY: `clock` is a valid place for one clock.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => Ok(clock_ns(clock)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for one timespec, which stays 0 where the clock's process has ended.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What a descriptor is watched for.
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
    fd: RawFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A new set whose waits return at most `capacity` events.
    pub fn new(capacity: usize) -> io::Result<Epoll> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Epoll {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; capacity],
        })
    }

    /// Watches `fd`.
    pub fn add(&self, fd: RawFd, interest: Interest, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, key)
    }

    /// Changes what `fd` is watched for.
    pub fn modify(&self, fd: RawFd, interest: Interest, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, key)
    }

    fn control(&self, operation: i32, fd: RawFd, interest: Interest, key: u64) -> io::Result<()> {
        let flags = match interest {
            Interest::None => 0,
            Interest::Read => libc::EPOLLIN,
            Interest::Write => libc::EPOLLOUT,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
        };
        let mut event = libc::epoll_event {
            events: flags as u32,
            u64: key,
        };
        // SAFETY: `event` lives through the call.
        check(unsafe { libc::epoll_ctl(self.fd, operation, fd, &mut event) }).map(drop)
    }

    /// Waits for readiness, at most `timeout` (to the nanosecond), and returns how many came.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let time = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: the pointers and the length describe `self.events`; the signal mask is null.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd,
                self.events.as_mut_ptr(),
                self.events.len() as i32,
                &raw const time,
                std::ptr::null::<libc::sigset_t>(),
                size_of::<u64>(),
            )
        };
        match check(count as i32) {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The `index`th readiness of the last wait.
    pub fn ready(&self, index: usize) -> Ready {
        let event = self.events[index];
        let flags = event.events as i32;
        let broken = libc::EPOLLHUP | libc::EPOLLERR;
        Ready {
            key: event.u64,
            readable: flags & (libc::EPOLLIN | broken) != 0,
            writable: flags & (libc::EPOLLOUT | broken) != 0,
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        close(self.fd);
    }
}

fn encode(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let place = &raw mut storage;
    let length = match address {
        SocketAddr::V4(v4) => {
            let plain = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is larger than, and aligned for, every socket address.
            unsafe { place.cast::<libc::sockaddr_in>().write(plain) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let plain = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(plain) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), length) }).map(drop)
}

fn socket(address: SocketAddr) -> io::Result<RawFd> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    check(unsafe { libc::socket(family, kind, 0) })
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
    let fd = socket(dial.remote)?;
    let result = dial_with(fd, dial);
    if result.is_err() {
        close(fd);
    }
    result.map(|connected| (fd, connected))
}

fn dial_with(fd: RawFd, dial: &Dial) -> io::Result<bool> {
    if let Some(bytes) = dial.receive_buffer {
        set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes as i32)?;
    }
    if let Some(local) = dial.local {
        if local.port() == 0 {
            set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        } else {
            set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        }
        let (storage, length) = encode(local);
        // SAFETY: the pointer and the length describe a valid address.
        check(unsafe { libc::bind(fd, (&raw const storage).cast(), length) })?;
    }
    let (storage, length) = encode(dial.remote);
    // SAFETY: as above.
    match check(unsafe { libc::connect(fd, (&raw const storage).cast(), length) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What became of a connect that was under way.
pub fn connect_result(fd: RawFd) -> io::Result<()> {
    let mut code = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointers describe `code` and its length.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut code).cast(),
            &mut length,
        )
    })?;
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(code))
    }
}

/// Sends small writes at once instead of gathering them (`TCP_NODELAY`).
pub fn no_delay(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)
}

/// A non-blocking listener and the address that it got.
pub fn listen(address: SocketAddr) -> io::Result<(RawFd, SocketAddr)> {
    use std::os::fd::IntoRawFd;
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let fd = listener.into_raw_fd();
    // SAFETY: no pointers. A second listen only raises the backlog.
    check(unsafe { libc::listen(fd, BACKLOG) })?;
    Ok((fd, bound))
}

/// Accepts one connection, non-blocking; `None` when none waits.
pub fn accept(listener: RawFd) -> io::Result<Option<RawFd>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let nowhere = std::ptr::null_mut();
    // SAFETY: null says that the peer's address is not wanted.
    match check(unsafe { libc::accept4(listener, nowhere, std::ptr::null_mut(), flags) }) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads; `Ok(0)` is the end.
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `buffer`.
    let count = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if count < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(count as usize)
    }
}

/// Writes, perhaps only a part; never raises SIGPIPE.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length describe `bytes`.
    let count = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if count < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(count as usize)
    }
}

/// Waits until `fd` has room to write.
pub fn wait_writable(fd: RawFd) {
    let mut watch = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut watch, 1, -1) };
}

/// Closes a descriptor of this thread's table.
pub fn close(fd: RawFd) {
    // SAFETY: the rows that hold descriptors forget them when they close them.
    unsafe { libc::close(fd) };
}

/// Closes a connection with a reset: nothing waits in `TIME_WAIT`.
pub fn reset(fd: RawFd) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let length = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `linger`.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            length,
        );
    }
    close(fd);
}

/// Gives the calling thread a descriptor table of its own, so that `RLIMIT_NOFILE` bounds the
/// thread and not the process. Only the standard three are in it: a socket that lay in two tables
/// would stay open when its owner closes it.
pub fn part_descriptor_table() -> io::Result<()> {
    let (first, last) = (3u32, u32::MAX);
    // SAFETY: no pointers; the flag makes the call concern only the calling thread's new table.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    check(result as i32).map(drop)
}

/// How many descriptors one table may hold: the hard limit, after raising the soft one to it.
pub fn raise_descriptor_limit() -> io::Result<usize> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for one rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_max as usize)
}

/// Binds the calling thread, and the threads that it will start, to one core.
pub fn pin(core: usize) -> io::Result<()> {
    // SAFETY: all zeroes is an empty cpu_set_t; CPU_SET checks its bounds.
    check(unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    })
    .map(drop)
}

/// Makes a child run on one core (when given) and end when the calling thread ends: by a kill, or by
/// Ctrl-C's signal when it has children that it must end itself.
pub fn bind_child(command: &mut Command, core: Option<usize>, has_children: bool) {
    let signal = if has_children {
        libc::SIGINT
    } else {
        libc::SIGKILL
    };
    let prepare = move || {
        // SAFETY: no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })?;
        core.map_or(Ok(()), pin)
    };
    // SAFETY: between fork and exec only two system calls are made; nothing is allocated.
    unsafe { command.pre_exec(prepare) };
}

/// Sends Ctrl-C's signal to a child, which then prints its result.
pub fn interrupt(pid: u32) {
    // SAFETY: no pointers; the caller's child is not waited for yet, so its id is still its own.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGINT) };
}

/// Asks a child to end in order.
pub fn terminate(pid: u32) {
    // SAFETY: as above.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
}

/// Asks a child to read its settings again.
pub fn hang_up(pid: u32) {
    // SAFETY: as above.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGHUP) };
}

/// Stops a child where it is, until it is killed.
pub fn halt(pid: u32) {
    // SAFETY: as above.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGSTOP) };
}

/// Ends a process at once.
pub fn kill(pid: u32) {
    // SAFETY: no pointers; the caller has seen the process below a child that is not waited for yet.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on the first Ctrl-C is only noted, so that the tools can print their last report.
pub fn catch_interrupt() {
    let handler = note_interrupt as extern "C" fn(i32);
    // SAFETY: the handler only stores an atomic.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESETHAND;
        libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
    }
}

/// Whether Ctrl-C was noted.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
