//! The walls of the workspace, checked: who imports whom, where `unsafe` may stand, and what the
//! two sans-io crates must never touch.
//!
//! The rules read manifests and sources as text; they do not compile anything. Each rule is a
//! function from a [`Tree`] to its violations, so that the second test can plant a violation in
//! an in-memory copy of the tree and see the rule find it: a rule that cannot fail is no rule.

#![allow(clippy::print_stdout)] // the list of long files is a report, shown by `--nocapture`

mod lexer;
mod rules;
mod tree;

use tree::Tree;

#[test]
fn the_workspace_keeps_its_walls() {
    let tree = Tree::read();
    assert!(tree.sources().count() > 10, "the sources were not found");
    for (path, lines) in rules::long_files(&tree, rules::LINES_AIM) {
        println!(
            "long: {path} has {lines} lines (aim: {}, limit: {})",
            rules::LINES_AIM,
            rules::LINES_MAX
        );
    }
    let found: Vec<String> = rules::ALL
        .iter()
        .flat_map(|(name, rule)| {
            rule(&tree)
                .into_iter()
                .map(move |what| format!("{name}: {what}"))
        })
        .collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// A rule, a file that it must refuse, and that file's text (appended to what is there).
const PLANTED: &[(&str, &str, &str)] = &[
    (
        "edges",
        "crates/wire/Cargo.toml",
        "\n[dependencies.crore-broker]\nworkspace = true\n",
    ),
    (
        "edges",
        "crates/net/Cargo.toml",
        "\n[dependencies.wire]\npackage = \"crore-wire\"\npath = \"../wire\"\n",
    ),
    (
        "edges",
        "crates/broker/Cargo.toml",
        "\n[target.'cfg(unix)'.dependencies]\ncrore-net = \"0\"\n",
    ),
    (
        "edges",
        "crates/bench/Cargo.toml",
        "\n[build-dependencies]\ncrore-broker = \"0\"\n",
    ),
    (
        "edges",
        "crates/new/Cargo.toml",
        "[package]\nname = \"crore-new\"\n",
    ),
    (
        "unsafe",
        "crates/server/src/new.rs",
        "//! New.\nfn f() { unsafe { g() } }\n",
    ),
    (
        "unsafe",
        "crates/bench/src/new.rs",
        "//! New.\nunsafe fn f() {}\n",
    ),
    (
        "forbid",
        "crates/wire/src/lib.rs",
        "=//! No attribute.\n#![no_std]\n",
    ),
    (
        "forbid",
        "crates/broker/src/lib.rs",
        "=//! No attribute.\n#![forbid(unsafe_code)]\n// #![no_std]\n",
    ),
    (
        "sans-io",
        "crates/wire/src/new.rs",
        "//! New.\nuse std::net::TcpStream;\n",
    ),
    (
        "sans-io",
        "crates/broker/src/new.rs",
        "//! New.\nuse std::{io, thread};\n",
    ),
    (
        "sans-io",
        "crates/broker/src/new.rs",
        "//! New.\nfn f(now: Instant) {}\n",
    ),
    (
        "sans-io",
        "crates/broker/src/new.rs",
        "//! New.\nfn f() -> SystemTime { now() }\n",
    ),
    (
        "sans-io",
        "crates/wire/Cargo.toml",
        "\n[dependencies.mio]\nversion = \"1\"\n",
    ),
    (
        "sans-io",
        "crates/broker/src/new.rs",
        "//! New.\nextern crate std;\n",
    ),
    (
        "async",
        "crates/net/src/new.rs",
        "//! New.\nasync fn f() {}\n",
    ),
    (
        "async",
        "crates/bench/Cargo.toml",
        "\n[dependencies.tokio]\nversion = \"1\"\n",
    ),
    ("module docs", "crates/net/src/new.rs", "fn f() {}\n"),
    (
        "words",
        "crates/net/src/new.rs",
        "//! New.\n// TODO: finish\n",
    ),
    ("words", "docs/new.md", "A blazing server.\n"),
];

#[test]
fn every_rule_can_fail() {
    for (name, path, text) in PLANTED {
        let rule = rules::ALL
            .iter()
            .find(|(known, _)| known == name)
            .expect("a known rule")
            .1;
        let mut tree = Tree::read();
        let before = rule(&tree);
        tree.plant(path, text);
        let after = rule(&tree);
        assert!(
            after.len() > before.len(),
            "{name} did not see {text:?} in {path}"
        );
    }
    let mut tree = Tree::read();
    let before = rules::length(&tree).len();
    tree.plant(
        "crates/net/src/new.rs",
        &"//! Long.\n".repeat(rules::LINES_MAX + 1),
    );
    assert_eq!(
        rules::length(&tree).len(),
        before + 1,
        "a long file was not seen"
    );
    for (name, _) in rules::ALL {
        assert!(
            *name == "length" || PLANTED.iter().any(|planted| planted.0 == *name),
            "{name} is never broken"
        );
    }
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = r##"
        // unsafe one
        /* unsafe /* nested unsafe */ two */
        let a = "unsafe \" three"; let b = r#"unsafe " four"#; let c = 'u'; let d = '\''; let e = b"unsafe";
        fn f<'unsafe_life>(x: &'static str) {} // five
        unsafe_op(); real_code();
    "##;
    let code = lexer::code(text);
    assert!(!lexer::has_word(&code, "unsafe"), "{code}");
    assert!(lexer::has_word(&code, "real_code"));
    assert!(lexer::has_word(
        &lexer::code("let x = 'a'; unsafe {}"),
        "unsafe"
    ));
    assert_eq!(
        code.lines().count(),
        text.lines().count(),
        "lines keep their numbers"
    );
}
