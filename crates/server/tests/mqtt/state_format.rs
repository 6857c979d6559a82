//! Tests the format of the state directory. A build with format 9 wrote `state-format-9`, and every later build must read it, or say what
//! it cannot read. A build that changes the format keeps this directory and adds one of its own (`write_a_state`).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crore_wire::mqtt::{Packet, Version};

use crate::support::Server;
use crate::support::http::{once, publish};
use crate::support::mqtt::{Conn, message};
use crate::support::state::State;

/// With these settings nothing expires, however old the files are. The segments are small, and so are the files.
const SETTINGS: &str = "bytes_max = 1048576\n\n[mqtt]\nsession_expiry_max_s = 4294967295\n\n\
    [[rule]]\nmatch = \"#\"\nlog_age_s = 4294967295\nposition_age_s = 4294967295\nlog_bytes = 65536\n\n[limits]\nlog_bytes = 1048576\n";

/// How the last server ended. Only an orderly stop saves sessions.
const ENDS: [&str; 2] = ["stopped", "killed"];

fn stored_state(end: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/mqtt/state-format-9")
        .join(end)
}

fn start(state: &State) -> Server {
    Server::with(&format!("{}{SETTINGS}", state.settings()))
}

/// Copies the files. In the repository the zeros at their ends are cut off. The copy of a segment gets its full length again.
fn copy(from: &Path, to: &Path, change: &impl Fn(&mut Vec<u8>)) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("the directory") {
        let entry = entry.expect("an entry");
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target, change);
            continue;
        }
        let mut bytes = fs::read(&path).expect("a file");
        change(&mut bytes);
        fs::write(&target, bytes).expect("a copy");
    }
}

/// Makes each kind of record: messages, a deleted topic, a replaced retained message, and an absent session.
fn fill(server: &Server) {
    for text in ["1", "2", "3"] {
        publish(server, "history", text);
    }
    publish(server, "gone", "x");
    assert_eq!(once(server, "DELETE", "/pub/gone", &[], "").status, 200);
    let mut device = Conn::to_server(server, Version::V311);
    device.resume("device");
    device.subscribe("to/device/+", 1);
    device.leave();
    let mut from = Conn::to_server(server, Version::V5);
    from.resume("publisher");
    for (n, text) in [(1, b"old"), (2, b"new")] {
        let mut retained = message("kept/a", 1, n, text);
        retained.retain = true;
        from.deliver(&retained);
    }
    from.deliver(&message("to/device/x", 1, 3, b"missed"));
}

#[test]
fn state_that_an_earlier_build_has_written_is_read() {
    for end in ENDS {
        let state = State::new();
        copy(&stored_state(end), &state.directory, &|_| {});
        for entry in fs::read_dir(state.directory.join("log")).expect("the log") {
            let entry = entry.expect("an entry");
            if entry.file_name() != "end" {
                let file = File::options().write(true).open(entry.path());
                file.and_then(|it| it.set_len(64 << 10)).expect("a segment");
            }
        }
        let server = start(&state);
        let history = once(&server, "GET", "/history/history", &[], "").json();
        let history = history.as_array().expect("messages");
        let texts: Vec<_> = history.iter().map(|it| &it["data"]).collect();
        assert_eq!(texts, ["1", "2", "3"], "{end}");
        assert_eq!(once(&server, "GET", "/pub/gone", &[], "").status, 404);
        let mut reader = Conn::to_server(&server, Version::V5);
        reader.resume("reader");
        reader.send_subscribe("kept/#", 0);
        // The retained message may come before the SUBACK.
        let answers = [reader.packet(), reader.packet()];
        let retained = answers.iter().find_map(|received| match received.packet() {
            Packet::Publish(publish) => Some((publish.payload, publish.retain)),
            _ => None,
        });
        assert_eq!(retained, Some((&b"new"[..], true)), "{end}");
        let mut device = Conn::to_server(&server, Version::V311);
        let is_present = device.resume("device");
        assert_eq!(is_present, end == "stopped");
        if is_present {
            assert_eq!(device.packet().publish().payload, b"missed");
        }
    }
}

#[test]
#[ignore = "writes the files of this form anew"]
fn write_a_state() {
    for end in ENDS {
        let state = State::new();
        let server = start(&state);
        fill(&server);
        match end {
            "stopped" => drop(server.stop()),
            _ => server.kill(),
        }
        let _ = fs::remove_dir_all(stored_state(end));
        copy(&state.directory, &stored_state(end), &|bytes| {
            let used = bytes.iter().rposition(|byte| *byte != 0);
            bytes.truncate(used.map_or(0, |last| last + 1));
        });
        fs::remove_file(stored_state(end).join("lock")).expect("the lock");
    }
}
