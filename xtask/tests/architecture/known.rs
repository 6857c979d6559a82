//! The present violations. These lists may only shrink: an entry that no longer excuses anything is a violation, too.

/// Circles of imports that are wider than [`crate::layout::circles`] allows, each by the lowest folder that holds all of it.
pub const CIRCLES: &[&str] = &[];

/// Crates without floors, and imports that do not lead to a lower floor, as `crate: importer -> imported`.
pub const FLOORS: &[&str] = &[];

/// Returns the texts of the violations that `known` does not excuse, and a text for each entry of `known` that excuses none. A violation in `found`
/// is the entry that would excuse it, and its text.
pub fn unexcused(known: &[&str], found: Vec<(String, String)>) -> Vec<String> {
    let unused = known
        .iter()
        .filter(|entry| !found.iter().any(|(key, _)| key == **entry));
    let unused: Vec<String> = unused
        .map(|entry| format!("`{entry}` keeps the rule: delete it from the list"))
        .collect();
    let unexcused = found
        .into_iter()
        .filter(|(key, _)| !known.contains(&key.as_str()));
    unexcused.map(|(_, what)| what).chain(unused).collect()
}
