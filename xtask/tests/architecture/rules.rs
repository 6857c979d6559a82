//! The list of all rules, and those that have no file of their own. A violation is a text that names the file.

use crate::tree::{Tree, root};
use crate::{layout, lexer, pages, rooms};

type Rule = fn(&Tree) -> Vec<String>;

/// Every rule with its name.
pub const ALL: &[(&str, Rule)] = &[
    ("edges", edges),
    ("unsafe", unsafe_places),
    ("forbid", forbids),
    ("sans-io", sans_io),
    ("async", no_async),
    ("module docs", module_docs),
    ("circles", layout::circles),
    ("floors", layout::floors),
    ("protocols", protocols),
    ("rooms: imports", rooms::imports),
    ("rooms: calls", rooms::calls),
    ("rooms: states", rooms::states),
    ("words", words),
    ("links", pages::links),
    ("pages", pages::first_and_last_sections),
];

/// Which crate may import which, by directory; tests (`dev-dependencies`) may import anything.
const EDGES: &[(&str, &[&str])] = &[
    ("crates/settings", &[]),
    ("crates/wire", &[]),
    ("crates/broker", &["crore-settings", "crore-wire"]),
    ("crates/disk", &["crore-rng"]),
    ("crates/nats", &[]),
    ("crates/net", &["crore-tcp"]),
    ("crates/rng", &[]),
    ("crates/tcp", &["crore-rng"]),
    ("crates/bench", &["crore-net", "crore-tcp", "crore-wire"]),
    (
        "crates/sim",
        &[
            "crore-broker",
            "crore-disk",
            "crore-rng",
            "crore-tcp",
            "crore-wire",
        ],
    ),
    (
        "crates/server",
        &[
            "crore-broker",
            "crore-disk",
            "crore-nats",
            "crore-net",
            "crore-settings",
            "crore-shard-loop",
            "crore-wire",
        ],
    ),
    (
        "crates/shard-loop",
        &["crore-broker", "crore-net", "crore-settings"],
    ),
    ("xtask", &[]),
];

/// The files that may contain `unsafe`: system calls, and allocators that count for tests.
const UNSAFE: &[&str] = &[
    "crates/net/",
    "crates/bench/src/sys.rs",
    // Sets up network interfaces by `ioctl`; `rustix` has no such calls.
    "crates/bench/src/sys/tun.rs",
    "crates/broker/tests/allocations/counting.rs",
    "crates/server/tests/allocations.rs",
];

/// The crates that decide and encode: no sockets, no clock, no threads.
const PURE: &[&str] = &["crates/wire/", "crates/broker/", "crates/tcp/"];

/// Words that a pure crate must not contain.
const IMPURE_WORDS: &[&str] = &[
    "std::net",
    "std::time",
    "std::thread",
    "std::fs",
    "std::env",
    "std::process",
    "std::os",
    "std::sync",
    "thread",
    "Instant",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "libc",
];

/// The packages that a pure crate may depend on. Each is a codec, a hash, a collection or a derive, without a system call.
const PURE_DEPENDENCIES: &[&str] = &[
    "base64",
    "derive_more",
    "httparse",
    "idna",
    "smallvec",
    "memchr",
    "miniz_oxide",
    "strum",
    "hmac",
    "sha1",
    "sha2",
    // It makes no system calls.
    "blake3",
    "xxhash-rust",
    // Plain data. Its derives, with their dependencies, are for the server, which reads the settings from a file.
    // Only by the feature for tests.
    "crore-rng",
    "crore-settings",
    "crore-wire",
    "hashbrown",
];

/// Runtimes that schedule tasks. Shards are plain threads.
const RUNTIMES: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "futures",
    "glommio",
    "monoio",
    "mio",
    "async-io",
];

/// The files that may use a runtime. The control plane and the log in JetStream do not run on shards, and each has a runtime of its own.
const ASYNC_PLACES: &[&str] = &[
    // The bare NATS client with which benchmarks compare.
    "crates/bench/src/rig/bare.rs",
    "crates/nats/",
    "crates/server/src/control/",
    "crates/server/src/lifecycle/",
    // The independent client of HTTP/2 that the codec is tested with.
    "crates/wire/tests/http2_client/",
];

/// The files that may check whether a connection speaks MQTT: the protocol itself, `protocol_of`, and the row.
const MQTT_PLACES: &[&str] = &[
    "crates/broker/src/protocol/mqtt/",
    "crates/broker/src/client/protocols.rs",
    "crates/broker/src/client/row.rs",
];

fn edges(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (directory, manifest) in tree.manifests() {
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == directory) else {
            if directory.starts_with("crates/") {
                found.push(format!(
                    "{directory} has no row in the table of allowed imports"
                ));
            }
            continue;
        };
        for name in dependencies(&manifest) {
            if name.starts_with("crore") && !allowed.contains(&name.as_str()) {
                found.push(format!("{directory} imports {name}"));
            }
        }
    }
    found
}

fn unsafe_places(tree: &Tree) -> Vec<String> {
    let elsewhere = tree
        .codes()
        .filter(|(path, _)| !UNSAFE.iter().any(|allowed| path.starts_with(allowed)));
    elsewhere
        .filter_map(|(path, code)| word_in(path, code, "unsafe"))
        .collect()
}

fn forbids(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for directory in PURE {
        let path = format!("{directory}src/lib.rs");
        let code = lexer::code(tree.get(&path).unwrap_or_default());
        for attribute in ["#![forbid(unsafe_code)]", "#![no_std]"] {
            if !code.contains(attribute) {
                found.push(format!("{path} lacks {attribute}"));
            }
        }
    }
    found
}

fn sans_io(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let pure_source = |path: &str| {
        PURE.iter()
            .any(|pure| path.starts_with(&format!("{pure}src/")))
    };
    for (path, code) in tree.codes().filter(|(path, _)| pure_source(path)) {
        found.extend(
            IMPURE_WORDS
                .iter()
                .filter_map(|word| word_in(path, code, word)),
        );
        let mut before = "";
        for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
            // Unit tests may print and collect; the crate itself must build without `std`.
            if line.contains("extern crate std")
                && !before.contains("cfg(test)")
                && !line.contains("cfg(test)")
            {
                found.push(format!("{path} links `std` outside of tests"));
            }
            before = line;
        }
    }
    for (directory, manifest) in tree.manifests() {
        if PURE.contains(&format!("{directory}/").as_str()) {
            let foreign = |name: &String| !PURE_DEPENDENCIES.contains(&name.as_str());
            let names = dependencies(&manifest).into_iter().filter(foreign);
            found.extend(names.map(|name| {
                format!("{directory} depends on {name}, which nobody has judged pure")
            }));
        }
    }
    found
}

fn no_async(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let sources = tree
        .codes()
        .filter(|(path, _)| !ASYNC_PLACES.iter().any(|place| path.starts_with(place)));
    for (path, code) in sources {
        found.extend(
            ["async", "await", "tokio"]
                .iter()
                .filter_map(|word| word_in(path, code, word)),
        );
    }
    for (directory, manifest) in tree.manifests() {
        let runtimes = dependencies(&manifest)
            .into_iter()
            .filter(|name| RUNTIMES.contains(&name.as_str()));
        let has_one = ["crates/bench", "crates/nats", "crates/server"].contains(&directory);
        found.extend(
            runtimes
                .filter(|_| !has_one)
                .map(|name| format!("{directory} depends on {name}")),
        );
    }
    found
}

fn module_docs(tree: &Tree) -> Vec<String> {
    let bare = tree.sources().filter(|(_, text)| !text.starts_with("//!"));
    bare.map(|(path, _)| format!("{path} does not open with `//!`"))
        .collect()
}

/// Code whose behaviour depends on the protocol of a connection must ask the protocol (`client/protocols.rs`) instead of checking for MQTT.
fn protocols(tree: &Tree) -> Vec<String> {
    let elsewhere = tree.codes().filter(|(path, _)| {
        path.starts_with("crates/broker/src/")
            && !MQTT_PLACES.iter().any(|place| path.starts_with(place))
    });
    elsewhere
        .filter_map(|(path, code)| word_in(path, code, "State::Mqtt"))
        .collect()
}

/// Forbids notes such as TODO, which belong in an issue, and praise and paths of one machine, which belong nowhere.
fn words(tree: &Tree) -> Vec<String> {
    let checkout = format!("{}/", root().display());
    let never = [
        "TODO",
        "FIXME",
        "XXX",
        "blazing",
        "world-class",
        "revolutionary",
        "/root/",
        "/home/",
        &checkout,
    ];
    let mut found = Vec::new();
    for (path, text) in tree
        .all()
        .filter(|(path, _)| !path.starts_with("xtask/tests/architecture/"))
    {
        let here = never.iter().filter(|word| text.contains(**word));
        found.extend(here.map(|word| format!("{path} says {word:?}")));
    }
    found
}

fn word_in(path: &str, code: &str, word: &str) -> Option<String> {
    let line = lexer::line_of_word(code, word)?;
    Some(format!("{path}:{line} says `{word}`"))
}

/// The dependencies of a manifest's library or program. A renamed package has its real name.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let target_tables = manifest.get("target").and_then(toml::Value::as_table);
    let targets = target_tables
        .into_iter()
        .flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let mut names = Vec::new();
    for table in std::iter::once(manifest).chain(targets) {
        for kind in ["dependencies", "build-dependencies"] {
            let Some(dependencies) = table.get(kind).and_then(toml::Value::as_table) else {
                continue;
            };
            names.extend(dependencies.iter().map(|(key, value)| {
                let renamed = value
                    .as_table()
                    .and_then(|value| value.get("package"))
                    .and_then(toml::Value::as_str);
                renamed.unwrap_or(key).to_string()
            }));
        }
    }
    names
}
