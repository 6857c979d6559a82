//! Tests that the work of every parser grows with the bytes of an input, not with their square: an input that is sixteen times as large
//! takes about sixteen times as long. The test compares the processor time of one thread, and takes the shortest of several runs, since a
//! slow or busy machine changes each time.

use std::path::Path;
use std::time::Duration;

use crore_fuzz::{TARGETS, Target};

/// Bytes of the small inputs. There are two sizes, since a parser may have a limit below the larger one.
const SMALL: [usize; 2] = [180, 2 << 10];
const TIMES: usize = 16;
/// The factor above linear growth that is still accepted. With quadratic growth the factor would be sixteen.
const FACTOR: u32 = 5;
/// A large input that takes no longer than this is quick enough, whatever its small one took.
const QUICK: Duration = Duration::from_millis(5);
const RUNS: usize = 5;

/// Options byte and cuts byte of the inputs: the widest limits, and few cuts.
const OPTIONS: &[u8] = b"\x03\x0f";
/// Units to repeat. A parser with quadratic work would go through earlier bytes again at each of them.
const UNITS: &[&str] = &["a", ",", ";", " ", "\"", "\\", "/", ".", "%41", "[", "a="];

/// An input that grows: a beginning, then a unit that repeats.
struct Input {
    begin: Vec<u8>,
    unit: Vec<u8>,
    /// The repeated units are cut at a multiple of this many bytes.
    step: usize,
}

impl Input {
    fn new(begin: &[u8], unit: &[u8]) -> Input {
        Input {
            begin: begin.to_vec(),
            unit: unit.to_vec(),
            step: unit.len(),
        }
    }

    /// The input, grown to about this many bytes.
    fn grown(&self, size: usize) -> Vec<u8> {
        let rest = size.saturating_sub(self.begin.len()) / self.step * self.step;
        let rest = self.unit.iter().cycle().take(rest);
        self.begin.iter().chain(rest).copied().collect()
    }
}

/// Inputs to grow: each kept input repeated, and each word of the target followed by each unit or by ideographs.
fn inputs(target: &Target) -> Vec<Input> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(corpus.join(target.name)).expect("every target has a corpus");
    let kept = files.map(|file| std::fs::read(file.expect("an entry").path()).expect("an input"));
    let kept = kept.filter(|kept| kept.len() > OPTIONS.len());
    let mut inputs: Vec<Input> = kept
        .map(|kept| Input::new(&kept[..OPTIONS.len()], &kept[OPTIONS.len()..]))
        .collect();
    // All ideographs differ, since IDNA encodes each distinct character in one pass over all of them: the worst case.
    let ideographs: String = ('\u{4e00}'..'\u{9000}').collect();
    for word in [""].iter().chain(target.words) {
        let begin = [OPTIONS, word.as_bytes()].concat();
        inputs.extend((UNITS.iter()).map(|unit| Input::new(&begin, unit.as_bytes())));
        inputs.push(Input {
            step: '\u{4e00}'.len_utf8(),
            ..Input::new(&begin, ideographs.as_bytes())
        });
    }
    inputs
}

/// How long this thread has had the processor. The kernel updates the count at each context switch, so the thread yields first.
fn processor_time() -> Duration {
    std::thread::yield_now();
    let counts =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("counts of the thread");
    let first = counts.split(' ').next().expect("a count");
    Duration::from_nanos(first.parse().expect("nanoseconds"))
}

fn once(target: &Target, input: &[u8]) -> Duration {
    let before = processor_time();
    (target.run)(input);
    processor_time() - before
}

fn shortest(target: &Target, input: &[u8]) -> Duration {
    (0..RUNS)
        .map(|_| once(target, input))
        .min()
        .unwrap_or_default()
}

/// The targets that are parsers. The others drive servers, whose limits change what they do with a large input.
const PARSERS: &[&str] = &[
    "head", "body", "fields", "frames", "http2", "mqtt", "deflate", "sse", "position", "topic",
    "ndjson",
];

#[test]
fn work_grows_with_the_bytes_of_an_input() {
    for target in TARGETS.iter().filter(|it| PARSERS.contains(&it.name)) {
        let inputs = inputs(target);
        for (input, bytes) in SMALL
            .iter()
            .flat_map(|bytes| inputs.iter().map(move |it| (it, *bytes)))
        {
            let large_input = input.grown(TIMES * bytes);
            if once(target, &large_input) < QUICK {
                continue;
            }
            let (small, large) = (
                shortest(target, &input.grown(bytes)),
                shortest(target, &large_input),
            );
            assert!(
                large < QUICK || large < small * TIMES as u32 * FACTOR,
                "{}: {bytes} bytes take {small:?}, {TIMES} times as many {large:?}: {:?}",
                target.name,
                String::from_utf8_lossy(&large_input[..large_input.len().min(80)])
            );
        }
    }
}
