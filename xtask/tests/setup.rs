//! Checks what a newcomer meets first: the two commands of the README do what it says, the error for a missing compiler names its package, and no
//! page, manifest or package has the address of somebody else.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The commands that the README gives for a new clone.
const COMMANDS: [&str; 2] = ["cargo run --release -- serve", "cargo xtask test"];

/// The command that installs a C compiler with its headers and the linker.
const COMPILER: &str = "sudo apt-get install build-essential";

/// Sites on which anybody may register a name. A repository, package or image called `crore` there is not ours.
const FORGES: &[&str] = &[
    "bitbucket.org",
    "codeberg.org",
    "crates.io",
    "docker.io",
    "docs.rs",
    "ghcr.io",
    "github.com",
    "gitlab.com",
    "npmjs.com",
    "pypi.org",
    "quay.io",
    "sourcehut.org",
    "sr.ht",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn readme_has_the_two_commands_and_ci_runs_the_second() {
    let readme = read("README.md");
    let (_, start) = readme.split_once("\n## Start\n").expect("a section");
    let block = start.split("```").nth(1).expect("a block of commands");
    let commands: Vec<&str> = block
        .lines()
        .filter_map(|it| it.strip_prefix("$ "))
        .collect();
    assert_eq!(commands, COMMANDS);
    let ci = read(".ci/run");
    assert!(ci.lines().any(|line| line == COMMANDS[1]), "{ci}");
}

#[test]
fn cargo_run_at_the_root_starts_the_server() {
    let table = |path: &str| -> toml::Table { read(path).parse().expect("a manifest") };
    let members = &table("Cargo.toml")["workspace"]["default-members"];
    assert_eq!(members.to_string(), "[\"crates/server\"]");
    let server = table("crates/server/Cargo.toml");
    let programs = server["bin"].as_array().expect("programs");
    assert_eq!(programs.len(), 1, "cargo run would ask which");
    assert_eq!(programs[0]["name"].as_str(), Some("crore"));
}

#[test]
fn missing_compiler_is_told_with_its_package() {
    let config: toml::Table = read(".cargo/config.toml").parse().expect("TOML");
    let wrapper = config["build"]["rustc-wrapper"].as_str().expect("a path");
    let rustc = || {
        let mut command = Command::new(root().join(wrapper));
        command
            .args(["/bin/echo", "-C", "two words"])
            .env_remove("CC");
        command
    };
    let nowhere = rustc().env("PATH", "/nowhere").output().expect("it starts");
    let said = String::from_utf8(nowhere.stderr).expect("text");
    assert!(!nowhere.status.success() && nowhere.stdout.is_empty());
    assert!(said.contains(COMPILER), "{said}");
    assert!(read("README.md").contains(COMPILER));
    // If a compiler exists, the wrapper passes its arguments on unchanged.
    let built = rustc().output().expect("it starts");
    assert_eq!(built.stdout, b"-C two words\n");
}

/// The words of a text that are an address of something called `crore` on a public site. The project is published nowhere, so every such word is
/// wrong.
fn foreign(text: &str) -> Vec<&str> {
    let ends = |it: char| it.is_whitespace() || "\"'`<>()[]{},".contains(it);
    let leads = |word: &&str| {
        if !word.to_lowercase().contains("crore") {
            return false;
        }
        let (scheme, rest) = word.split_once("://").unwrap_or(("", word));
        let host = rest.split(['/', ':', '?']).next().unwrap_or_default();
        let host = host.rsplit('@').next().unwrap_or_default();
        let is_forge = FORGES
            .iter()
            .any(|forge| host == *forge || host.ends_with(&format!(".{forge}")));
        // A site called `crore`, unless it is an example.
        let is_named = host.starts_with("crore.") || host.contains(".crore.");
        let is_site = !scheme.is_empty() && is_named && !host.contains("example");
        is_forge || is_site
    };
    text.split(ends).filter(leads).collect()
}

#[test]
fn address_that_is_not_ours_is_found() {
    for bad in [
        "cargo install --git https://github.com/crore/crore crore",
        "image: ghcr.io/crore/crore:latest",
        "repository = \"https://gitlab.com/someone/crore\"",
        "[docs](https://docs.rs/crore/latest)",
        "git clone git@github.com:crore/crore.git",
        "see https://crore.dev/start",
        "see <https://www.crore.io>",
    ] {
        assert_eq!(foreign(bad).len(), 1, "{bad}");
    }
    for good in [
        "http://crore:8800",
        "registry.example.com/crore:latest",
        "https://crore.example.com/",
        "crore.toml:12:3",
        "https://github.com/nats-io/nats-server",
        "maintainers@crore.invalid",
        "/etc/crore/crore.toml",
    ] {
        assert!(foreign(good).is_empty(), "{good}");
    }
}

/// The files of the project below a directory, by their paths.
fn files(directory: &Path, path: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("text");
        let is_directory = entry.file_type().expect("a kind").is_dir();
        let path = format!("{path}{name}");
        if !is_directory {
            found.push(path);
        } else if !["target", "node_modules", ".git"].contains(&&name[..]) {
            files(&entry.path(), &format!("{path}/"), found);
        }
    }
}

#[test]
fn nothing_leads_to_an_address_that_is_not_ours() {
    let mut names = Vec::new();
    files(&root(), "", &mut names);
    assert!(names.contains(&"README.md".to_string()), "{names:?}");
    let mut found = Vec::new();
    for name in names.iter().filter(|name| *name != "xtask/tests/setup.rs") {
        // Skips files that are not text.
        let Ok(text) = std::fs::read_to_string(root().join(name)) else {
            continue;
        };
        found.extend(foreign(&text).iter().map(|word| format!("{name}: {word}")));
        // Fields of manifests, packages, units and images that give the address of a project. Ours must have none.
        let fields = text.lines().filter(|line| {
            let is = |begin: &str| line.trim_start().starts_with(begin);
            let is_manifest = name.ends_with("Cargo.toml")
                && (is("repository") || is("homepage") || is("documentation"));
            let is_package = name.starts_with("packaging/")
                && (is("Homepage:") || is("Vcs-") || is("Documentation=http") || is("Bugs:"));
            is_manifest || is_package || line.contains("org.opencontainers.image.source=")
        });
        found.extend(fields.map(|line| format!("{name}: {line}")));
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}
