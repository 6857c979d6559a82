//! The present violations. These lists may only shrink: an entry that excuses nothing any more is a violation, too.

/// Circles of imports that are wider than [`crate::layout::circles`] allows, each by the lowest folder that holds all of it.
pub const CIRCLES: &[&str] = &[];

/// Crates without floors, and imports that do not lead to a lower floor, as `crate: importer -> imported`.
pub const FLOORS: &[&str] = &[];

/// Files that are too long.
pub const FILES: &[&str] = &[];

/// Functions that are too long, as `path: name`.
pub const FUNCTIONS: &[&str] = &[];

/// Types that are too large, each with the fields and methods that it may have at most: the counts of today. They may only shrink.
pub const TYPES: &[(&str, usize, usize)] = &[
    ("bench: Publisher", 15, 37),
    ("bench: Talk", 17, 16),
    ("bench: Worker", 24, 73),
    ("broker: Batches", 15, 18),
    ("broker: Commits", 14, 26),
    ("broker: Counts", 21, 31),
    ("broker: Entry", 13, 12),
    ("broker: Front", 8, 164),
    ("broker: Log", 13, 67),
    ("broker: Shard", 14, 145),
    ("disk: Log", 15, 17),
    ("net: Streams", 21, 47),
    ("server: Connection", 13, 14),
    ("server: ShardLoop", 15, 19),
    ("sim: Client", 29, 60),
    ("sim: Net", 13, 11),
    ("sim: Plan", 34, 30),
    ("sim: Truth", 16, 26),
    ("sim: World", 19, 68),
];

/// Violations, given as the entry that would excuse one and its text: those that `known` does not excuse, and entries that
/// excuse none.
pub fn besides(known: &[&str], found: Vec<(String, String)>) -> Vec<String> {
    let idle = known
        .iter()
        .filter(|entry| !found.iter().any(|(key, _)| key == **entry));
    let idle: Vec<String> = idle
        .map(|entry| format!("`{entry}` keeps the rule: delete it from the list"))
        .collect();
    let fresh = found
        .into_iter()
        .filter(|(key, _)| !known.contains(&key.as_str()));
    fresh.map(|(_, what)| what).chain(idle).collect()
}
