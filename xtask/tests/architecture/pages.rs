//! Rules for the pages of the project. Every link leads to a file and a heading that exist. A page for users begins with what its reader can do
//! after reading it, and ends with links to the next pages.

use crate::tree::{Tree, root};

pub fn links(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.all().filter(|(path, _)| path.ends_with(".md")) {
        for target in targets(text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = match file {
                "" => path.to_string(),
                file => resolve(path, file),
            };
            let leads = match tree.get(&to) {
                Some(page) => heading.is_empty() || headings(page).any(|it| it == heading),
                None => root().join(&to).exists(),
            };
            if !leads {
                found.push(format!("{path} links to {target}, which is not there"));
            }
        }
    }
    found
}

pub fn first_and_last_sections(tree: &Tree) -> Vec<String> {
    let for_users = |path: &str| {
        let page = path.strip_prefix("docs/").unwrap_or_default();
        page.ends_with(".md") && !page.contains('/') && page != "README.md"
    };
    let mut found = Vec::new();
    for (path, text) in tree.all().filter(|(path, _)| for_users(path)) {
        let mut paragraphs = text.split("\n\n");
        if !paragraphs
            .nth(1)
            .is_some_and(|it| it.starts_with("After this page you"))
        {
            found.push(format!(
                "{path} does not begin with what its reader can do after it"
            ));
        }
        if text.lines().rfind(|line| line.starts_with("## ")) != Some("## Next") {
            found.push(format!("{path} does not end with where to go next"));
        }
    }
    found
}

/// The targets of the links of a page, except links to other sites.
fn targets(text: &str) -> Vec<&str> {
    let links = prose(text).flat_map(|line| line.split("](").skip(1));
    links
        .filter_map(|link| link.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://"))
        .collect()
}

/// The headings in the form that links use: lowercase letters, digits, `-` and `_`, with `-` for each space.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let name = |it: char| match it {
        ' ' => Some('-'),
        it if it.is_alphanumeric() || it == '-' || it == '_' => Some(it),
        _ => None,
    };
    let titles = prose(text).filter_map(|line| line.strip_prefix('#'));
    titles.map(move |title| {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        title.chars().filter_map(name).collect()
    })
}

/// The lines outside blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence
    })
}

/// The path from the root of a link to `file` in the page `path`.
fn resolve(path: &str, file: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}
