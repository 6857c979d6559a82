//! The present violations. These lists may only shrink: an entry that excuses nothing any more is a violation, too.

/// Circles of imports that are wider than [`crate::layout::circles`] allows, each by the lowest folder that holds all of it.
pub const CIRCLES: &[&str] = &[];

/// Crates without floors, and imports that do not lead to a lower floor, as `crate: importer -> imported`.
pub const FLOORS: &[&str] = &[];

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
