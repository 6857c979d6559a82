//! How many fields and methods a type may have: with more, nobody sees which of its methods touch which of its fields.

use crate::known;
use crate::lexer::{self, Token, closing, head_end};
use crate::tree::Tree;

const FIELDS_MAX: usize = 12;
const METHODS_MAX: usize = 60;
/// A type with at most so many methods is a row: plain data, whose fields are no matter of this rule.
const METHODS_OF_ROW: usize = 10;

/// No type is larger than that, but those that [`known::TYPES`] lists, and these may only shrink.
pub fn sizes(tree: &Tree) -> Vec<String> {
    let found: Vec<Type> = all(tree).into_iter().filter(Type::is_large).collect();
    let excused = |name: &str| known::TYPES.iter().find(|(known, ..)| *known == name);
    let large = found.iter().filter_map(|it| {
        let (fields_max, methods_max) = match excused(&it.name) {
            Some((_, fields, methods)) => (*fields, *methods),
            None => (FIELDS_MAX, METHODS_MAX),
        };
        let Type { name, path, fields, methods } = it;
        (*fields > fields_max || *methods > methods_max).then(|| {
            format!(
                "{name} ({path}) has {fields} fields and {methods} methods; the limits are {fields_max} and {methods_max}: \
                 let functions take the parts that they need"
            )
        })
    });
    let idle = known::TYPES
        .iter()
        .filter(|(known, ..)| !found.iter().any(|it| it.name == *known));
    let idle = idle.map(|(known, ..)| format!("`{known}` keeps the rule: delete it from the list"));
    large.chain(idle).collect()
}

/// A type, as `crate: Type`, with the file that defines it. Methods of traits are not counted: the trait sets their number.
struct Type {
    name: String,
    path: String,
    fields: usize,
    methods: usize,
}

impl Type {
    fn is_large(&self) -> bool {
        self.methods > METHODS_MAX || self.fields > FIELDS_MAX && self.methods > METHODS_OF_ROW
    }

    /// How much of its path a file has.
    fn nearness(&self, path: &str) -> usize {
        let same = self.path.bytes().zip(path.bytes());
        same.take_while(|(one, other)| one == other).count()
    }
}

/// The types of all crates. Where a crate has several of one name, an `impl` belongs to the one whose file is nearest.
fn all(tree: &Tree) -> Vec<Type> {
    let (mut found, mut impls) = (Vec::<Type>::new(), Vec::new());
    for (path, code) in tree.codes() {
        let Some((name, file)) = path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        if file.ends_with("tests.rs") || file.contains("tests/") {
            continue;
        }
        let tokens = lexer::tokens(code);
        for at in 0..tokens.len() {
            let key = |of: &str| format!("{name}: {of}");
            match tokens[at].text {
                "struct" | "enum" => found.push(Type {
                    name: key(text(&tokens, at + 1)),
                    path: path.to_string(),
                    fields: match tokens[at].text {
                        "struct" => at_depth_one(&tokens, head_end(&tokens, at), ":"),
                        _ => 0,
                    },
                    methods: 0,
                }),
                "impl" => {
                    if let Some(of) = implemented(&tokens, at) {
                        let methods = at_depth_one(&tokens, head_end(&tokens, at), "fn");
                        impls.push((key(of), path, methods));
                    }
                }
                _ => {}
            }
        }
    }
    for (name, path, methods) in impls {
        let of_name = found.iter_mut().filter(|it| it.name == name);
        match of_name.max_by_key(|it| it.nearness(path)) {
            Some(nearest) => nearest.methods += methods,
            None => found.push(Type {
                name,
                path: path.to_string(),
                fields: 0,
                methods,
            }),
        }
    }
    found
}

fn text<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

/// The type that an inherent `impl` block is for.
fn implemented<'a>(tokens: &[Token<'a>], at: usize) -> Option<&'a str> {
    // Elsewhere `impl` stands in a type.
    let begins = at == 0 || matches!(text(tokens, at - 1), "}" | ";" | "]" | "{");
    let end = head_end(tokens, at);
    let is_of_trait = (at..end).any(|at| text(tokens, at) == "for" && text(tokens, at + 1) != "<");
    if !begins || is_of_trait {
        return None;
    }
    let mut at = at + 1;
    if text(tokens, at) == "<" {
        let mut depth = 0;
        while at < end {
            match text(tokens, at) {
                "<" => depth += 1,
                ">" if text(tokens, at - 1) != "-" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
    }
    while text(tokens, at + 1) == "::" {
        at += 2;
    }
    Some(text(tokens, at))
}

/// How often `word` stands right within the braces that open at `open`.
fn at_depth_one(tokens: &[Token<'_>], open: usize, word: &str) -> usize {
    if text(tokens, open) != "{" {
        return 0;
    }
    let end = closing(tokens, open);
    let (mut at, mut count) = (open + 1, 0);
    while at < end {
        match text(tokens, at) {
            "{" | "(" | "[" => at = closing(tokens, at),
            found if found == word => count += 1,
            _ => {}
        }
        at += 1;
    }
    count
}
