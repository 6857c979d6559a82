//! A flood of SYNs from addresses that nobody has: they begin connections that never go on.

use std::net::Ipv4Addr;

use crore_tcp::{Device as _, End, Head, Options, flag, header_bytes, write};

use super::wire::Wire;
use crate::measure::payload::Random;

/// The maximum number of SYNs in one turn of a worker, so that its clients do not wait for long.
const PER_TURN_MAX: u32 = 512;
/// The addresses, of which each SYN has a random one. They are of the last device that a swarm may have, which small swarms do not use.
const SENDERS: u32 = u32::from_be_bytes([10, 127, 0, 0]);
const SENDER_BITS: u32 = 16;

/// The SYNs that are due.
pub struct Flood {
    random: Random,
    due: f64,
    /// The time up to which `due` is computed.
    counted_at_ns: u64,
}

impl Flood {
    /// No SYN is due yet.
    pub fn new(seed: u64) -> Flood {
        Flood {
            random: Random::new(seed),
            due: 0.0,
            counted_at_ns: 0,
        }
    }

    /// Sends the SYNs that are due at a rate of `per_s`, at most those of one turn. What a slow turn leaves out is not made up for. Returns the number.
    pub fn send(&mut self, per_s: f64, server: End, wire: &mut Wire, now_ns: u64) -> u64 {
        if per_s <= 0.0 {
            return 0;
        }
        let elapsed_ns = now_ns - std::mem::replace(&mut self.counted_at_ns, now_ns).min(now_ns);
        self.due += (per_s * elapsed_ns as f64 / 1e9).min(f64::from(PER_TURN_MAX));
        let count = (self.due as u32).min(PER_TURN_MAX);
        self.due -= f64::from(count);
        (0..count)
            .map(|_| u64::from(self.send_one(server, wire)))
            .sum()
    }

    fn send_one(&mut self, server: End, wire: &mut Wire) -> bool {
        let number = self.random.draw();
        let address = SENDERS | (number as u32) >> (32 - SENDER_BITS);
        let head = Head {
            from: End::new(Ipv4Addr::from(address), 1_024 | (number >> 32) as u16),
            to: server,
            sequence: (number >> 16) as u32,
            acknowledged: 0,
            flags: flag::SYN,
            window: u16::MAX,
            options: Options::default(),
        };
        let bytes = header_bytes(head.to, &head.options);
        wire.transmit(None, bytes, |packet| write(&head, true, packet, |_| {}))
    }
}
