//! Tests the contents of packages: man pages, completions, the Debian package, the archive, the systemd unit, and the alerts.
//!
//! The tests use tools that validate these files, if the host has them. Under `cargo xtask test` (which installs the tools and sets
//! `CRORE_TOOLS=required`) a missing tool is a failure; elsewhere the test prints what it leaves out. Shells other than bash are never
//! installed. Where one is missing, only the quoting in its completions is checked.

#[path = "support/drop_in.rs"]
mod drop_in;

#[path = "support/tools.rs"]
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tools::{has, is_in_path};

/// A directory of the test, which is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("crore-test-packaging-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    /// The path of a file in the directory, as text.
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_string()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().expect("text"))
            .collect();
        names.sort_unstable();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_crore")
}

/// The output of a program, which must succeed.
fn run(program: &str, args: &[&str]) -> String {
    let output = output(program, args);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {complaints}");
    String::from_utf8(output.stdout).expect("text")
}

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// The commands that `crore --help` lists.
fn commands() -> Vec<String> {
    let help = run(program(), &["--help"]);
    let (_, list) = help.split_once("Commands:\n").expect("a list of commands");
    let names: Vec<String> = list
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_string)
        .collect();
    assert!(names.len() >= 7, "{names:?}");
    names
}

#[test]
fn there_is_a_man_page_for_the_program_and_each_command() {
    let scratch = Scratch::new("man");
    run(program(), &["man", scratch.0.to_str().expect("text")]);
    let names = scratch.names();
    let main = std::fs::read_to_string(scratch.path("crore.1")).expect("crore(1)");
    assert!(main.contains(".TH crore 1"), "{main}");
    for protocol in ["WebSocket", "long", "MQTT"] {
        assert!(main.contains(protocol), "{protocol} is not in crore(1)");
    }
    for command in commands() {
        assert!(names.contains(&format!("crore-{command}.1")), "{names:?}");
        let reference = format!("crore\\-{command}(1)");
        assert!(
            main.contains(&reference),
            "crore(1) does not name {reference}"
        );
    }
    for name in &names {
        let page = std::fs::read_to_string(scratch.path(name)).expect("a page");
        assert!(!page.contains(".SH EXTRA"), "{name}");
    }
    // Each example stays on its own line.
    let page = std::fs::read_to_string(scratch.path("crore-pub.1")).expect("crore-pub(1)");
    let (_, examples) = page.split_once(".SH EXAMPLES\n.nf\n").expect("examples");
    assert!(
        examples.contains("\n  date | crore pub clock"),
        "{examples}"
    );
    if !has("groff") {
        return;
    }
    for name in names {
        let page = scratch.path(&name);
        let output = output("groff", &["-man", "-ww", "-z", "-Tutf8", &page]);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && complaints.is_empty(),
            "{name}: {complaints}"
        );
    }
}

/// The line in which a quote begins that is never closed. A backslash escapes the next character outside of quotes and within double
/// quotes (in fish within all quotes). Comments end with their line.
fn open_quote<'t>(shell: &str, text: &'t str) -> Option<&'t str> {
    let (mut open, mut began) = (None, 0);
    let (mut signs, mut before) = (text.char_indices(), '\n');
    while let Some((at, sign)) = signs.next() {
        match (open, sign) {
            (None | Some('"'), '\\') => drop(signs.next()),
            (Some(_), '\\') if shell == "fish" => drop(signs.next()),
            (None, '#') if before.is_whitespace() => {
                signs.by_ref().find(|(_, sign)| *sign == '\n');
            }
            (None, '\'' | '"') => (open, began) = (Some(sign), at),
            (Some(quote), sign) if sign == quote => open = None,
            _ => {}
        }
        before = sign;
    }
    open.and_then(|_| text[began..].lines().next())
}

#[test]
fn unclosed_quote_is_found() {
    for good in ["a 'b' \"c'd\"", "# don't\n'a'", "'\\'' \\' \"\\\"\""] {
        assert_eq!(open_quote("zsh", good), None, "{good}");
    }
    for bad in ["'a", "a \"b\\\"", "'a''b"] {
        assert!(open_quote("zsh", bad).is_some(), "{bad}");
        assert!(open_quote("fish", bad).is_some(), "{bad}");
    }
    assert_eq!(open_quote("fish", "'it\\'s'"), None);
}

#[test]
fn completions_name_every_command_and_their_shells_can_read_them() {
    let scratch = Scratch::new("completions");
    for shell in ["bash", "zsh", "fish"] {
        let text = run(program(), &["completions", shell]);
        for command in commands() {
            let words = |line: &str| {
                line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
                    .any(|word| word == command)
            };
            assert!(text.lines().any(words), "{shell}: no {command}");
        }
        assert_eq!(open_quote(shell, &text), None, "{shell}");
        let file = scratch.path(shell);
        std::fs::write(&file, text).expect("a file");
        if is_in_path(shell) {
            run(shell, &["-n", &file]);
        }
    }
    if has("bash") {
        let file = scratch.path("bash");
        let asks = format!(
            "source {file}; COMP_WORDS=(crore ser); COMP_CWORD=1; _crore crore ser crore; echo \"${{COMPREPLY[@]}}\""
        );
        assert_eq!(run("bash", &["--norc", "-c", &asks]).trim(), "serve");
    }
}

/// Files of the package.
const CONTENT: [&str; 13] = [
    "./usr/bin/crore",
    "./usr/lib/systemd/system/crore.service",
    "./etc/crore/crore.toml",
    "./usr/share/man/man1/crore.1.gz",
    "./usr/share/man/man1/crore-serve.1.gz",
    "./usr/share/bash-completion/completions/crore",
    "./usr/share/zsh/vendor-completions/_crore",
    "./usr/share/fish/vendor_completions.d/crore.fish",
    "./usr/share/doc/crore/SETTINGS.md",
    "./usr/share/doc/crore/crore.example.toml",
    "./usr/share/doc/crore/crore.schema.json",
    "./usr/share/doc/crore/LICENSE-MIT",
    "./usr/share/doc/crore/LICENSE-APACHE",
];

#[test]
fn the_debian_package_has_the_program_its_unit_settings_and_pages() {
    if !has("dpkg-deb") || !has("objdump") {
        return;
    }
    let scratch = Scratch::new("debian");
    let script = project("packaging/debian/build.sh");
    let built = Command::new("sh")
        .arg(script)
        // The build script makes this directory.
        .args([Path::new(program()), &scratch.0.join("out")])
        // No compression, since it takes most of the time.
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .output()
        .expect("sh starts");
    let complaints = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{complaints}");
    let out = Scratch(scratch.0.join("out"));
    let [package] = &out.names()[..] else {
        panic!("one package is due: {:?}", out.names());
    };
    let package = out.path(package);

    let field = |name: &str| run("dpkg-deb", &["--field", &package, name]);
    let version = run(program(), &["--version"]);
    assert_eq!(format!("crore {}", field("Version")), version);
    assert!(
        field("Depends").starts_with("libc6 (>= 2."),
        "{}",
        field("Depends")
    );
    let listed = run("dpkg-deb", &["--contents", &package]);
    // The fields of a line: mode, owner, size, date, time, name.
    let files: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for wanted in CONTENT {
        let file = files.iter().find(|file| file[5] == wanted);
        let file = file.unwrap_or_else(|| panic!("no {wanted} in\n{listed}"));
        let mode = match wanted {
            "./usr/bin/crore" => "-rwxr-xr-x",
            // The file will hold secrets. `postinst` makes it readable for the server's group.
            "./etc/crore/crore.toml" => "-rw-r-----",
            _ => "-rw-r--r--",
        };
        assert_eq!(file[..2], [mode, "root/root"], "{wanted}");
    }
    // The scripts of the installation, the removal, and the purge, which also deletes the state.
    for (script, part) in [
        ("postinst", "adduser"),
        ("postinst", "chown root:crore \"$settings\""),
        ("postinst", "chmod 640 \"$settings\""),
        ("prerm", "disable"),
        ("postrm", "purge"),
    ] {
        let text = run("dpkg-deb", &["--info", &package, script]);
        assert!(
            text.starts_with("#!/bin/sh\n") && text.contains(part),
            "{text}"
        );
    }
    let root = scratch.path("root");
    run("dpkg-deb", &["--extract", &package, &root]);
    // The unit names a program and a settings file that exist, and the program accepts the settings.
    let unit = std::fs::read_to_string(format!("{root}/usr/lib/systemd/system/crore.service"));
    let unit = unit.expect("the unit");
    assert!(unit.contains("ExecStart=/usr/bin/crore serve --config /etc/crore/crore.toml\n"));
    let settings = format!("{root}/etc/crore/crore.toml");
    run(program(), &["serve", "--check", "--config", &settings]);
    assert_eq!(
        missing_files(&format!("{root}/usr/share/doc/crore")),
        [""; 0]
    );
    // The recipes copy files from the package to these places.
    let recipes = std::fs::read_to_string(project("docs/RECIPES.md")).expect("the page");
    let named = recipes.split(|c: char| c.is_whitespace() || c == '`');
    let of_package: Vec<&str> = named
        .filter(|word| {
            word.starts_with("/usr/share/doc/crore/") || *word == "/etc/crore/crore.toml"
        })
        .collect();
    assert!(of_package.len() >= 4, "{of_package:?}");
    for path in of_package {
        assert!(Path::new(&format!("{root}{path}")).is_file(), "{path}");
    }
}

#[test]
fn settings_of_the_production_server_are_taken() {
    let scratch = Scratch::new("production");
    let text = std::fs::read_to_string(project("examples/production/crore.toml")).expect("it");
    assert!(text.contains("file = \"secret.txt\""));
    let here = text.replace("/var/lib/crore/state", &scratch.path("state"));
    assert_ne!(here, text);
    let here = here.replace("127.0.0.1:8800", "127.0.0.1:0");
    let file = scratch.path("crore.toml");
    std::fs::write(&file, here).expect("a file");
    std::fs::write(scratch.path("secret.txt"), "0123456789abcdef".repeat(4)).expect("a file");
    run(program(), &["serve", "--check", "--config", &file]);
}

/// Missing files that pages in this directory, or its examples, link to. Links to pages about the source are ignored.
fn missing_files(directory: &str) -> Vec<String> {
    let about_the_source = ["internals/", "benchmarks/", "CONTRIBUTING.md", "packaging/"];
    let of_the_root = ["../README.md", "../CHANGELOG.md"];
    let mut missing = Vec::new();
    let pages = run("find", &[directory, "-name", "*.md"]);
    assert!(pages.contains("/RECIPES.md"), "{pages}");
    for page in pages.lines() {
        let text = std::fs::read_to_string(page).expect("a page");
        let links = text.split("](").skip(1);
        for link in links.filter_map(|rest| rest.split([')', '#']).next()) {
            let is_left_out = link.contains("://")
                || link.starts_with("mailto:")
                || of_the_root.contains(&link)
                || about_the_source.iter().any(|part| link.contains(part));
            let file = Path::new(page).parent().expect("it").join(link);
            if !is_left_out && !file.exists() {
                missing.push(format!("{page}: {link}"));
            }
        }
    }
    missing
}

/// Files of the archive.
const ARCHIVED: [&str; 13] = [
    "crore",
    "systemd/crore.service",
    "systemd/crore.toml",
    "man/man1/crore-serve.1",
    "completions/crore.bash",
    "completions/_crore",
    "completions/crore.fish",
    "docs/crore.example.toml",
    "docs/proxies/nginx.conf",
    "examples/quickstart/index.html",
    "README.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

#[test]
fn archive_has_the_program_its_pages_and_a_right_checksum() {
    let scratch = Scratch::new("archive");
    let script = project("packaging/archive.sh");
    let script = script.to_str().expect("text");
    let (first, again) = (scratch.path("first"), scratch.path("again"));
    for directory in [&first, &again] {
        run("sh", &[script, program(), directory]);
    }
    let version = run(program(), &["--version"]);
    let name = format!("{}-linux", version.trim().replace(' ', "-"));
    let name = name.replace("-linux", &format!("-{}-linux", std::env::consts::ARCH));
    let sum =
        |directory: &str| std::fs::read_to_string(format!("{directory}/{name}.tar.gz.sha256"));
    let (of_first, of_again) = (sum(&first), sum(&again));
    assert_eq!(of_first.expect("a file"), of_again.expect("a file"));
    let check = format!("cd '{first}' && sha256sum -c *.sha256 && tar -xzf *.tar.gz");
    run("sh", &["-euc", &check]);
    let file = |file_name: &str| format!("{first}/{name}/{file_name}");
    for wanted in ARCHIVED {
        assert!(Path::new(&file(wanted)).is_file(), "{wanted}");
    }
    assert_eq!(run(&file("crore"), &["--version"]), version);
    assert_eq!(missing_files(&file("docs")), [""; 0]);
}

#[test]
fn alerts_are_right_and_each_is_in_the_table_of_the_page() {
    let file = project("examples/prometheus/crore.rules.yml");
    let text = std::fs::read_to_string(&file).expect("the alerts");
    let alerts: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
    let groups = alerts["groups"].as_array().expect("groups");
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"));
    let mut names = Vec::new();
    for rule in rules {
        let word = |at: &str| rule.pointer(at).and_then(|it| it.as_str());
        let name = word("/alert").expect("a name");
        assert!(
            matches!(word("/labels/severity"), Some("page" | "ticket")),
            "{name}"
        );
        assert!(word("/expr").is_some_and(|it| !it.is_empty()), "{name}");
        assert!(word("/annotations/summary").is_some(), "{name}");
        names.push(name.to_string());
    }
    let page = std::fs::read_to_string(project("docs/OPERATIONS.md")).expect("the page");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `Crore"));
    let rows: Vec<String> = rows
        .map(|row| format!("Crore{}", row.split('`').next().expect("a name")))
        .collect();
    assert_eq!(names, rows);
    if has("promtool") {
        run(
            "promtool",
            &["check", "rules", file.to_str().expect("text")],
        );
    }
}

#[test]
fn systemd_has_nothing_to_say_against_the_unit() {
    if !has("systemd-analyze") {
        return;
    }
    let scratch = Scratch::new("unit");
    // The unit of a server with connections over AF_XDP.
    let additions = scratch.path("crore.service.d");
    std::fs::create_dir(&additions).expect("a directory");
    std::fs::write(format!("{additions}/xdp.conf"), drop_in::text()).expect("a file");
    let unit = std::fs::read_to_string(project("packaging/systemd/crore.service")).expect("it");
    // Verify the unit with the tested program, which is not where a package puts it.
    let here = unit.replace("/usr/bin/crore", program());
    assert_ne!(here, unit);
    let file = scratch.path("crore.service");
    std::fs::write(&file, here).expect("a file");
    let output = output("systemd-analyze", &["verify", "--man=no", &file]);
    let error_text = String::from_utf8_lossy(&output.stderr);
    // Other units of the host may have faults, so only lines about Crore's unit count.
    let of_ours: Vec<&str> = error_text
        .lines()
        .filter(|line| line.contains("crore.service") || line.contains("xdp.conf"))
        .collect();
    assert!(of_ours.is_empty(), "{of_ours:#?}");
    assert!(output.status.success(), "{error_text}");
}

#[test]
fn the_unit_allows_no_ring_since_the_server_uses_none() {
    let unit = std::fs::read_to_string(project("packaging/systemd/crore.service")).expect("it");
    let allowed = unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let calls: Vec<&str> = allowed.flat_map(str::split_whitespace).collect();
    assert!(calls.contains(&"@system-service"), "{calls:?}");
    assert!(
        !calls.iter().any(|call| call.starts_with("io_uring")),
        "{calls:?}"
    );
}
