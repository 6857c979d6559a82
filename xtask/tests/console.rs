//! Checks that the console's sources neither make markup or code from text, nor contact any server but their own.
//!
//! The page's content security policy forbids the same in the browser. This test finds it before a browser opens the page.

use std::fs;
use std::path::{Path, PathBuf};

/// Names in JavaScript and HTML that make markup or code from a string.
const MARKUP: &[&str] = &[
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "dangerouslySetInnerHTML",
    "createContextualFragment",
    "DOMParser",
    "srcdoc",
    "document.write",
    "setHTMLUnsafe",
    "eval(",
    "new Function",
    "javascript:",
];

/// Names that load from another origin, send to one, or write a token to a permanent place.
const ELSEWHERE: &[&str] = &[
    "http:/",
    "ws:/",
    "https:/",
    "wss:/",
    "document.cookie",
    "sendBeacon",
    "importScripts",
];

#[test]
fn the_console_never_makes_markup_of_text() {
    assert_free_of(MARKUP);
}

#[test]
fn the_console_speaks_to_its_own_server_alone() {
    assert_free_of(ELSEWHERE);
    for (path, text) in sources() {
        for line in text.lines().filter(|line| line.contains("localStorage")) {
            assert!(!line.contains("token"), "{}: {line}", path.display());
        }
    }
}

fn assert_free_of(words: &[&str]) {
    let sources = sources();
    assert!(sources.len() > 5, "the sources are elsewhere");
    for (path, text) in sources {
        for word in words {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console/src");
    fs::read_dir(directory)
        .expect("the console's sources")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "ts" || end == "tsx" || end == "html")
        })
        .map(|path| {
            let text = fs::read_to_string(&path).expect("text");
            (path, text)
        })
        .collect()
}
