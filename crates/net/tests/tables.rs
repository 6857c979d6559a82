//! Tests separate descriptor tables of threads: which descriptors a thread sees after it has parted (got its own table), and which it
//! leaves alone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use crore_net::kernel::driver::{self, Driver};
use crore_net::kernel::listener::{Accepted, Listener, SocketOptions};
use crore_net::kernel::{fd_table, socket};
use crore_net::{Fd, mailbox};
use proptest::prelude::*;

fn fd_of(socket: &impl AsRawFd) -> Fd {
    Fd(u32::try_from(socket.as_raw_fd()).unwrap())
}

/// Whether the calling thread's table has this descriptor.
fn is_open(fd: Fd) -> bool {
    Path::new(&format!("/proc/thread-self/fd/{}", fd.0))
        .symlink_metadata()
        .is_ok()
}

fn apart<R: Send>(keep: &[Fd], run: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        scope
            .spawn(|| {
                fd_table::unshare(keep).unwrap();
                run()
            })
            .join()
            .unwrap()
    })
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn separate_descriptor_table_holds_only_the_kept_descriptors(
        order in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle(),
        kept in 0..=12_usize,
        twice in any::<bool>(),
    ) {
        let all: Vec<Fd> = (0..12).map(|_| mailbox::<u8>().unwrap().1.fd()).collect();
        let mut keep: Vec<Fd> = order[..kept].iter().map(|i| all[*i]).collect();
        if twice {
            keep.extend_from_within(..);
            keep.extend([Fd(0), Fd(2)]);
        }
        apart(&keep, || {
            for fd in &all {
                assert_eq!(is_open(*fd), keep.contains(fd), "{fd:?} of {keep:?}");
            }
            assert!((0..3).all(|fd| is_open(Fd(fd))));
        });
        for fd in all {
            assert!(is_open(fd), "{fd:?} of the thread that did not part");
            socket::close(fd);
        }
    }
}

#[test]
fn listeners_of_two_tables_share_the_connections_of_one_port() {
    const CONNECTIONS: usize = 64;
    let bound = Arc::new(Barrier::new(3));
    let taken = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    let shard = |addr: SocketAddr| {
        let (bound, taken, tell) = (Arc::clone(&bound), Arc::clone(&taken), tell.clone());
        thread::spawn(move || {
            fd_table::unshare(&[]).unwrap();
            let listener = Listener::bind(addr, 128, &SocketOptions::default()).unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let mut driver = Driver::new(4).unwrap();
            driver
                .add(listener.fd(), driver::listener_token(1))
                .unwrap();
            bound.wait();
            let mut mine = Vec::new();
            while taken.load(Ordering::SeqCst) < CONNECTIONS {
                driver.wait(Some(5)).unwrap();
                while let Accepted::Connection(fd, _) = listener.accept() {
                    mine.push(fd);
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            }
            mine.len()
        })
    };
    let first = shard(loopback());
    let addr = told.recv().unwrap();
    let second = shard(addr);
    bound.wait();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(addr).unwrap())
        .collect();
    let (first, second) = (first.join().unwrap(), second.join().unwrap());
    assert_eq!(first + second, clients.len());
    assert!(first > 0 && second > 0, "{first} and {second}");
}

#[test]
fn a_close_in_one_table_does_not_disturb_the_other() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut served = listener.accept().unwrap().0;
    let fd = fd_of(&served);
    apart(&[fd], || {
        socket::close(fd);
        assert!(!is_open(fd));
        // In this thread's table the number is free, and soon names another descriptor.
        let mut made = Vec::new();
        while !is_open(fd) {
            made.push(Driver::new(1).unwrap());
        }
    });
    served.write_all(b"still").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"still");
}

#[test]
fn end_of_a_thread_closes_only_its_own_table() {
    let kept = TcpListener::bind(loopback()).unwrap();
    let (tell, told) = mpsc::channel();
    let fd = fd_of(&kept);
    let parted = thread::spawn(move || {
        fd_table::unshare(&[fd]).unwrap();
        let made = Listener::bind(loopback(), 8, &SocketOptions::default()).unwrap();
        tell.send(made.local_addr().unwrap()).unwrap();
        let mut driver = Driver::new(1).unwrap();
        driver.add(made.fd(), driver::listener_token(0)).unwrap();
        driver.wait(Some(5_000)).unwrap();
        // The connection is left open on purpose, to show that only the end of the thread closes it.
        assert!(matches!(made.accept(), Accepted::Connection(..)));
    });
    let mut client = TcpStream::connect(told.recv().unwrap()).unwrap();
    parted.join().unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    assert_eq!(
        client.read(&mut [0; 1]).unwrap(),
        0,
        "its connection has ended"
    );
    assert!(
        TcpStream::connect(kept.local_addr().unwrap()).is_ok(),
        "what it kept a copy of goes on"
    );
}

#[test]
fn thread_with_its_own_table_inherits_no_listener() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let addr = listener.local_addr().unwrap();
    let fd = fd_of(&listener);
    let (go_on, wait) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let parted = thread::spawn(move || {
        fd_table::unshare(&[]).unwrap();
        tell.send(is_open(fd)).unwrap();
        wait.recv().unwrap();
    });
    assert!(!told.recv().unwrap());
    assert!(TcpStream::connect(addr).is_ok(), "its owner still listens");
    drop(listener);
    // If the other table had a copy of the listener, connections would wait there and never be accepted. Other tests part at the same
    // time, and have a copy for a moment, so one refused attempt is enough.
    let refused = (0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        TcpStream::connect(addr).is_err()
    });
    assert!(refused);
    go_on.send(()).unwrap();
    parted.join().unwrap();
}

#[test]
fn descriptor_limit_is_raised_to_the_hard_limit() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let hard = line.split_whitespace().nth(4).unwrap();
    assert_eq!(fd_table::raise_limit().to_string(), hard);
}
