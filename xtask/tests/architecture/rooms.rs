//! The rooms of the broker: what every connection has (`client/`), and one folder for each protocol over it.
//!
//! Calls of methods of `Front` and `Clients` need no import, so they are checked separately. Files directly in `protocol/` may call every protocol, and
//! every protocol may call them.

use std::collections::BTreeMap;

use crate::imports::Imports;
use crate::lexer::{self, Token, closing, head_end};
use crate::tree::Tree;

/// The protocols, and for each the other protocols that it may import.
const PROTOCOLS: &[(&str, &[&str])] = &[
    ("http", &[]),
    ("sse", &["http"]),
    ("websocket", &["http"]),
    ("stream", &["http", "sse", "websocket"]),
    ("longpoll", &["http", "stream"]),
    ("mqtt", &["http", "websocket"]),
    ("centrifugo", &["http", "websocket"]),
    ("pusher", &["http", "websocket"]),
    ("http2", &["http"]),
];

const CLIENT: &str = "crates/broker/src/client/";
const PROTOCOL: &str = "protocol/";
/// The row of a connection lists the states, and `protocol_of` the protocol of each: the only places in `client/` that name them.
const LISTS: &[&str] = &[
    "crates/broker/src/client/row.rs",
    "crates/broker/src/client/protocols.rs",
];
/// The states that belong to one protocol. `Draining` is not here, because a connection of any protocol may have it.
const STATES: &[&str] = &[
    "State::Proxy",
    "State::Http",
    "State::Waiting",
    "State::Poll",
    "State::Sse",
    "State::WebSocket",
    "State::Mqtt",
    "State::Centrifugo",
    "State::Pusher",
    "State::Http2",
];

/// The protocol that a file below `src` belongs to.
fn protocol_of(file: &str) -> Option<&str> {
    let (folder, _) = file.strip_prefix(PROTOCOL)?.split_once('/')?;
    PROTOCOLS
        .iter()
        .any(|(name, _)| *name == folder)
        .then_some(folder)
}

/// Whether files of one protocol may import or call those of another.
fn may_use(from: &str, to: &str) -> bool {
    let allowed = PROTOCOLS.iter().find(|(name, _)| *name == from);
    from == to || allowed.is_some_and(|(_, allowed)| allowed.contains(&to))
}

/// A protocol imports only those that [`PROTOCOLS`] permits, and every folder in `protocol/` is listed there.
pub fn imports(tree: &Tree) -> Vec<String> {
    let imports = Imports::of(tree, "broker");
    let mut found = Vec::new();
    for ((from, to), line) in &imports.edges {
        let (file, target) = (&imports.files[*from], &imports.files[*to]);
        let (Some(one), Some(other)) = (protocol_of(file), protocol_of(target)) else {
            continue;
        };
        if !may_use(one, other) {
            found.push(format!(
                "{file}:{line} imports {target}: {one} may not import {other}"
            ));
        }
    }
    for file in &imports.files {
        let folder = file
            .strip_prefix(PROTOCOL)
            .and_then(|rest| rest.split_once('/'));
        if let Some((folder, _)) = folder
            && protocol_of(file).is_none()
        {
            found.push(format!(
                "{file}: {folder} is no protocol that this test knows"
            ));
        }
    }
    found
}

/// A protocol calls only methods of `Front` and `Clients` that it defines itself, or that a protocol defines which it may import.
pub fn calls(tree: &Tree) -> Vec<String> {
    let sources: Vec<(&str, Vec<Token<'_>>)> = tree
        .codes()
        .filter_map(|(path, code)| Some((path.strip_prefix("crates/broker/src/")?, code)))
        .filter_map(|(file, code)| protocol_of(file).map(|_| (file, lexer::tokens(code))))
        .collect();
    let mut owners = BTreeMap::new();
    for (file, tokens) in &sources {
        for name in methods_of_front(tokens) {
            owners.insert(name, protocol_of(file).unwrap_or_default());
        }
    }
    let mut found = Vec::new();
    for (file, tokens) in &sources {
        let from = protocol_of(file).unwrap_or_default();
        for four in tokens.windows(4) {
            let [on, dot, name, open] = four else {
                continue;
            };
            let is_call = matches!(on.text, "self" | "front" | "clients")
                && dot.text == "."
                && open.text == "(";
            let Some(owner) = owners.get(name.text).filter(|_| is_call) else {
                continue;
            };
            if !may_use(from, owner) {
                found.push(format!(
                    "{file}:{} calls {}, which {owner} has: {from} may not call {owner}",
                    name.line, name.text
                ));
            }
        }
    }
    found
}

/// The names of the functions in `impl Front` and `impl Clients` blocks.
fn methods_of_front<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut names = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if text(at) == "impl" && matches!(text(at + 1), "Front" | "Clients") {
            let open = head_end(tokens, at);
            let end = closing(tokens, open);
            names.extend(
                (open..end)
                    .filter(|at| text(*at) == "fn")
                    .map(|at| text(at + 1)),
            );
            at = end;
        }
        at += 1;
    }
    names
}

/// Files in `client/`, except [`LISTS`], name no state that belongs to one protocol.
pub fn states(tree: &Tree) -> Vec<String> {
    let client = tree.codes().filter(|(path, _)| {
        path.starts_with(CLIENT) && !LISTS.contains(path) && !path.ends_with("tests.rs")
    });
    let found = client.flat_map(|(path, code)| {
        let named = STATES.iter().filter_map(move |state| {
            let line = lexer::line_of_word(code, state)?;
            Some(format!("{path}:{line} names {state}"))
        });
        named.collect::<Vec<_>>()
    });
    found.collect()
}
