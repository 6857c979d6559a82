//! A small mutator of fuzz inputs: it flips, inserts, removes and splices bytes, and inserts words of the target.
//!
//! The mutator does not measure coverage, so no code is instrumented, and runs are fast.

use crore_rng::Rng;

/// The maximum size of an input in bytes: enough to reach every limit that the targets set, and still quick.
pub const BYTES_MAX: usize = 4096;

/// Bytes at the limits of length fields and type codes.
const EDGES: [u8; 10] = [0, 1, 0x7d, 0x7e, 0x7f, 0x80, 0x81, 0xff, b'\r', b'\n'];

/// A new input, made from an input of the corpus.
pub fn mutate(rng: &mut Rng, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut data = match corpus {
        [] => Vec::new(),
        _ => corpus[rng.below(corpus.len())].clone(),
    };
    for _ in 0..rng.range(1, 6) {
        step(rng, &mut data, corpus, words);
    }
    data.truncate(BYTES_MAX);
    data
}

fn step(rng: &mut Rng, data: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
    let at = rng.below(data.len() + 1);
    match rng.below(9) {
        0 if at < data.len() => data[at] ^= 1 << rng.below(8),
        1 if at < data.len() => data[at] = EDGES[rng.below(EDGES.len())],
        2 if at < data.len() => data[at] = rng.draw() as u8,
        // Changes one of the first two bytes, which are a target's options and the seed of its cuts.
        3 if data.len() > 1 => data[rng.below(2)] = rng.draw() as u8,
        4 if at < data.len() => {
            let end = at + rng.below((data.len() - at).min(40)) + 1;
            data.drain(at..end);
        }
        5 if at < data.len() => {
            let end = at + rng.below((data.len() - at).min(200)) + 1;
            let copy = data[at..end].to_vec();
            let to = rng.below(data.len() + 1);
            data.splice(to..to, copy);
        }
        6 if !corpus.is_empty() => {
            let other = &corpus[rng.below(corpus.len())];
            data.truncate(at);
            data.extend_from_slice(&other[rng.below(other.len() + 1)..]);
        }
        7 | 8 if !words.is_empty() => {
            let word = words[rng.below(words.len())].bytes();
            data.splice(at..at, word);
        }
        _ => {
            let some = (0..rng.range(1, 8)).map(|_| rng.draw() as u8);
            let some: Vec<u8> = some.collect();
            data.splice(at..at, some);
        }
    }
}
