//! Computes the delay after which a refused client should try again. The delays differ between clients, so that many refused clients do not
//! return at the same time.

use core::ops::RangeInclusive;

/// The range of the delay in seconds: long enough to spread many clients, short enough for a single client.
pub(crate) const RETRY_AFTER_S: RangeInclusive<u32> = 5..=20;

/// The delay in seconds. `spread` is any number that differs between clients.
pub(crate) fn retry_after_s(spread: u32) -> u32 {
    let (first, last) = (RETRY_AFTER_S.start(), RETRY_AFTER_S.end());
    first + mix(spread) % (last - first + 1)
}

pub(crate) fn retry_after_ms(spread: u32) -> u32 {
    let (first, last) = (RETRY_AFTER_S.start() * 1000, RETRY_AFTER_S.end() * 1000);
    first + mix(spread) % (last - first)
}

/// The delay in milliseconds for the clients of a shard that stops. If the shard has at least `CROWD` connections, the delay is that of
/// `retry_after_ms`. With fewer connections the delay is shorter: a restart takes a second, and few clients may return within a short time.
pub(crate) fn reconnect_after_ms(spread: u32, connections: u32) -> u32 {
    let part = connections.clamp(100, CROWD);
    let (first, last) = (RETRY_AFTER_S.start() * 1000, RETRY_AFTER_S.end() * 1000);
    (first + mix(spread) % (last - first)) * part / CROWD
}

/// The number of connections from which on the clients of a shard that stops are spread over the whole range of delays.
const CROWD: u32 = 1_000;

/// A hash that gives adjacent numbers different values.
fn mix(spread: u32) -> u32 {
    spread.wrapping_mul(0x9E37_79B9).rotate_left(15) >> 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_are_turned_away_come_back_at_different_times() {
        let mut seen = [0; 21];
        for spread in 0..1_600 {
            let after_s = retry_after_s(spread);
            assert!(RETRY_AFTER_S.contains(&after_s));
            seen[after_s as usize] += 1;
        }
        assert!(seen[5..].iter().all(|n| (50..200).contains(n)), "{seen:?}");
    }

    #[test]
    fn reconnect_delay_of_a_stopping_server_grows_with_its_connections() {
        for spread in 0..1_600 {
            assert!((500..=2_000).contains(&reconnect_after_ms(spread, 2)));
            assert!((2_500..=10_000).contains(&reconnect_after_ms(spread, 500)));
            assert_eq!(
                reconnect_after_ms(spread, 1_000_000),
                retry_after_ms(spread)
            );
        }
    }
}
