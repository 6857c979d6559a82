//! SYN cookies: the first sequence number of a server's end contains all that the server must know of the SYN. So nothing is kept before the
//! third packet (RFC 4987 §3.6).
//!
//! A cookie has 5 bits that depend on the ends, the time and the options, 24 bits that depend on the peer's first sequence number too, and
//! 3 bits for the maximum segment size. A third packet needs all of them. With only the first 5 right it may be a later packet of a handshake
//! whose third packet is still on its way. It must not be answered with a reset, and not begin the connection either, since its bytes are not
//! the first ones.
//!
//! The peer's window shift, and whether it understands selective acknowledgements, travel in the lowest bits of the timestamp, which the
//! peer echoes, with 8 more bits like the 24. Without timestamps a connection has neither.

use crate::packet::{Head, Options};
use crate::siphash::Secret;

/// The maximum segment sizes that a cookie can name. The peer's is rounded down.
const SIZES: [u16; 8] = [0, 536, 1_220, 1_360, 1_400, 1_440, 1_460, 8_900];
/// A cookie is good in the period in which it was made and in the next one.
const PERIOD_US: u64 = 30_000_000;
/// The longest time that a cookie is good. A table that listens remembers a connection that is over as long.
pub const COOKIE_GOOD_MS: u64 = 2 * PERIOD_US / 1_000;
/// The bits of the timestamp that belong to the cookie: four for the shift, one for selective acknowledgements, eight of the hash.
const CLOCK_BITS: u32 = 0x1fff;
const OPTION_BITS: u32 = 0x1f;
/// The bits of the cookie that depend on all, and those that depend on the ends.
const ALL_BITS: u32 = 0x07ff_fff8;
const ENDS_BITS: u32 = 0xf800_0000;
/// The shift that stands for none.
const NO_SHIFT: u32 = 15;

/// What a server knows of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The peer's maximum segment size; 0 if it is smaller than all that a cookie can name.
    pub segment_bytes: u16,
    /// The shift of the peer's windows, if windows are shifted.
    pub window_shift: Option<u8>,
    /// Whether selective acknowledgements are used.
    pub sack: bool,
    /// The peer's clock, if timestamps are used.
    pub timestamp: Option<u32>,
}

/// How a third packet is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ends the handshake.
    Good(Handshake),
    /// It is of a handshake of ours, but not its third packet.
    Later,
    /// It is of no handshake.
    Wrong,
}

/// The first sequence number, and the timestamp, that answer this SYN.
pub fn make(secret: Secret, syn: &Head, clock: u32, now_us: u64) -> (u32, u32) {
    let bytes = syn.options.segment_bytes.unwrap_or(SIZES[1]);
    let size = SIZES.iter().rposition(|size| *size <= bytes).unwrap_or(0) as u32;
    let options = option_bits(&syn.options);
    let value = value(secret, syn, syn.sequence, size, options, now_us / PERIOD_US);
    (value.cookie, with_bits(clock, value.clock_bits))
}

/// Judges a segment that belongs to no connection.
pub fn check(secret: Secret, segment: &Head, now_us: u64) -> Verdict {
    let cookie = segment.acknowledged.wrapping_sub(1);
    let size = cookie & 7;
    let echo = segment.options.timestamps.map(|(_, echo)| echo);
    let options = echo.map_or(NO_SHIFT, |echo| echo & OPTION_BITS);
    let first = segment.sequence.wrapping_sub(1);
    let period = now_us / PERIOD_US;
    let mut verdict = Verdict::Wrong;
    for period in [Some(period), period.checked_sub(1)].into_iter().flatten() {
        let right = value(secret, segment, first, size, options, period);
        let is_echo_right = echo.is_none_or(|echo| echo & CLOCK_BITS == right.clock_bits);
        if right.cookie == cookie && is_echo_right {
            let shift = options & NO_SHIFT;
            return Verdict::Good(Handshake {
                segment_bytes: SIZES[size as usize],
                window_shift: (shift != NO_SHIFT).then_some(shift as u8),
                sack: options & 16 != 0,
                timestamp: segment.options.timestamps.map(|(value, _)| value),
            });
        }
        if (right.cookie ^ cookie) & ENDS_BITS == 0 {
            verdict = Verdict::Later;
        }
    }
    verdict
}

/// Options that the cookie carries. Without timestamps there is no place for them.
fn option_bits(options: &Options) -> u32 {
    if options.timestamps.is_none() {
        return NO_SHIFT;
    }
    let shift = options.window_shift.map_or(NO_SHIFT, u32::from);
    shift | u32::from(options.sack_permitted) << 4
}

/// The latest time of the clock, not after now, that has these bits.
fn with_bits(clock: u32, bits: u32) -> u32 {
    let value = clock & !CLOCK_BITS | bits;
    if value > clock {
        value.wrapping_sub(CLOCK_BITS + 1)
    } else {
        value
    }
}

/// A cookie, and the lowest bits of the timestamp with it.
struct Value {
    cookie: u32,
    clock_bits: u32,
}

fn value(secret: Secret, head: &Head, first: u32, size: u32, options: u32, period: u64) -> Value {
    let mut bytes = [0; 60];
    bytes[..16].copy_from_slice(&head.from.address.octets());
    bytes[16..32].copy_from_slice(&head.to.address.octets());
    bytes[32..34].copy_from_slice(&head.from.port.to_be_bytes());
    bytes[34..36].copy_from_slice(&head.to.port.to_be_bytes());
    bytes[36..44].copy_from_slice(&period.to_be_bytes());
    bytes[44..48].copy_from_slice(&size.to_be_bytes());
    bytes[48..52].copy_from_slice(&options.to_be_bytes());
    let of_ends = secret.hash(&bytes[..52]) as u32;
    bytes[52..56].copy_from_slice(&first.to_be_bytes());
    let of_all = secret.hash(&bytes);
    Value {
        cookie: of_ends & ENDS_BITS | of_all as u32 & ALL_BITS | size,
        clock_bits: (of_all >> 32) as u32 & CLOCK_BITS & !OPTION_BITS | options,
    }
}
