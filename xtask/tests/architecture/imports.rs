//! Finds which files of a crate import which others.
//!
//! An import is a path in a `use` tree or in code. It leads to the file of the module that the path names, even if that module only re-exports the
//! item. Ignored are `#[cfg(test)]` items, files that only tests use, calls of methods (they need no import), and paths in the text of attributes.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer::{self, Token, closing, head_end};
use crate::tree::Tree;

/// The files of a crate and their imports.
pub struct Imports {
    /// Paths below `src`, in order.
    pub files: Vec<String>,
    /// The imports: the indices in `files` of the importing and of the imported file, and the line of the first such import.
    pub edges: BTreeMap<(usize, usize), usize>,
}

/// A module's path from the root of its crate.
type Module<'a> = Vec<&'a str>;

/// The contents of one file.
#[derive(Default)]
struct Source<'a> {
    /// The modules in this file: its own, and those in braces.
    modules: BTreeSet<Module<'a>>,
    /// Modules with `#[cfg(test)]`.
    tests: Vec<Module<'a>>,
    path_uses: Vec<PathUse<'a>>,
}

/// A path in the source, as written.
struct PathUse<'a> {
    line: usize,
    /// The module that contains it.
    place: Module<'a>,
    path: Vec<&'a str>,
    /// The name that a `use` gives to the imported item; `None` for a path in code, whose last part is never a module.
    name: Option<&'a str>,
}

impl Imports {
    /// Reads the crate in `crates/{name}`.
    pub fn of(tree: &Tree, name: &str) -> Imports {
        let below = format!("crates/{name}/src/");
        let files = tree
            .codes()
            .filter_map(|(path, code)| Some((path.strip_prefix(&below)?, code)));
        let mut sources: Vec<(&str, Source<'_>)> =
            files.map(|(path, code)| (path, read(path, code))).collect();
        let tests: Vec<Module<'_>> = sources
            .iter()
            .flat_map(|(_, source)| source.tests.clone())
            .collect();
        sources.retain(|(path, _)| !tests.iter().any(|test| module_of(path).starts_with(test)));

        let mut owners = BTreeMap::new();
        for (file, (_, source)) in sources.iter().enumerate() {
            for module in &source.modules {
                owners.entry(module.clone()).or_insert(file);
            }
        }
        let mut edges = BTreeMap::new();
        for (file, (_, source)) in sources.iter().enumerate() {
            for (line, target) in source.targets(&owners) {
                if target != file {
                    edges.entry((file, target)).or_insert(line);
                }
            }
        }
        Imports {
            files: sources.iter().map(|(path, _)| path.to_string()).collect(),
            edges,
        }
    }

    /// The largest sets of two or more files in which each file imports each other one, directly or through others.
    pub fn circles(&self) -> Vec<Vec<usize>> {
        let reached: Vec<BTreeSet<usize>> = (0..self.files.len())
            .map(|file| self.reached(file))
            .collect();
        let circle = |file: usize| {
            reached[file]
                .iter()
                .copied()
                .filter(|other| reached[*other].contains(&file))
                .collect()
        };
        let circles: BTreeSet<Vec<usize>> = (0..self.files.len()).map(circle).collect();
        circles
            .into_iter()
            .filter(|circle| circle.len() > 1)
            .collect()
    }

    /// The folder of a file. `a/mod.rs` belongs to `a`, and so does `a.rs` if a folder `a` exists.
    pub fn folder(&self, file: usize) -> &str {
        let path = &self.files[file];
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        let has_folder = |other: &String| {
            other
                .strip_prefix(stem)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        if self.files.iter().any(has_folder) {
            return stem;
        }
        path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    fn reached(&self, from: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(file) = next.pop() {
            let targets = self
                .edges
                .range((file, 0)..(file + 1, 0))
                .map(|((_, target), _)| *target);
            next.extend(targets.filter(|target| reached.insert(*target)));
        }
        reached
    }
}

impl Source<'_> {
    /// The files that this one imports: the line of each import, and the index of the file.
    fn targets(&self, owners: &BTreeMap<Module<'_>, usize>) -> Vec<(usize, usize)> {
        let mut names = BTreeMap::new();
        for path_use in &self.path_uses {
            if let (Some(name), Some(module)) =
                (path_use.name, path_use.absolute(owners, &BTreeMap::new()))
                && owners.contains_key(&module)
            {
                names.insert(name, module);
            }
        }
        let mut found = Vec::new();
        for path_use in &self.path_uses {
            if let Some(path) = path_use.absolute(owners, &names) {
                let owner = (0..=path.len())
                    .rev()
                    .find_map(|length| owners.get(&path[..length]));
                found.extend(owner.map(|owner| (path_use.line, *owner)));
            }
        }
        found
    }
}

impl<'a> PathUse<'a> {
    /// The path from the root of the crate; `None` if it leads to another crate.
    fn absolute(
        &self,
        owners: &BTreeMap<Module<'_>, usize>,
        names: &BTreeMap<&str, Module<'a>>,
    ) -> Option<Module<'a>> {
        let mut path = &self.path[..self.path.len() - usize::from(self.name.is_none())];
        let mut whole = self.place.clone();
        let first = *path.first()?;
        let child = [&whole[..], &[first]].concat();
        if first == "crate" {
            whole.clear();
            path = &path[1..];
        } else if let Some(module) = names.get(first) {
            whole = module.clone();
            path = &path[1..];
        } else if first != "self" && first != "super" && !owners.contains_key(&child) {
            return None;
        }
        for part in path {
            match *part {
                "self" => {}
                "super" => _ = whole.pop(),
                part => whole.push(part),
            }
        }
        Some(whole)
    }
}

/// The module of a file below `src`.
fn module_of(path: &str) -> Module<'_> {
    let mut module: Module<'_> = path
        .strip_suffix(".rs")
        .unwrap_or(path)
        .split('/')
        .collect();
    if matches!(module[..], ["lib" | "main"] | [.., "mod"]) {
        module.pop();
    }
    module
}

fn read<'a>(path: &'a str, code: &'a str) -> Source<'a> {
    let tokens = lexer::tokens(code);
    let text = |at: usize| tokens.get(at).map_or("", |token: &Token<'a>| token.text);
    let matches = |at: usize, words: &[&str]| (at..).zip(words).all(|(at, word)| text(at) == *word);
    let mut source = Source::default();
    let mut place = module_of(path);
    source.modules.insert(place.clone());
    // The ends of the modules in braces that contain this token, the innermost last.
    let mut module_ends = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if module_ends.last() == Some(&at) {
            module_ends.pop();
            place.pop();
        }
        if matches(at, &["#", "[", "cfg", "(", "test", ")", "]"]) {
            let item = skip_attributes(&tokens, at);
            let end = head_end(&tokens, item);
            let module = (item..end).find(|at| text(*at) == "mod");
            source
                .tests
                .extend(module.map(|at| [&place[..], &[text(at + 1)]].concat()));
            at = closing(&tokens, end);
        } else if text(at) == "mod" && text(at + 2) == "{" {
            place.push(text(at + 1));
            source.modules.insert(place.clone());
            module_ends.push(closing(&tokens, at + 2));
            at += 2;
        } else if text(at) == "use" && text(at + 1) != "<" {
            let end = at
                + tokens[at..]
                    .iter()
                    .position(|token| token.text == ";")
                    .unwrap_or(1);
            let mut paths = Vec::new();
            use_paths(&tokens[at + 1..end], &mut Vec::new(), &mut paths);
            let line = tokens[at].line;
            source
                .path_uses
                .extend(paths.into_iter().map(|(path, name)| PathUse {
                    line,
                    place: place.clone(),
                    path,
                    name: Some(name),
                }));
            at = end;
        } else if matches(at, &["pub", "(", "in"]) {
            at = closing(&tokens, at + 1);
        } else if text(at + 1) == "::" && is_word(text(at)) && (at == 0 || text(at - 1) != "::") {
            let mut path = vec![text(at)];
            let line = tokens[at].line;
            while text(at + 1) == "::" && is_word(text(at + 2)) {
                path.push(text(at + 2));
                at += 2;
            }
            source.path_uses.push(PathUse {
                line,
                place: place.clone(),
                path,
                name: None,
            });
        }
        at += 1;
    }
    source
}

/// Collects each path of a `use` tree with the name that it gives to the item. For `*` and `self` the path is that of the module before them.
fn use_paths<'a>(
    tree: &[Token<'a>],
    before: &mut Vec<&'a str>,
    paths: &mut Vec<(Vec<&'a str>, &'a str)>,
) {
    let length = before.len();
    let mut name = None;
    let mut at = 0;
    while at < tree.len() {
        match tree[at].text {
            "{" => {
                let end = closing(tree, at);
                for part in parts(&tree[at + 1..end]) {
                    use_paths(part, before, paths);
                }
                before.truncate(length);
                return;
            }
            "as" => {
                name = tree.get(at + 1).map(|token| token.text);
                at += 1;
            }
            "*" => name = Some("*"),
            "::" => {}
            "self" if !before.is_empty() => {}
            word => before.push(word),
        }
        at += 1;
    }
    if let Some(last) = before.last() {
        paths.push((before.clone(), name.unwrap_or(last)));
    }
    before.truncate(length);
}

/// The parts between the commas that are not in braces.
fn parts<'a, 'b>(tokens: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0 && token.text == ","
    });
    // After a trailing comma the last part is empty.
    parts.filter(|part| !part.is_empty()).collect()
}

fn skip_attributes(tokens: &[Token<'_>], mut at: usize) -> usize {
    while tokens.get(at).is_some_and(|token| token.text == "#") {
        at = closing(tokens, at + 1) + 1;
    }
    at
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
