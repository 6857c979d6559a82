//! A socket of `AF_XDP` over a pair of virtual interfaces in a network namespace: what one end sends arrives at the other, both ways. And streams
//! of bytes over such sockets.
//!
//! Without the right to make a namespace the tests say what they leave out; with `CRORE_TOOLS=required` they fail.

#![allow(unsafe_code, reason = "a network namespace of the test's own")]
#![allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]

mod streams;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crore_net::check;
use crore_net::xdp::program::Redirect;
use crore_net::xdp::{FrameSettings, XdpSocket};

/// The longest time that a frame may take.
const WAIT: Duration = Duration::from_secs(30);

/// The address that the frames are for.
const ADDRESS: &str = "192.0.2.1:8800";

/// Whether nothing that a test needs may be missing on this machine.
fn is_required() -> bool {
    std::env::var("CRORE_TOOLS").as_deref() == Ok("required")
}

/// Where the frames are for.
fn addresses() -> [SocketAddr; 1] {
    [ADDRESS.parse().unwrap()]
}

/// Two interfaces that are connected, in a namespace of the calling thread. Returns their numbers.
fn pair() -> Option<(u32, u32)> {
    // SAFETY: a plain system call without pointers.
    let answer = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    // Without IPv6 neither end sends frames by itself.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let made = check(answer).is_ok()
        && [
            "link add name left type veth peer name right",
            "link set left up",
            "link set right up",
        ]
        .into_iter()
        .all(|line| {
            let status = Command::new("ip").args(line.split(' ')).status();
            status.is_ok_and(|status| status.success())
        });
    let number = |name: &std::ffi::CStr| {
        // SAFETY: the name has an end.
        unsafe { libc::if_nametoindex(name.as_ptr()) }
    };
    let (left, right) = (number(c"left"), number(c"right"));
    if !made || Redirect::attach(left, 1, &addresses()).is_err() {
        assert!(
            !is_required(),
            "the test needs root, `ip` and a kernel with XDP"
        );
        eprintln!("not run: a pair of interfaces needs root, `ip` and a kernel with XDP");
        return None;
    }
    Some((left, right))
}

/// A frame of this length: the beginning of a segment to [`ADDRESS`], and a number.
fn frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; bytes];
    frame[..12].fill(0xff);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1,
    ]);
    frame[34..38].copy_from_slice(&[0x10, 0, 0x22, 0x60]);
    frame[38..42].copy_from_slice(&number.to_be_bytes());
    frame
}

fn send(socket: &mut XdpSocket, bytes: &[u8]) -> bool {
    let fill = |out: &mut [u8]| out.copy_from_slice(bytes);
    socket.transmitter.transmit(bytes.len(), fill)
}

/// Waits until a socket has received `count` frames.
fn received(socket: &mut XdpSocket, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while frames.len() < count {
        let before = frames.len();
        socket
            .receiver
            .receive(64, |bytes| frames.push(bytes.to_vec()));
        if frames.len() == before {
            let ready = socket.wait(WAIT);
            assert!(ready, "{before} of {count} frames");
        }
    }
    frames
}

#[test]
fn frames_pass_both_ways_and_their_memory_is_reused() {
    let Some((left, right)) = pair() else { return };
    let settings = FrameSettings {
        frames: 64,
        frame_bytes: 2_048,
    };
    let sides = [left, right].map(|interface| {
        let redirect = Redirect::attach(interface, 1, &addresses()).unwrap();
        let socket = XdpSocket::bind(interface, 0, settings).unwrap();
        redirect.queue_sockets().add(0, &socket).unwrap();
        (redirect, socket)
    });
    let [(_left, mut left), (_right, mut right)] = sides;
    let lengths = [60, 61, 1_000, 1_514];
    // Many times the number of frames that there are.
    for number in 0..1_000 {
        let bytes = lengths[number as usize % lengths.len()];
        for (from, to) in [(true, number), (false, number + 1_000_000)] {
            let frame = frame(to, bytes);
            let (from, to) = match from {
                true => (&mut left, &mut right),
                false => (&mut right, &mut left),
            };
            assert!(send(from, &frame));
            from.transmitter.flush();
            assert_eq!(received(to, 1), [frame], "{number}");
        }
    }
    for socket in [&left, &right] {
        let dropped = socket.receiver.drop_statistics().unwrap();
        assert_eq!((dropped.rx_dropped, dropped.tx_invalid_descs), (0, 0));
    }
}

#[test]
fn full_socket_refuses_frames_and_loses_no_accepted_one() {
    let Some((left, right)) = pair() else { return };
    let settings = FrameSettings {
        frames: 16,
        frame_bytes: 2_048,
    };
    let redirect = Redirect::attach(right, 1, &addresses()).unwrap();
    let mut to = XdpSocket::bind(right, 0, settings).unwrap();
    redirect.queue_sockets().add(0, &to).unwrap();
    let mut from = XdpSocket::bind(left, 0, settings).unwrap();
    assert!(
        !from
            .transmitter
            .transmit(2_049, |_| panic!("no frame is as large"))
    );
    let taken = (0..100)
        .take_while(|number| send(&mut from, &frame(*number, 100)))
        .count();
    assert_eq!(taken, 16);
    from.transmitter.flush();
    let numbers = received(&mut to, taken).into_iter();
    assert!(numbers.eq((0..16).map(|number| frame(number, 100))));
    assert!(send(&mut from, &frame(16, 100)), "there is room again");
}

#[test]
fn socket_sends_as_before_after_its_link_was_down() {
    let ip = |line: &str| {
        let status = Command::new("ip").args(line.split(' ')).status();
        assert!(status.is_ok_and(|status| status.success()), "{line}");
    };
    let Some((left, right)) = pair() else { return };
    let settings = FrameSettings {
        frames: 16,
        frame_bytes: 2_048,
    };
    let redirect = Redirect::attach(right, 1, &addresses()).unwrap();
    let mut to = XdpSocket::bind(right, 0, settings).unwrap();
    redirect.queue_sockets().add(0, &to).unwrap();
    let mut from = XdpSocket::bind(left, 0, settings).unwrap();
    // The other end of the pair is down, so there is no carrier; then the socket's own interface.
    for (down, first) in [("right", 0), ("left", 1_000)] {
        ip(&format!("link set {down} down"));
        // Many more than there are frames, and as many at once as it takes.
        for number in first..first + 200 {
            let taken = (0..100).take_while(|_| send(&mut from, &frame(number, 100)));
            assert!(taken.count() <= 16);
            from.transmitter.flush();
        }
        ip(&format!("link set {down} up"));
        // The first may be lost: the kernel still activates the link.
        let begun = Instant::now();
        let is_first = |bytes: &[u8]| bytes == frame(first + 500, 100);
        let mut has_arrived = false;
        while !has_arrived {
            assert!(begun.elapsed() < WAIT, "{down}");
            send(&mut from, &frame(first + 500, 100));
            from.transmitter.flush();
            to.wait(Duration::from_millis(10));
            to.receiver
                .receive(64, |bytes| has_arrived |= is_first(bytes));
        }
        for number in first + 501..first + 600 {
            let sent = frame(number, 100);
            assert!(send(&mut from, &sent), "{down}: {number}");
            from.transmitter.flush();
            // Some of those before may arrive before it.
            while received(&mut to, 1)[0] != sent {}
        }
    }
}

#[test]
fn program_is_detached_from_the_interface_with_its_last_holder() {
    let Some((left, _)) = pair() else { return };
    let shown = || {
        let output = Command::new("ip").args(["link", "show", "left"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let redirect = Redirect::attach(left, 1, &addresses()).unwrap();
    assert!(shown().contains("xdp"), "{}", shown());
    assert!(
        Redirect::attach(left, 1, &addresses()).is_err(),
        "it has a program"
    );
    drop(redirect);
    // Another test may just have made a process, which has the descriptor until it runs its program.
    let start = Instant::now();
    while shown().contains("xdp") {
        assert!(start.elapsed() < WAIT, "{}", shown());
    }
    Redirect::attach(left, 1, &addresses()).unwrap();
}
