//! The rules of `deny.toml` on licences, sources and banned crates, checked against the packages that Cargo resolves for
//! Linux.
//!
//! Unlike `cargo deny`, this needs neither the advisory database nor a tool that takes minutes to build. So it is part of every test run. Both read
//! the same policy, `deny.toml`. Deliberately not here: advisories, licence texts, duplicate versions (`cargo xtask deny`).

use serde_json::Value;
use std::process::Command;

const PLATFORM: &str = "x86_64-unknown-linux-gnu";

struct Policy {
    licences: Vec<String>,
    registries: Vec<String>,
    banned: Vec<String>,
}

impl Policy {
    fn read() -> Policy {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deny.toml");
        let text = std::fs::read_to_string(path).expect("deny.toml");
        let file: toml::Table = text.parse().expect("deny.toml is TOML");
        let names = |value: &toml::Value| -> Vec<String> {
            let list = value.as_array().expect("a list");
            list.iter()
                .map(|entry| entry.get("crate").unwrap_or(entry))
                .map(|entry| entry.as_str().expect("a name").to_string())
                .collect()
        };
        Policy {
            licences: names(&file["licenses"]["allow"]),
            registries: names(&file["sources"]["allow-registry"]),
            banned: names(&file["bans"]["deny"]),
        }
    }

    /// The violations of a package of `cargo metadata`.
    fn violations(&self, package: &Value) -> Vec<String> {
        let name = package["name"].as_str().expect("a package has a name");
        let mut found = Vec::new();
        let licence = package["license"].as_str().unwrap_or_default();
        if !self.allows(licence) {
            found.push(format!("{name} is under {licence:?}"));
        }
        // Packages of the workspace have no source.
        if let Some(source) = package["source"].as_str()
            && !self
                .registries
                .iter()
                .any(|registry| source.strip_prefix("registry+") == Some(registry))
        {
            found.push(format!("{name} comes from {source}"));
        }
        if self.banned.iter().any(|banned| banned == name) {
            found.push(format!("{name} is banned"));
        }
        found
    }

    /// Whether an SPDX expression can be met with the allowed licences; `/` is an old form of `OR`.
    fn allows(&self, expression: &str) -> bool {
        let spaced = expression
            .replace('/', " OR ")
            .replace('(', " ( ")
            .replace(')', " ) ")
            .replace(" WITH ", "\u{1}");
        let mut tokens = spaced.split_whitespace();
        self.any_of(&mut tokens, None).unwrap_or(false)
    }

    /// Evaluates the tokens up to `end`: a closing parenthesis, or `None` for the end of the text. `AND` binds closer than `OR`. Returns `None` if they
    /// are malformed.
    fn any_of<'t>(
        &self,
        tokens: &mut impl Iterator<Item = &'t str>,
        end: Option<&str>,
    ) -> Option<bool> {
        let (mut any, mut all) = (false, true);
        loop {
            all &= match tokens.next()? {
                "(" => self.any_of(tokens, Some(")"))?,
                licence => self
                    .licences
                    .iter()
                    .any(|allowed| *allowed == licence.replace('\u{1}', " WITH ")),
            };
            match tokens.next() {
                Some("AND") => {}
                Some("OR") => {
                    any |= all;
                    all = true;
                }
                other => return (other == end).then_some(any || all),
            }
        }
    }
}

#[test]
fn dependencies_are_allowed() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--all-features",
        ])
        .args(["--filter-platform", PLATFORM])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {said}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    assert!(packages.len() > 20, "the dependencies were not found");
    let policy = Policy::read();
    let found: Vec<String> = packages
        .iter()
        .flat_map(|package| policy.violations(package))
        .collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn a_violation_is_found() {
    let policy = Policy::read();
    for allowed in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0-only OR MIT",
        "(MIT OR GPL-3.0-only) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
        "MIT AND Zlib OR GPL-3.0-only",
    ] {
        assert!(policy.allows(allowed), "{allowed}");
    }
    for refused in [
        "",
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "GPL-3.0-only OR MIT AND MPL-2.0",
        "(MIT OR Zlib) AND (GPL-3.0-only)",
        "MIT WITH LLVM-exception",
        "MIT Zlib",
        "MIT)",
        "(MIT",
    ] {
        assert!(!policy.allows(refused), "{refused}");
    }
    let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
    for (name, licence, source, faults) in [
        ("fine", "MIT", crates_io, 0),
        ("fine", "MIT", "git+https://example.com/x", 1),
        ("openssl-sys", "MIT", crates_io, 1),
        (
            "async-std",
            "GPL-3.0-only",
            "registry+https://example.com",
            3,
        ),
    ] {
        let package = serde_json::json!({ "name": name, "license": licence, "source": source });
        let found = policy.violations(&package);
        assert_eq!(found.len(), faults, "{found:?}");
    }
}
