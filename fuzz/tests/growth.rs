//! Work grows with the bytes of an input, not with their square, in every parser: an input that is sixteen times as large takes at most some
//! sixteen times as long. Compared are two times that one thread had the processor, the shortest of several: a slow or busy machine changes both.

use std::path::Path;
use std::time::Duration;

use crore_fuzz::{TARGETS, Target};

/// Bytes of the small inputs. A parser may have a bound of its own below the larger ones.
const SMALL: [usize; 2] = [180, 2 << 10];
const TIMES: usize = 16;
/// Of a square it is sixteen.
const FACTOR: u32 = 5;
/// A large input that takes no longer than this is quick enough whatever its small one took.
const QUICK: Duration = Duration::from_millis(5);
const RUNS: usize = 5;

/// The widest limits, and few cuts.
const OPTIONS: &[u8] = b"\x03\x0f";
/// What a parser may go through again for each of them.
const UNITS: &[&str] = &["a", ",", ";", " ", "\"", "\\", "/", ".", "%41", "[", "a="];

/// An input that goes on with the same bytes again and again.
struct Input {
    begin: Vec<u8>,
    unit: Vec<u8>,
    /// It is cut behind a multiple of so many bytes of them.
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

    /// All of it, in about so many bytes.
    fn grown(&self, size: usize) -> Vec<u8> {
        let rest = size.saturating_sub(self.begin.len()) / self.step * self.step;
        let rest = self.unit.iter().cycle().take(rest);
        self.begin.iter().chain(rest).copied().collect()
    }
}

/// Each kept input again and again, and each word of the target with each unit behind it, or with ideographs.
fn inputs(target: &Target) -> Vec<Input> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(corpus.join(target.name)).expect("every target has a corpus");
    let kept = files.map(|file| std::fs::read(file.expect("an entry").path()).expect("an input"));
    let kept = kept.filter(|kept| kept.len() > OPTIONS.len());
    let mut inputs: Vec<Input> = kept
        .map(|kept| Input::new(&kept[..OPTIONS.len()], &kept[OPTIONS.len()..]))
        .collect();
    // All differ: the work of IDNA is that of each for each.
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

/// How long this thread has had the processor. The kernel counts up to the last switch, so that it is asked for one.
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
    "head", "body", "fields", "frames", "mqtt", "deflate", "sse", "position", "topic", "ndjson",
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
