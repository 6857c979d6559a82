//! Checks the architecture: which crate imports which, which files may contain `unsafe`, what the sans-io crates must not use, and which
//! files may ask for the protocol of a connection. Deliberately not here: limits on numbers of lines, fields, methods or arguments. They are met
//! by moving code, which helps no reader.
//!
//! The rules read manifests and sources as text; they compile nothing. Each rule is a function from a [`Tree`] to its violations. So the second
//! test can plant a violation of each rule in a copy of the tree in memory, and check that the rule finds it.

#![allow(clippy::print_stdout)] // prints the report that `--nocapture` shows

mod imports;
mod known;
mod layout;
mod lexer;
mod pages;
mod rooms;
mod rules;
mod tree;

use tree::Tree;

#[test]
fn the_workspace_keeps_its_walls() {
    let tree = Tree::read();
    assert!(tree.sources().count() > 10, "the sources were not found");
    report(&tree);
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

/// Prints the floors of each crate and the imports of its wide circles. `--nocapture` shows this.
fn report(tree: &Tree) {
    for (name, floors) in layout::FLOORS {
        println!("{}", layout::picture(tree, name, floors));
    }
    for what in tree
        .crates()
        .iter()
        .flat_map(|name| layout::wide_circle_imports(tree, name))
    {
        println!("{what}");
    }
}

/// Planted violations: the rule that must find it, the file, and the text that is added to the file ([`Tree::plant`]).
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
        "crates/disk/Cargo.toml",
        "\n[dependencies.tokio]\nversion = \"1\"\n",
    ),
    ("module docs", "crates/net/src/new.rs", "fn f() {}\n"),
    (
        "words",
        "crates/net/src/new.rs",
        "//! New.\n// TODO: finish\n",
    ),
    ("words", "docs/new.md", "A blazing server.\n"),
    ("links", "docs/new.md", "A [page](gone.md).\n"),
    ("links", "docs/new.md", "A [part](SETTINGS.md#gone).\n"),
    ("pages", "docs/new.md", "# New\n\nA server.\n"),
    (
        "protocols",
        "crates/broker/src/protocol/new.rs",
        "//! New.\nfn f(row: &Row) -> bool { row.state == State::Mqtt }\n",
    ),
    (
        "protocols",
        "crates/broker/src/shard/new.rs",
        "//! New.\nuse crate::client::row::State::Mqtt;\n",
    ),
    (
        "floors",
        "crates/broker/src/client/send.rs",
        "use crate::protocol::front::AllProtocols;\n",
    ),
    (
        "rooms: imports",
        "crates/broker/src/protocol/sse/mod.rs",
        "use crate::protocol::websocket::gap;\n",
    ),
    (
        "rooms: imports",
        "crates/broker/src/protocol/http/judge.rs",
        "use crate::protocol::mqtt::packets;\n",
    ),
    (
        "rooms: imports",
        "crates/broker/src/protocol/new/mod.rs",
        "//! New.\n",
    ),
    (
        "rooms: calls",
        "crates/broker/src/protocol/http/judge.rs",
        "impl Front { fn f(&mut self) { self.receive_mqtt(); } }\n",
    ),
    (
        "rooms: states",
        "crates/broker/src/client/send.rs",
        "fn f(row: &Row) -> bool { row.state == State::Poll }\n",
    ),
    (
        "floors",
        "crates/wire/src/form.rs",
        "use crate::mqtt::Packet;\n",
    ),
    ("floors", "crates/wire/src/new.rs", "//! New.\n"),
    ("floors", "crates/new/src/lib.rs", "//! New.\n"),
];

#[test]
fn every_rule_can_fail() {
    let whole = Tree::read();
    for (name, path, text) in PLANTED {
        let rule = rules::ALL
            .iter()
            .find(|(known, _)| known == name)
            .expect("a known rule")
            .1;
        let mut tree = whole.clone();
        let before = rule(&tree);
        tree.plant(path, text);
        let after = rule(&tree);
        assert!(
            after.len() > before.len(),
            "{name} did not see {text:?} in {path}"
        );
    }
    for (name, _) in rules::ALL {
        // A circle needs two files, so it has a test of its own.
        assert!(
            *name == "circles" || PLANTED.iter().any(|planted| planted.0 == *name),
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

/// A tree with these files and nothing else.
fn tree_of(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    for (path, text) in files {
        tree.plant(&format!("crates/new/src/{path}"), text);
    }
    tree
}

#[test]
fn imports_are_found_however_they_are_written() {
    let tree = tree_of(&[
        (
            "lib.rs",
            "mod a; mod b; mod c; mod d; #[cfg(test)] mod only_tests; pub use a::A; use std::fmt;",
        ),
        (
            "a/mod.rs",
            "mod one; mod two; pub use one::{One, inner}; use self::two::Two as Three;",
        ),
        (
            "a/one.rs",
            "use super::super::{b::{self, B}, c::*,};\nfn f<'c>() -> impl Sized + use<'c> { b::f() }",
        ),
        (
            "a/two.rs",
            "pub(in crate::a) fn f() { super::one::f::<u8>(); log::info!(\"crate::d::f()\") } // crate::c::f()",
        ),
        (
            "b.rs",
            "use crate::a as other;\n\nfn f() { assert!(other::two::f() == crate::d::inner::F); }",
        ),
        (
            "c.rs",
            "use crate::A;\n#[cfg(test)]\nmod tests { use crate::d::D; }\n#[cfg(test)]\nuse crate::{b::B};\nmod inner { use super::super::d; }",
        ),
        ("d.rs", "pub mod inner { fn f() { super::f(); } }"),
        ("only_tests.rs", "mod below; use crate::d::D;"),
        ("only_tests/below.rs", "use crate::d::D;"),
    ]);
    let imports = imports::Imports::of(&tree, "new");
    let edges = imports.edges.iter().map(|((from, to), line)| {
        format!("{}:{line} {}", imports.files[*from], imports.files[*to])
    });
    let expected = [
        "a/mod.rs:1 a/one.rs",
        "a/mod.rs:1 a/two.rs",
        "a/one.rs:1 b.rs",
        "a/one.rs:1 c.rs",
        "a/two.rs:1 a/one.rs",
        "b.rs:1 a/mod.rs",
        "b.rs:3 a/two.rs",
        "b.rs:3 d.rs",
        "c.rs:6 d.rs",
        "c.rs:1 lib.rs",
        "lib.rs:1 a/mod.rs",
    ];
    assert_eq!(edges.collect::<Vec<_>>(), expected);
}

#[test]
fn a_circle_may_stand_in_one_small_folder_only() {
    let circle = |files: &[(&str, &str)]| {
        let mut found = layout::circles(&tree_of(files)).into_iter();
        found.find(|what| what.contains("import one another"))
    };
    let wide = |files: &[(&str, &str)]| circle(files).is_some();
    let folder = |files: &[(&str, &str)], folder: &str| {
        circle(files).is_some_and(|what| what.starts_with(&format!("{folder}:")))
    };
    let small = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use one::One;"),
        ("a/one.rs", "use super::two::Two;"),
        ("a/two.rs", "use super::A;"),
        ("b.rs", "use crate::a::A;"),
    ];
    assert!(!wide(&small), "three files of one folder");
    let large =
        ["a/three.rs", "a/four.rs", "a/five.rs", "a/six.rs"].map(|path| (path, "//! More."));
    assert!(
        folder(&[&small[..], &large].concat(), "crates/new/src/a"),
        "a folder of seven files"
    );
    assert!(
        folder(
            &[&small[..], &[("a/two.rs", "use crate::b::B;")]].concat(),
            "crates/new/src"
        ),
        "a circle through a file beside the folder"
    );
    assert!(
        wide(&[
            ("lib.rs", "mod a; pub struct S;"),
            ("a/mod.rs", "use crate::S;"),
            ("lib.rs", "use a::A;")
        ]),
        "a circle through the root"
    );
}

#[test]
fn entry_of_the_known_list_excuses_itself_and_nothing_else() {
    let found = || {
        vec![
            ("old".to_string(), "old is long".to_string()),
            ("new".to_string(), "new is long".to_string()),
        ]
    };
    assert_eq!(known::unexcused(&["old", "new"], found()), [""; 0]);
    assert_eq!(known::unexcused(&["old"], found()), ["new is long"]);
    let unused = known::unexcused(&["old", "new", "mended"], found());
    assert!(
        matches!(&unused[..], [what] if what.contains("`mended` keeps the rule")),
        "{unused:?}"
    );
}
