//! The order of the files within each crate: no wide circles of imports, and no import of a higher floor.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::Imports;
use crate::known::{self, besides};
use crate::tree::Tree;

/// Files that import one another in a circle must lie in one folder with at most so many files.
const FOLDER_MAX: usize = 6;

/// The folders and files right below a crate's `src`, from the lowest floor to the highest. Each may import what is on lower floors; those
/// on one floor do not import one another. The root (`lib.rs`, `main.rs`) is above all.
pub const FLOORS: &[(&str, &[&[&str]])] = &[
    (
        "settings",
        &[
            &["bounds", "client_filter", "rights"],
            &["connection", "http", "limits", "mqtt", "publish", "rule"],
        ],
    ),
    (
        "wire",
        &[
            &["deflate", "form", "http", "json", "ndjson", "sse"],
            &["topic", "websocket"],
            &["mqtt"],
        ],
    ),
    (
        "net",
        &[
            &["der", "sys", "transport"],
            &["affinity", "clock", "mailbox", "memory", "pem", "signal"],
            &["kernel", "stream"],
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
            &["config"],
            &["tls"],
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
            &["directory", "scan", "torn"],
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
            &["numbers", "peers", "permissions"],
            &["streams"],
            &["bucket"],
            &["append", "reader", "store", "table", "watch"],
            &["connect"],
            &["cluster"],
        ],
    ),
    ("rng", &[]),
    (
        "sim",
        &[
            &["close_frame", "coverage", "truth"],
            &["engine"],
            &["net", "obligations", "plan"],
            &["checkpoint", "client", "shadow"],
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
    besides(known::CIRCLES, found)
}

/// The lowest folder that holds all files of a circle; empty for all of the crate.
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

/// The imports that make a crate's wide circles.
pub fn circling(tree: &Tree, name: &str) -> Vec<String> {
    let imports = Imports::of(tree, name);
    let circles = wide_circles(&imports);
    let within = |from: &usize, to: &usize| {
        circles
            .iter()
            .any(|circle| circle.contains(from) && circle.contains(to))
    };
    let arrows = imports
        .arrows
        .iter()
        .filter(|((from, to), _)| within(from, to));
    let lines = arrows.map(|((from, to), line)| {
        format!(
            "circle: crates/{name}/src/{}:{line} imports {}",
            imports.files[*from], imports.files[*to]
        )
    });
    lines.collect()
}

/// The circles that do not lie in one small folder.
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
        for ((from, to), line) in &imports.arrows {
            let file = &imports.files[*from];
            let (importer, imported) = (room(file), room(&imports.files[*to]));
            if importer != imported && height(floors, importer) <= height(floors, imported) {
                let what = format!(
                    "crates/{name}/src/{file}:{line} imports {imported}, which is on no lower floor than {importer}"
                );
                found.push((format!("{name}: {importer} -> {imported}"), what));
            }
        }
    }
    besides(known::FLOORS, found)
}

/// The name for the root of a crate.
const ROOT: &str = "the root";

/// The folder or file below `src` that a file belongs to.
fn room(file: &str) -> &str {
    let name = file.split(['/', '.']).next().unwrap_or_default();
    match file {
        "lib.rs" | "main.rs" => ROOT,
        _ => name,
    }
}

/// The floor that a room is on; the root is above all, and a room without a floor is below.
fn height(floors: &[&[&str]], room: &str) -> Option<usize> {
    match room {
        ROOT => Some(floors.len()),
        _ => floors.iter().position(|floor| floor.contains(&room)),
    }
}

/// The floors of a crate, the highest first: each room with the number of its files, and how often they import files of which other room.
pub fn picture(tree: &Tree, name: &str, floors: &[&[&str]]) -> String {
    let imports = Imports::of(tree, name);
    let mut arrows = BTreeMap::new();
    for (from, to) in imports.arrows.keys() {
        let (importer, imported) = (room(&imports.files[*from]), room(&imports.files[*to]));
        if importer != imported {
            *arrows.entry((importer, imported)).or_insert(0) += 1;
        }
    }
    let mut text = format!(
        "{name}: {} files, {} imports, {} from room to room\n",
        imports.files.len(),
        imports.arrows.len(),
        arrows.values().sum::<usize>()
    );
    let top = (floors.len(), &[ROOT][..]);
    for (floor, rooms) in std::iter::once(top).chain(floors.iter().copied().enumerate().rev()) {
        for importer in rooms {
            let files = imports
                .files
                .iter()
                .filter(|file| room(file) == *importer)
                .count();
            let mut targets: Vec<(&str, usize)> = arrows
                .iter()
                .filter(|((from, _), _)| from == importer)
                .map(|((_, to), count)| (*to, *count))
                .collect();
            targets.sort_by_key(|(imported, _)| std::cmp::Reverse(height(floors, imported)));
            let targets = targets.into_iter().map(|(imported, count)| {
                let up = if height(floors, imported) >= Some(floor) {
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
