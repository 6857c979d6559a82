//! What happens to packets between the two sides, as a seed decides it: some are lost, doubled, corrupted, late, or change places.

use crore_rng::Rng;

use crate::sys::tun::PREFIX_BYTES;

/// Packets of one direction.
pub struct Disturbance {
    rng: Rng,
    /// Packets for a later turn.
    late: Vec<Vec<u8>>,
    /// Whether the receiver finds corrupted packets by their checksums.
    corrupts: bool,
}

impl Disturbance {
    pub fn new(seed: u64, corrupts: bool) -> Disturbance {
        Disturbance {
            rng: Rng::new(seed),
            late: Vec::new(),
            corrupts,
        }
    }

    /// Disturbs the packets of a turn.
    pub fn disturb(&mut self, packets: &mut Vec<Vec<u8>>) {
        packets.append(&mut self.late);
        for mut packet in std::mem::take(packets) {
            match self.rng.below(100) {
                0..3 => {}
                3..6 => self.late.push(packet),
                6..9 => packets.extend([packet.clone(), packet]),
                9 if self.corrupts => {
                    let at = self.rng.range(PREFIX_BYTES, packet.len() - 1);
                    packet[at] ^= 1 << self.rng.below(8);
                    packets.push(packet);
                }
                _ => packets.push(packet),
            }
        }
        for at in 1..packets.len() {
            if self.rng.chance(5) {
                packets.swap(at, self.rng.below(at));
            }
        }
    }
}
