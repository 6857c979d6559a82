//! Bursts of sends: what each socket takes is what it would take alone.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crore_net::{BURST_MAX, Burst, Fd};
use proptest::prelude::*;

/// A connection whose first end does not block.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    (near, far)
}

fn fd(stream: &TcpStream) -> Fd {
    Fd(stream.as_raw_fd().try_into().unwrap())
}

/// Sends and returns how much of each buffer was taken.
fn taken(burst: &mut Burst, sends: &[(Fd, &[u8])]) -> Vec<usize> {
    let mut taken: Vec<usize> = sends.iter().map(|(_, bytes)| bytes.len()).collect();
    burst.send_all(sends.iter().copied(), |n, count| taken[n] = count);
    taken
}

#[test]
fn more_than_one_ring_holds_goes_out_in_order() {
    let (near, mut far) = pair();
    let mut burst = Burst::new();
    let numbers: Vec<[u8; 4]> = (0..3 * BURST_MAX as u32 + 7)
        .map(u32::to_le_bytes)
        .collect();
    let sends: Vec<(Fd, &[u8])> = numbers
        .iter()
        .map(|bytes| (fd(&near), &bytes[..]))
        .collect();
    assert!(taken(&mut burst, &sends).iter().all(|count| *count == 4));
    let mut came = vec![0; numbers.len() * 4];
    far.read_exact(&mut came).unwrap();
    assert_eq!(came, numbers.concat());
}

#[test]
fn a_full_socket_a_closed_one_and_a_wrong_number_are_told_and_stop_nobody() {
    let (full, _unread) = pair();
    let (gone, peer) = pair();
    let (near, mut far) = pair();
    drop(peer);
    let flood = vec![7; 64 << 20];
    let mut burst = Burst::new();
    let flooded = taken(&mut burst, &[(fd(&full), &flood)])[0];
    assert!(flooded > 0 && flooded < flood.len());
    // The first write to a peer that is gone succeeds and earns the reset.
    taken(&mut burst, &[(fd(&gone), b"x")]);
    let sends: [(Fd, &[u8]); 4] = [
        (fd(&full), b"more"),
        (fd(&gone), b"more"),
        (Fd(19_999), b"more"),
        (fd(&near), b"more"),
    ];
    assert_eq!(taken(&mut burst, &sends), [0, 0, 0, 4]);
    let mut came = [0; 4];
    far.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"more");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is offered: each peer gets exactly the beginning that was said to be taken.
    #[test]
    fn what_is_said_to_be_taken_arrives(sizes in prop::collection::vec(1usize..3_000_000, 1..6)) {
        let pairs: Vec<_> = sizes.iter().map(|_| pair()).collect();
        let buffers: Vec<Vec<u8>> = sizes
            .iter()
            .map(|size| (0..*size).map(|n| (n * 31 % 251) as u8).collect())
            .collect();
        let sends: Vec<(Fd, &[u8])> = pairs
            .iter()
            .zip(&buffers)
            .map(|((near, _), bytes)| (fd(near), &bytes[..]))
            .collect();
        let taken = taken(&mut Burst::new(), &sends);
        for (((near, mut far), bytes), taken) in pairs.into_iter().zip(&buffers).zip(taken) {
            drop(near);
            let mut came = Vec::new();
            far.read_to_end(&mut came).unwrap();
            prop_assert!(came == bytes[..taken]);
        }
    }
}
