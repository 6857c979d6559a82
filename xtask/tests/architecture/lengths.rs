//! How long files and functions may be.

use crate::known::{self, besides};
use crate::lexer;
use crate::tree::Tree;

/// A file's length that we aim at, and the one past which it must be divided.
pub const FILE_AIM: usize = 350;
pub const FILE_MAX: usize = 500;

/// The most lines between the braces of a function.
pub const FUNCTION_MAX: usize = 70;

/// Functions that are a table, and the contents of their rows.
const TABLES: &[(&str, &str)] = &[
    (
        "crates/server/src/control/limits.rs: all",
        "a limit, what is used of it and its setting",
    ),
    (
        "crates/server/tests/access/commands.rs: settings_of_access_that_cannot_work_are_refused_with_their_place",
        "settings and their refusal",
    ),
    (
        "crates/server/tests/access/matrix.rs: states",
        "credentials and their name",
    ),
    (
        "crates/server/tests/config/refusals.rs: refusals_name_the_place_the_key_and_the_remedy",
        "settings and their refusal",
    ),
    (
        "crates/server/tests/http/ws_violations.rs: violations",
        "a frame and its close code",
    ),
    (
        "crates/wire/tests/http_head.rs: smuggling_forms_are_refused",
        "a request and its refusal",
    ),
    (
        "crates/wire/tests/mqtt_errors/properties.rs: properties_have_their_places",
        "a packet and its properties",
    ),
    (
        "crates/wire/tests/mqtt_properties/packets.rs: encoded",
        "one `match`: a packet and its bytes",
    ),
];

pub fn files(tree: &Tree) -> Vec<String> {
    let long = long_files(tree, FILE_MAX).into_iter();
    let found = long.map(|(path, lines)| (path.clone(), format!("{path} has {lines} lines")));
    besides(known::FILES, found.collect())
}

/// Sources with more lines than that.
pub fn long_files(tree: &Tree, limit: usize) -> Vec<(String, usize)> {
    let counted = tree
        .sources()
        .map(|(path, text)| (path.to_string(), text.lines().count()));
    counted.filter(|(_, lines)| *lines > limit).collect()
}

pub fn functions(tree: &Tree) -> Vec<String> {
    let known: Vec<&str> = TABLES
        .iter()
        .map(|(function, _)| *function)
        .chain(known::FUNCTIONS.iter().copied())
        .collect();
    let long = long_functions(tree, FUNCTION_MAX).into_iter();
    let found = long.map(|(name, lines)| (name.clone(), format!("{name} has {lines} lines")));
    besides(&known, found.collect())
}

/// Functions with more lines between their braces than that, as `path: name`.
pub fn long_functions(tree: &Tree, limit: usize) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (path, code) in tree.codes() {
        let functions = lengths(code).into_iter();
        let long = functions.filter(|(_, lines)| *lines > limit);
        found.extend(long.map(|(name, lines)| (format!("{path}: {name}"), lines)));
    }
    found
}

fn lengths(code: &str) -> Vec<(String, usize)> {
    let tokens = lexer::tokens(code);
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        // A type such as `fn(u8)` has no name.
        if pair[0].text != "fn" || pair[1].text == "(" {
            continue;
        }
        let open = lexer::head_end(&tokens, at);
        let close = lexer::closing(&tokens, open);
        let lines = (tokens[close].line - tokens[open].line).saturating_sub(1);
        found.push((pair[1].text.to_string(), lines));
    }
    found
}
