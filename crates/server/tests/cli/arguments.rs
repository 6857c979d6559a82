//! Tests arguments and variables, which may be any bytes: the tools accept them, or refuse them with a reason, and show no secret in them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Output, Stdio};

use crate::support::program::{await_output, output};
use crate::support::{Server, eventually};
use crate::{crore, text};

/// A URL at which nobody listens.
const NOWHERE: &str = "http://127.0.0.1:1";

/// Bytes that are not UTF-8.
const BYTES: &[u8] = b"\xff\xfe";

fn with_bytes(args: &[&[u8]]) -> Output {
    let mut command = crore(&[]);
    output(command.args(args.iter().map(|arg| OsStr::from_bytes(arg))))
}

#[test]
fn argument_that_is_not_utf8_is_refused_in_words_where_text_is_due() {
    for args in [
        &[&b"pub"[..], BYTES, b"x"][..],
        &[b"sub", BYTES],
        &[b"history", BYTES],
        &[BYTES],
        &[b"admin", b"topic", BYTES],
        &[b"pub", b"a", b"x", b"--event", BYTES],
        &[b"pub", b"a", b"x", b"--server", BYTES],
        &[b"serve", b"--listen", BYTES],
    ] {
        let refused = with_bytes(args);
        let error_text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {error_text}");
        assert!(error_text.starts_with("error: "), "{args:?}: {error_text}");
        assert!(
            error_text.contains("UTF-8") || error_text.contains("unrecognized"),
            "{args:?}: {error_text}"
        );
    }
    let named = with_bytes(&[b"pub", b"caf\xe9", b"x"]);
    let error_text = text(&named.stderr);
    assert!(
        error_text.contains(r#""caf\xE9" is not UTF-8"#),
        "{error_text}"
    );
}

#[test]
fn bytes_of_an_argument_are_published_as_they_are() {
    let server = Server::with_admin("");
    let url = format!("http://{}", server.address());
    let admin = format!("http://{}", server.admin());
    let published = [
        with_bytes(&[b"pub", b"a", BYTES, b"--server", url.as_bytes()]),
        with_bytes(&[
            b"admin",
            b"publish",
            b"a",
            BYTES,
            b"--url",
            admin.as_bytes(),
        ]),
    ];
    for published in published {
        let error_text = String::from_utf8_lossy(&published.stderr);
        assert!(published.status.success(), "{error_text}");
    }
    let history = output(&mut crore(&["history", "a", "--server", &url]));
    assert_eq!(history.stdout, b"\xff\xfe\n\xff\xfe\n");
}

#[test]
fn message_may_come_from_a_file_or_stdin() {
    let server = Server::start();
    let url = format!("http://{}", server.address());
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut file = OsString::from(directory.join(format!("message-{}-", std::process::id())));
    // The name of a file may be any bytes as well.
    file.push(OsString::from_vec(BYTES.to_vec()));
    std::fs::write(&file, b"of a file\0").expect("a file");
    let mut named = OsString::from("@");
    named.push(&file);
    let of_file = output(crore(&["pub", "a"]).arg(named).args(["--server", &url]));
    assert!(of_file.status.success(), "{}", text(&of_file.stderr));
    let mut child = crore(&["pub", "a", "-", "--server", &url])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"of a pipe").expect("it reads");
    drop(stdin);
    let of_pipe = await_output(child);
    assert!(of_pipe.status.success(), "{}", text(&of_pipe.stderr));
    let history = output(&mut crore(&["history", "a", "--server", &url]));
    assert_eq!(history.stdout, b"of a file\0\nof a pipe\n");
    std::fs::remove_file(file).expect("it is there");
    // `@ann hello` names a file. If the file does not exist, the error says how to send the text itself.
    let missing = output(&mut crore(&["pub", "a", "@ann hello", "--server", &url]));
    let error_text = text(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        error_text.contains("names a file") && error_text.contains("ann hello: No such file"),
        "{error_text}"
    );
}

#[test]
fn endless_input_is_refused_at_the_size_limit_of_a_message() {
    for args in [
        &["pub", "a"][..],
        &["pub", "a", "-"],
        &["pub", "a", "--file", "/dev/zero"],
        &["pub", "a", "@/dev/zero"],
        &["pub", "a", "--lines"],
        &["admin", "publish", "a"],
    ] {
        let endless = File::open("/dev/zero").expect("a device");
        let mut command = crore(args);
        command.args(["--server", NOWHERE]).stdin(endless);
        let refused = output(&mut command);
        let error_text = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {error_text}");
        assert!(
            error_text.contains("more than 8 MiB"),
            "{args:?}: {error_text}"
        );
    }
}

#[test]
fn password_in_a_url_is_never_shown() {
    for args in [
        &["pub", "a", "x", "--server", "http://ann:secret@127.0.0.1:1"][..],
        &["sub", "a", "--server", "https://ann:sec/ret@127.0.0.1:1"],
        &[
            "sub",
            "http://ann:secret@127.0.0.1:1/news",
            "--server",
            NOWHERE,
        ],
        &["history", "a", "--server", "ann:secret@127.0.0.1"],
        &["admin", "stats", "--url", "http://ann:secret@127.0.0.1:1"],
        &[
            "cluster",
            "status",
            "--url",
            "http://ann:secret@127.0.0.1:1",
        ],
        &[
            "serve",
            "--check",
            "--cluster",
            "nats://ann:secret@127.0.0.1:4222",
        ],
        &[
            "serve",
            "--check",
            "--listen",
            "http://ann:secret@127.0.0.1:1",
        ],
        &["http://ann:secret@127.0.0.1:1"],
        &["pub", "a", "-h", "ann:secret@127.0.0.1"],
        &["pub", "a", "--broker", "ann:secret@127.0.0.1"],
        &["doctor", "http://ann:secret@127.0.0.1:1"],
    ] {
        let output = output(&mut crore(args));
        let error_text = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success(), "{args:?}");
        assert!(
            !error_text.contains("secret") && !error_text.contains("ret@"),
            "{args:?}: {error_text}"
        );
    }
    let mut command = crore(&["pub", "a", "x"]);
    command.env("CRORE_SERVER", "http://ann:secret@127.0.0.1:1");
    let error_text = output(&mut command).stderr;
    assert!(text(&error_text).contains("CRORE_SERVER") && !text(&error_text).contains("secret"));
}

#[test]
fn empty_log_variable_is_ignored() {
    for (value, is_told) in [("", false), (" ", false), ("loud", true), ("crore=x", true)] {
        let server = Server::with_environment("", &[("RUST_LOG", value)]);
        let log = eventually("the line of the start", || {
            let log = server.log();
            log.contains("listening on").then_some(log)
        });
        assert_eq!(log.contains("RUST_LOG is"), is_told, "{value}: {log}");
    }
    // A tool works too if `RUST_LOG` is not valid.
    for value in [OsStr::new("loud"), OsStr::from_bytes(BYTES)] {
        let mut command = crore(&["pub", "a", "x", "--server", NOWHERE]);
        let finished_run = output(command.env("RUST_LOG", value));
        let error_text = text(&finished_run.stderr);
        assert!(
            error_text.contains("RUST_LOG is") && error_text.contains("cannot publish"),
            "{error_text}"
        );
    }
}
