//! When clients that were turned away should come back: each at another time, so that a crowd does not come back as one.

use core::ops::RangeInclusive;

/// When to come back, in seconds: long enough for a crowd to thin out, short enough for one client that waits.
pub(crate) const RETRY_AFTER_S: RangeInclusive<u32> = 5..=20;

/// Seconds after which a client comes back. `spread` is any number that differs from one client to the next.
pub(crate) fn retry_after_s(spread: u32) -> u32 {
    let (first, last) = (RETRY_AFTER_S.start(), RETRY_AFTER_S.end());
    first + mixed(spread) % (last - first + 1)
}

/// The same in milliseconds.
pub(crate) fn retry_after_ms(spread: u32) -> u32 {
    let (first, last) = (RETRY_AFTER_S.start() * 1000, RETRY_AFTER_S.end() * 1000);
    first + mixed(spread) % (last - first)
}

/// When the clients of a shard that stops come back, in milliseconds: as above for a thousand and more connections, and the sooner the fewer there are. A
/// restart takes a second, and a handful of clients is no crowd.
pub(crate) fn return_ms(spread: u32, connections: u32) -> u32 {
    let part = connections.clamp(100, CROWD);
    let (first, last) = (RETRY_AFTER_S.start() * 1000, RETRY_AFTER_S.end() * 1000);
    (first + mixed(spread) % (last - first)) * part / CROWD
}

/// Connections of a shard that are a crowd.
const CROWD: u32 = 1_000;

/// Neighbouring numbers far apart.
fn mixed(spread: u32) -> u32 {
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
    fn few_clients_of_a_server_that_stops_come_back_soon_and_a_crowd_as_one_that_is_turned_away() {
        for spread in 0..1_600 {
            assert!((500..=2_000).contains(&return_ms(spread, 2)));
            assert!((2_500..=10_000).contains(&return_ms(spread, 500)));
            assert_eq!(return_ms(spread, 1_000_000), retry_after_ms(spread));
        }
    }
}
