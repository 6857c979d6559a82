//! Tests the examples on the pages that show the output of `crore` and `curl`. Each is run, and must print lines of the same shape in the
//! same order. Numbers and ids may differ from run to run, and a page may leave out lines.
//!
//! A block is run if each of its commands is `crore` or `curl`, or a `cat` that shows a file. A comment on the page says what must exist
//! before: `<!-- before: crore pub chat/room1 Hello -->`. A block below `<!-- not run: REASON -->` is left out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::program::await_output;
use crate::support::{Server, tools};

/// The pages whose examples use a server with default settings.
const PAGES: [&str; 4] = [
    "README.md",
    "docs/PROTOCOLS.md",
    "docs/PROTOCOL-DETAILS.md",
    "docs/OPERATIONS.md",
];
/// An example that does not end by itself is ended after this many seconds. Its output until then counts.
const STREAM_S: &str = "2";

/// A command, and the lines that a page shows below the command.
#[derive(Default)]
struct Example {
    command: String,
    printed_lines: Vec<String>,
}

/// The blocks of a page to run, each with its place on the page.
fn blocks(text: &str) -> Vec<(usize, Vec<Example>)> {
    let mut actual = Vec::new();
    let mut previous: Vec<Example> = Vec::new();
    let mut lines = text.lines().zip(1..);
    let mut is_left_out = false;
    while let Some((line, number)) = lines.next() {
        let comment = |name: &str| {
            line.strip_prefix("<!-- ")?
                .strip_suffix(" -->")?
                .strip_prefix(name)
        };
        if let Some(command) = comment("before: ") {
            previous.push(Example {
                command: command.to_string(),
                printed_lines: Vec::new(),
            });
        }
        is_left_out |= comment("not run: ").is_some();
        if !line.starts_with("```") {
            continue;
        }
        let block: Vec<&str> = lines
            .by_ref()
            .map(|(line, _)| line)
            .take_while(|line| !line.starts_with("```"))
            .collect();
        let mut examples = std::mem::take(&mut previous);
        for line in block {
            match (line.strip_prefix("$ "), examples.last_mut()) {
                (Some(command), _) => examples.push(Example {
                    command: command.to_string(),
                    printed_lines: Vec::new(),
                }),
                (None, Some(example)) if example.command.ends_with('\\') => {
                    example.command.truncate(example.command.len() - 1);
                    example.command.push_str(line.trim_start());
                }
                (None, Some(example)) => example.printed_lines.push(line.to_string()),
                (None, None) => {}
            }
        }
        let is_run = |example: &Example| {
            let mut words = example.command.split(' ');
            matches!(
                (words.next(), words.next()),
                (Some("curl" | "cat"), _)
                    | (Some("crore"), Some("pub" | "sub" | "history" | "admin"))
            )
        };
        if !std::mem::take(&mut is_left_out) && !examples.is_empty() && examples.iter().all(is_run)
        {
            actual.push((number, examples));
        }
    }
    actual
}

/// Whether this character separates words. An id is one word.
fn is_between(c: char) -> bool {
    !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-')
}

/// The line without everything that may differ from run to run: words with a digit, times, and units of bytes. Several spaces count as
/// one.
fn without_values(line: &str) -> String {
    let mut out = String::new();
    for part in line.split_inclusive(is_between) {
        let word = part.trim_end_matches(is_between);
        let punctuation = &part[word.len()..];
        let dates = [
            "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May",
            "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let word = match word {
            "KiB" | "MiB" | "GiB" => "B",
            word if dates.contains(&word) || word.chars().any(|c| c.is_ascii_digit()) => "#",
            word => word,
        };
        out.push_str(word);
        out.push_str(punctuation);
    }
    let spaced: Vec<&str> = out.split_whitespace().collect();
    spaced.join(" ").replace("never", "# sec. ago")
}

/// The first shown line that the program has not printed in this order. The ids on the page and the printed ids are added to `ids`.
fn lacking<'a>(
    printed_lines: &'a [String],
    printed: &str,
    ids: &mut Vec<(String, String)>,
) -> Option<&'a str> {
    let mut printed = printed.lines();
    let mut is_lacking = |line: &&String| {
        let expected = without_values(line);
        let actual = match expected.is_empty() {
            true => return false,
            false => printed.find(|other| without_values(other) == expected),
        };
        let words = |line: &str| -> Vec<String> {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            words
                .filter(|word| word.contains('-'))
                .map(str::to_string)
                .collect()
        };
        ids.extend(
            actual
                .into_iter()
                .flat_map(|other| words(line).into_iter().zip(words(other))),
        );
        actual.is_none()
    };
    printed_lines
        .iter()
        .find(|line| is_lacking(line))
        .map(String::as_str)
}

/// The output of a command that runs in this directory, against this server.
fn printed(command: &str, directory: &Path, server: &Server) -> String {
    let data = server.address().to_string();
    let program = env!("CARGO_BIN_EXE_crore");
    let command = command
        .replace("127.0.0.1:8800", &data)
        .replace("127.0.0.1:8801", &server.admin().to_string());
    let command = match command.strip_prefix("crore ") {
        Some(rest) => format!("{program} {rest}"),
        None => command.replacen("curl ", "curl -sS ", 1),
    };
    let mut shell = Command::new("timeout");
    shell
        .args([STREAM_S, "sh", "-c", &command])
        .current_dir(directory)
        .env("CRORE_SERVER", format!("http://{data}"))
        .env("CRORE_ADMIN_URL", format!("http://{}", server.admin()))
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = await_output(shell.spawn().expect("it starts"));
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""))
        .concat()
}

#[test]
fn examples_print_what_their_pages_show() {
    if !tools::has("curl") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut compared, mut faults) = (0, Vec::new());
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).expect("a page");
        let server = Server::with_admin("");
        let directory: PathBuf =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("examples-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut ids: Vec<(String, String)> = Vec::new();
        for (line, examples) in blocks(&text) {
            for Example {
                command,
                printed_lines,
            } in examples
            {
                if let Some(file) = command.strip_prefix("cat ") {
                    std::fs::write(directory.join(file), printed_lines.join("\n") + "\n")
                        .expect("a file");
                    continue;
                }
                let command = ids.iter().rev().fold(command, |command, (of_page, id)| {
                    command.replace(of_page, id)
                });
                let printed = printed(&command, &directory, &server);
                compared += usize::from(!printed_lines.is_empty());
                if let Some(lacking) = lacking(&printed_lines, &printed, &mut ids) {
                    faults.push(format!("{page}, block at line {line}\n$ {command}\nlacks: {lacking}\nprinted:\n{printed}"));
                }
            }
        }
        let _ = std::fs::remove_dir_all(&directory);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(compared >= 15, "{compared} examples");
}

#[test]
fn shapes_have_no_numbers_and_tell_words_apart() {
    assert_eq!(
        without_values("chat/room1   10   1 KiB  #"),
        without_values("chat/room1 2 80 B #")
    );
    assert_eq!(
        without_values("Last-Modified: Sat, 21 Nov 2026 06:35:45 GMT"),
        without_values("Last-Modified: Thu, 26 Nov 2026 13:35:45 GMT")
    );
    assert_eq!(
        without_values("last message id: 1c9aab8ab-1"),
        without_values("last message id: 19582c7cf-7")
    );
    // Part of an id may have no digit. Still the id counts as one word.
    assert_eq!(
        without_values("id: 310-AfspMK0AAgAAAAIIAAAAAAACCgA"),
        without_values("id: 310-AfOo-VIAAgAAAAIIAAAAAAACCgA")
    );
    assert_ne!(
        without_values("active subscribers: 1"),
        without_values("active clients: 1")
    );
    let printed_lines = ["one", "", "three 3"].map(str::to_string);
    let mut ids = Vec::new();
    let printed = "zero\none\ntwo\nthree 4\n";
    assert_eq!(lacking(&printed_lines, printed, &mut ids), None);
    assert_eq!(
        lacking(&printed_lines, "three 3\none\n", &mut ids),
        Some("three 3")
    );
    let printed_lines = ["ETag: \"1c9-1\"".to_string()];
    assert_eq!(lacking(&printed_lines, "ETag: \"175-8\"", &mut ids), None);
    assert_eq!(ids, [("1c9-1".to_string(), "175-8".to_string())]);
}
