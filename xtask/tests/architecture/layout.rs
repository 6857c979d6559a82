//! The order of the rooms within each crate: no import of a higher floor, and no wide circles of imports.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::Imports;
use crate::known::{self, unexcused};
use crate::tree::Tree;

/// Files may import one another in a circle only if they are in one folder that has at most this many files.
const FOLDER_MAX: usize = 6;

/// The rooms of each crate: the folders and files directly below `src`, from the lowest floor to the highest. A room may import only rooms on lower
/// floors, so rooms on the same floor do not import one another. The root (`lib.rs`, `main.rs`) is above all.
pub const FLOORS: &[(&str, &[&[&str]])] = &[
    (
        "settings",
        &[
            &["bounds", "client_filter", "rights"],
            &[
                "centrifugo",
                "connection",
                "http",
                "limits",
                "mqtt",
                "publish",
                "pusher",
                "rule",
            ],
        ],
    ),
    (
        "wire",
        &[
            &["deflate", "form", "http", "json", "sse"],
            &[
                "centrifugo",
                "http2",
                "ndjson",
                "pusher",
                "topic",
                "websocket",
            ],
            &["mqtt"],
        ],
    ),
    (
        "net",
        &[
            &["der", "sys", "transport"],
            &["affinity", "clock", "mailbox", "memory", "pem", "signal"],
            &["kernel", "stream"],
            &["xdp"],
        ],
    ),
    (
        "broker",
        &[
            &["base"],
            &["budget"],
            &["store"],
            &["mail"],
            &["filters"],
            &["log"],
            &["home"],
            &["commit"],
            &["io"],
            &["client"],
            &["protocol"],
            &["shard"],
        ],
    ),
    (
        "shard-loop",
        &[
            &["appender", "client_log", "counters", "letters", "tls"],
            &["shard_io"],
            &["shard_loop"],
        ],
    ),
    (
        "server",
        &[
            &["log", "settings", "stdout"],
            &["http_client"],
            &["access"],
            &["backend"],
            &["config"],
            &["tls", "xdp"],
            &["engine"],
            &["lifecycle"],
            &["control"],
            &["doctor"],
            &["foreign_flags", "tools"],
            &["cli"],
            &["manual"],
            &["boot"],
        ],
    ),
    (
        "bench",
        &[
            &["sys"],
            &["measure"],
            &["client"],
            &["report"],
            &["floor", "page"],
            &["publish"],
            &["subscribe"],
            &["probe", "rig"],
            &["swarm"],
            &["scenario"],
        ],
    ),
    (
        "disk",
        &[
            &["planted", "storage"],
            &["damage", "format"],
            &["mark"],
            &["directory", "scan", "simulated"],
            &["log", "reader"],
            &["engine"],
        ],
    ),
    (
        "nats",
        &[
            &["checkpoint", "error", "events"],
            &["driver", "log_state"],
            &["monitor", "settings", "transfer"],
            &["identity", "peers", "permissions"],
            &["streams"],
            &["bucket"],
            &["append", "reader", "store", "table", "watch"],
            &["connect"],
            &["cluster"],
        ],
    ),
    ("rng", &[]),
    (
        "tcp",
        &[
            &["config", "counters", "planted", "sequence", "siphash"],
            &[
                "congestion",
                "packet",
                "rtt",
                "scoreboard",
                "send_buffer",
                "timers",
            ],
            &["cookie", "rack", "reassembly", "row"],
            &["account", "orphans", "transfer"],
            &["table"],
            &[
                "acknowledgement",
                "api",
                "ending",
                "expiry",
                "handshake",
                "incoming_data",
                "input",
                "output",
                "parked",
                "path_mtu",
                "side_table",
                "simulated",
            ],
        ],
    ),
    (
        "sim",
        &[
            &["close_frame", "coverage", "tcp_connection", "truth"],
            &["engine"],
            &["net", "obligations", "plan"],
            &["checkpoint", "client", "log_replay"],
            &["simulation"],
            &["run"],
            &["shrink"],
        ],
    ),
];

pub fn circles(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for name in tree.crates() {
        let imports = Imports::of(tree, name);
        for circle in wide_circles(&imports) {
            let key = format!("crates/{name}/src/{}", folder_around(&imports, &circle));
            let key = key.trim_end_matches('/').to_string();
            let files: Vec<&str> = circle
                .iter()
                .map(|file| imports.files[*file].as_str())
                .collect();
            let what = format!(
                "{key}: {} files import one another in a circle: {}",
                files.len(),
                files.join(", ")
            );
            found.push((key.clone(), what));
        }
    }
    unexcused(known::CIRCLES, found)
}

/// The lowest folder that contains all files of a circle; empty if that is `src`.
fn folder_around(imports: &Imports, circle: &[usize]) -> String {
    let parts = |file: &usize| imports.folder(*file).split('/').map(String::from);
    let mut folder: Vec<String> = parts(&circle[0]).collect();
    for file in circle {
        let same = folder.iter().zip(parts(file));
        let same = same.take_while(|(one, other)| *one == other).count();
        folder.truncate(same);
    }
    folder.join("/")
}

/// A line for each import within a wide circle of a crate.
pub fn wide_circle_imports(tree: &Tree, name: &str) -> Vec<String> {
    let imports = Imports::of(tree, name);
    let circles = wide_circles(&imports);
    let is_within = |from: &usize, to: &usize| {
        circles
            .iter()
            .any(|circle| circle.contains(from) && circle.contains(to))
    };
    let edges = imports
        .edges
        .iter()
        .filter(|((from, to), _)| is_within(from, to));
    let lines = edges.map(|((from, to), line)| {
        format!(
            "circle: crates/{name}/src/{}:{line} imports {}",
            imports.files[*from], imports.files[*to]
        )
    });
    lines.collect()
}

/// The circles that are not in one folder of at most [`FOLDER_MAX`] files.
fn wide_circles(imports: &Imports) -> Vec<Vec<usize>> {
    let mut sizes = BTreeMap::new();
    for file in 0..imports.files.len() {
        *sizes.entry(imports.folder(file)).or_insert(0) += 1;
    }
    let mut circles = imports.circles();
    circles.retain(|circle| {
        let folder = imports.folder(circle[0]);
        sizes[folder] > FOLDER_MAX || circle.iter().any(|file| imports.folder(*file) != folder)
    });
    circles
}

pub fn floors(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for name in tree.crates() {
        let Some((_, floors)) = FLOORS.iter().find(|(known, _)| *known == name) else {
            let what = format!("crates/{name} has no floors");
            found.push((format!("crates/{name}"), what));
            continue;
        };
        let imports = Imports::of(tree, name);
        let rooms: BTreeSet<&str> = imports.files.iter().map(|file| room(file)).collect();
        let drawn: BTreeSet<&str> = floors.iter().copied().flatten().copied().collect();
        for room in rooms
            .symmetric_difference(&drawn)
            .filter(|room| **room != ROOT)
        {
            let what = if drawn.contains(room) {
                "does not exist"
            } else {
                "is on no floor"
            };
            found.push((
                format!("{name}: {room}"),
                format!("crates/{name}/src: {room} {what}"),
            ));
        }
        for ((from, to), line) in &imports.edges {
            let file = &imports.files[*from];
            let (importer, imported) = (room(file), room(&imports.files[*to]));
            if importer != imported && floor_of(floors, importer) <= floor_of(floors, imported) {
                let what = format!(
                    "crates/{name}/src/{file}:{line} imports {imported}, which is on no lower floor than {importer}"
                );
                found.push((format!("{name}: {importer} -> {imported}"), what));
            }
        }
    }
    unexcused(known::FLOORS, found)
}

/// The name for the root of a crate.
const ROOT: &str = "the root";

/// The room of a file below `src`.
fn room(file: &str) -> &str {
    let name = file.split(['/', '.']).next().unwrap_or_default();
    match file {
        "lib.rs" | "main.rs" => ROOT,
        _ => name,
    }
}

/// The index of the floor of a room. The root is above all floors; `None`, which compares as lowest, if the room has no floor.
fn floor_of(floors: &[&[&str]], room: &str) -> Option<usize> {
    match room {
        ROOT => Some(floors.len()),
        _ => floors.iter().position(|floor| floor.contains(&room)),
    }
}

/// A text with the floors of a crate, the highest first: each room with the number of its files, and its imports of each other room.
pub fn picture(tree: &Tree, name: &str, floors: &[&[&str]]) -> String {
    let imports = Imports::of(tree, name);
    let mut edges = BTreeMap::new();
    for (from, to) in imports.edges.keys() {
        let (importer, imported) = (room(&imports.files[*from]), room(&imports.files[*to]));
        if importer != imported {
            *edges.entry((importer, imported)).or_insert(0) += 1;
        }
    }
    let mut text = format!(
        "{name}: {} files, {} imports, {} from room to room\n",
        imports.files.len(),
        imports.edges.len(),
        edges.values().sum::<usize>()
    );
    let top = (floors.len(), &[ROOT][..]);
    for (floor, rooms) in std::iter::once(top).chain(floors.iter().copied().enumerate().rev()) {
        for importer in rooms {
            let files = imports
                .files
                .iter()
                .filter(|file| room(file) == *importer)
                .count();
            let mut targets: Vec<(&str, usize)> = edges
                .iter()
                .filter(|((from, _), _)| from == importer)
                .map(|((_, to), count)| (*to, *count))
                .collect();
            targets.sort_by_key(|(imported, _)| std::cmp::Reverse(floor_of(floors, imported)));
            let targets = targets.into_iter().map(|(imported, count)| {
                let up = if floor_of(floors, imported) >= Some(floor) {
                    "UP TO "
                } else {
                    ""
                };
                format!("{up}{imported} {count}")
            });
            let targets: Vec<String> = targets.collect();
            let row = format!(
                "{:>3}  {importer:<14}{files:>3}  {}",
                floor + 1,
                targets.join(", ")
            );
            text += row.trim_end();
            text.push('\n');
        }
    }
    text
}
