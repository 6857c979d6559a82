//! Tests each target with its kept inputs and with a few mutations of them, so that the ordinary tests show a broken target without the
//! fuzzer.

use crore_fuzz::TARGETS;
use crore_fuzz::mutate::{BYTES_MAX, mutate};
use crore_rng::Rng;
use std::path::Path;

/// Number of mutations: enough to run every operation of the mutator.
const MUTATIONS: usize = 60;
/// The largest size of the whole corpus in a checkout.
const CORPUS_BYTES: usize = 100_000;

#[test]
fn kept_inputs_and_some_mutations_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for target in TARGETS {
        let directory = root.join(target.name);
        let files = std::fs::read_dir(&directory).expect("every target has a corpus");
        let mut corpus = Vec::new();
        for file in files {
            let data = std::fs::read(file.expect("an entry").path()).expect("a kept input");
            (target.run)(&data);
            bytes += data.len();
            corpus.push(data);
        }
        assert!(corpus.len() > 2, "{} has a few inputs", target.name);
        corpus.sort();
        let mut rng = Rng::new(1);
        for _ in 0..MUTATIONS {
            let data = mutate(&mut rng, &corpus, target.words);
            assert!(data.len() <= BYTES_MAX);
            (target.run)(&data);
        }
        // Inputs that are too short to have a meaning must not panic.
        for data in [&b""[..], b"\0", b"\0\0"] {
            (target.run)(data);
        }
    }
    assert!(bytes < CORPUS_BYTES, "the corpus has {bytes} bytes");
}
