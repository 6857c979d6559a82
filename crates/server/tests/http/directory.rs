//! Tests damaged state directories. For each damage docs/DURABILITY.md says whether the server refuses to start, with the reason and
//! without a change to the files, or starts without the lost messages.
//!
//! A base is the state that a checkpoint has written. It consists of documents, one for each partition or each home (the part of a shard
//! that keeps topics).
//!
//! Root may read every file, so a test of permissions that runs as root starts its server as the user nobody.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crore_wire::sse::GAP_EVENT;

use super::life::does_not_start;
use crate::support::http::publish;
use crate::support::program::output;
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::{Server, eventually, program};

pub const BYTES_MAX: u64 = 4 << 20;
/// The size of a message. A segment of the log has room for eight of them, by [`BYTES_MAX`].
const MESSAGE_BYTES: usize = 30_000;

pub fn settings(state: &State, bytes_max: u64) -> String {
    format!(
        "{}bytes_max = {bytes_max}\n[[rule]]\nmatch = \"#\"\nlog_messages = 10000\nlog_bytes = \"64 MiB\"\n",
        state.settings()
    )
}

fn log_of(state: &State) -> PathBuf {
    state.directory.join("log")
}

/// The segments of the log, in order.
pub fn segments(state: &State) -> Vec<PathBuf> {
    let entries = fs::read_dir(log_of(state)).expect("the log");
    let mut segments: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    segments
}

pub fn numbered(n: usize) -> String {
    format!("{n} {}", "x".repeat(MESSAGE_BYTES))
}

/// Publishes over a new connection, and returns the status. `None` if the server has ended.
pub fn try_publish(server: &Server, topic: &str, data: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(server.address()).ok()?;
    let len = data.len();
    let head = format!(
        "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(data.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // The connection may be reset after the answer.
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.split(' ').nth(1)?.parse().ok()
}

pub fn is_answered(status: Option<u16>) -> bool {
    matches!(status, Some(201 | 202))
}

/// The numbers in the messages of a topic, read from the oldest up to the number `last`.
pub fn numbers(server: &Server, topic: &str, last: usize) -> Vec<usize> {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        let data = stream.event().expect("an event").data;
        let number = data.split(' ').next().expect("a number");
        numbers.push(number.parse().expect("a number"));
    }
    numbers
}

pub fn first_position(server: &Server, topic: &str) -> String {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    stream.event().expect("an event").id
}

/// The position of the last of `count` messages.
fn last_position(server: &Server, topic: &str, count: usize) -> String {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    let positions = (0..count).map(|_| stream.event().expect("an event").id);
    positions.last().expect("a message")
}

pub fn first_event_after(server: &Server, topic: &str, position: &str) -> String {
    let target = format!("/sub/{topic}");
    let mut stream = Stream::open(server, &target, &[("Last-Event-ID", position)]);
    stream.event().expect("an event").kind
}

/// The state directory of a server that has stopped. It has messages in a base and in the log.
fn stopped_state() -> State {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "0 in the base");
    server.stop();
    let server = Server::with(&state.settings());
    publish(&server, "a", "1 in the log");
    server.kill();
    state
}

pub fn assert_all_kept(state: &State) {
    let server = Server::with(&state.settings());
    assert_eq!(numbers(&server, "a", 1), [0, 1]);
    server.kill();
}

/// Fills four segments, after a base so large that no checkpoint removes them. Returns the position of the first message of `a`, and the
/// number of messages of `a`.
fn several_segments(state: &State) -> (String, usize) {
    const OF_BASE: usize = 60;
    const OF_LOG: usize = 32;
    let settings = settings(state, BYTES_MAX);
    let server = Server::with(&settings);
    for n in 0..OF_BASE {
        eventually("room", || {
            is_answered(try_publish(&server, "base", &numbered(n))).then_some(())
        });
    }
    server.stop();
    let server = Server::with(&settings);
    for n in 0..OF_LOG {
        publish(&server, "a", numbered(n));
    }
    let first = first_position(&server, "a");
    server.kill();
    assert!(segments(state).len() >= 4, "{:?}", segments(state));
    (first, OF_LOG)
}

pub fn is_root() -> bool {
    let id = output(Command::new("id").arg("-u")).stdout;
    id.starts_with(b"0\n")
}

/// The log of a server that must not start as the user nobody (or as the present user, if that is not root).
fn start_error_as_nobody(state: &State) -> String {
    let file = state.directory.with_extension("toml");
    fs::write(&file, state.settings()).expect("settings");
    let mut command = Command::new("timeout");
    command.arg("30");
    if is_root() {
        command.args([
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ]);
    }
    command.arg(program());
    command.args(["serve", "--no-admin", "--listen", "127.0.0.1:0", "--config"]);
    let output = output(command.arg(&file));
    let _ = fs::remove_file(file);
    let error_log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error_log}");
    error_log
}

pub fn start_error(state: &State) -> String {
    let name = state
        .directory
        .file_name()
        .expect("a name")
        .to_str()
        .expect("text");
    does_not_start("127.0.0.1:0", name, &state.settings())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
}

#[test]
fn files_without_permission_are_refused_by_name_and_unchanged() {
    let state = stopped_state();
    let (log, base) = (log_of(&state), state.base());
    let (segment, document) = (segments(&state)[0].clone(), base.join("home-0.state"));
    for path in [&state.directory, &log, &base] {
        set_mode(path, 0o777);
    }
    for path in [
        &segment,
        &document,
        &base.join("home-1.state"),
        &log.join("lock"),
        &log.join("end"),
        &state.directory.join("lock"),
    ] {
        set_mode(path, 0o666);
    }
    let paths = [
        (
            &state.directory,
            0o777,
            "cannot be written; name a directory",
        ),
        (&log, 0o777, "ermission denied"),
        (&base, 0o777, "ermission denied"),
        (&segment, 0o666, "ermission denied"),
        (&log.join("end"), 0o666, "ermission denied"),
        (&document, 0o666, "ermission denied"),
    ];
    for (path, mode, reason) in paths {
        set_mode(path, 0);
        let error_log = start_error_as_nobody(&state);
        let name = path.file_name().expect("a name").to_str().expect("text");
        assert!(
            error_log.contains(name) && error_log.contains(reason),
            "{name}: {error_log}"
        );
        set_mode(path, mode);
        assert!(!state.directory.join("set-aside").exists(), "{name}");
    }
    assert_all_kept(&state);
}

/// The simulated fault is a disk that gives an I/O error.
#[test]
fn file_that_cannot_be_read_or_removed_at_a_start_is_named() {
    for name in ["lives", "clean"] {
        let state = stopped_state();
        let file = match name {
            "clean" => state.base().join(name),
            _ => state.directory.join(name),
        };
        let _ = fs::remove_file(&file);
        fs::create_dir(&file).expect("a directory");
        let error_log = start_error(&state);
        assert!(
            error_log.contains(file.to_str().expect("text")),
            "{name}: {error_log}"
        );
    }
}

#[test]
fn file_in_place_of_a_directory_is_refused() {
    let state = State::new();
    fs::write(&state.directory, "a file").expect("a file");
    let error_log = start_error(&state);
    assert!(
        error_log.contains(state.directory.to_str().expect("text")),
        "{error_log}"
    );
    assert!(error_log.contains("cannot be written"), "{error_log}");
    fs::remove_file(&state.directory).expect("the file");
    fs::create_dir(&state.directory).expect("a directory");
    let log = log_of(&state);
    fs::write(&log, "a file").expect("a file");
    let error_log = start_error(&state);
    assert!(
        error_log.contains(log.to_str().expect("text")),
        "{error_log}"
    );
    assert_eq!(fs::read(&log).expect("it is left alone"), b"a file");
}

#[test]
fn log_on_another_disk_is_reached_by_a_symbolic_link() {
    let (state, other) = (State::new(), State::new());
    fs::create_dir(&state.directory).expect("a directory");
    fs::create_dir(&other.directory).expect("a directory");
    symlink(&other.directory, log_of(&state)).expect("a link");
    let server = Server::with(&state.settings());
    publish(&server, "a", "0");
    publish(&server, "a", "1");
    server.kill();
    assert!(other.directory.join("segment-0000000001.log").exists());
    assert_all_kept(&state);
}

/// CRC-32C (RFC 3720 section 12.1), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1));
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[test]
fn segment_of_a_newer_format_is_refused_with_the_remedy_and_unchanged() {
    let state = stopped_state();
    let segment = &segments(&state)[0];
    let original = fs::read(segment).expect("the segment");
    let mut newer = original.clone();
    newer[8] = 3;
    let crc = crc32c(&newer[..60]);
    newer[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(segment, &newer).expect("the segment");
    let error_log = start_error(&state);
    for words in [
        "has version 3 of the log's format",
        "this program reads version 2",
        "start the version",
    ] {
        assert!(error_log.contains(words), "{words}: {error_log}");
    }
    assert_eq!(fs::read(segment).expect("the segment"), newer);
    fs::write(segment, original).expect("the segment");
    assert_all_kept(&state);
}

#[test]
fn links_and_directories_in_place_of_log_files_are_refused_and_unchanged() {
    let state = stopped_state();
    let aside = state.directory.join("moved-away");
    for file in [segments(&state)[0].clone(), log_of(&state).join("lock")] {
        fs::rename(&file, &aside).expect("a file");
        symlink(&aside, &file).expect("a link");
        let error_log = start_error(&state);
        assert!(
            error_log.contains("is no ordinary file") || error_log.contains("symbolic link"),
            "{error_log}"
        );
        fs::remove_file(&file).expect("the link");
        fs::create_dir(&file).expect("a directory");
        let error_log = start_error(&state);
        assert!(
            error_log.contains("is no ordinary file") || error_log.contains("directory"),
            "{error_log}"
        );
        fs::remove_dir(&file).expect("the directory");
        fs::rename(&aside, &file).expect("the file");
    }
    assert_all_kept(&state);
}

#[test]
fn missing_or_empty_segment_is_a_gap_and_the_others_are_served() {
    for is_missing in [true, false] {
        let state = State::new();
        let (position, count) = several_segments(&state);
        let segment = &segments(&state)[2];
        match is_missing {
            true => fs::remove_file(segment).expect("the segment"),
            false => fs::write(segment, "").expect("the segment"),
        }
        let server = Server::with(&settings(&state, BYTES_MAX));
        server.await_log(match is_missing {
            true => "comes after segments that are missing",
            false => "has a damaged header",
        });
        assert_eq!(first_event_after(&server, "a", &position), GAP_EVENT);
        // The gap (the notice of missed messages) was caused by damage, so the log names no setting.
        server.await_log("damage of the log on disk (`crore log verify` shows it)");
        assert!(!server.log().contains("rule.log_age_s"), "{}", server.log());
        let received = numbers(&server, "a", count - 1);
        assert!(received.is_sorted() && received[0] == 0, "{received:?}");
        // The messages of one segment are missing: eight at most.
        assert!(
            received.len() < count && received.len() + 9 >= count,
            "{received:?}"
        );
        assert_eq!(numbers(&server, "base", 59).len(), 60);
        publish(&server, "a", "99");
        server.kill();
        let server = Server::with(&settings(&state, BYTES_MAX));
        let numbers_again = numbers(&server, "a", 99);
        assert_eq!(numbers_again[..received.len()], received);
    }
}

#[test]
fn empty_segment_at_the_end_is_a_gap_and_the_log_continues() {
    let state = State::new();
    let (position, count) = several_segments(&state);
    let paths = segments(&state);
    let last = paths.last().expect("a segment");
    fs::write(last, "").expect("the segment");
    let server = Server::with(&settings(&state, BYTES_MAX));
    server.await_log("has a damaged header");
    publish(&server, "a", "99");
    assert_eq!(first_event_after(&server, "a", &position), GAP_EVENT);
    server.kill();
    let server = Server::with(&settings(&state, BYTES_MAX));
    let received = numbers(&server, "a", 99);
    assert!(
        received.len() > count / 2 && received.is_sorted(),
        "{received:?}"
    );
}

#[test]
fn lost_newest_segment_is_a_gap_for_every_earlier_position() {
    for is_deleted in [true, false] {
        let state = State::new();
        let (first, count) = several_segments(&state);
        let server = Server::with(&settings(&state, BYTES_MAX));
        let newest = last_position(&server, "a", count);
        server.kill();
        let paths = segments(&state);
        let last = paths.last().expect("a segment");
        match is_deleted {
            true => fs::remove_file(last).expect("the segment"),
            // Cuts the segment before its first group.
            false => OpenOptions::new()
                .write(true)
                .open(last)
                .and_then(|file| file.set_len(4096))
                .expect("the segment"),
        }
        let server = Server::with(&settings(&state, BYTES_MAX));
        server.await_log("it was longer: its end is lost");
        for n in 0..count {
            publish(&server, "a", (100 + n).to_string());
        }
        for position in [&first, &newest] {
            assert_eq!(first_event_after(&server, "a", position), GAP_EVENT);
        }
        server.kill();
        // The gap is told only once, since the base now has the messages that were left.
        let server = Server::with(&settings(&state, BYTES_MAX));
        assert!(!server.log().contains("it was longer"), "{}", server.log());
        let received = numbers(&server, "a", 100 + count - 1);
        assert!(
            received.is_sorted() && received.len() > count,
            "{received:?}"
        );
    }
}

#[test]
fn foreign_files_are_unchanged_and_logged() {
    let state = stopped_state();
    let log = log_of(&state);
    let files = [
        state.directory.join("notes.txt"),
        state.directory.join("base-x"),
        log.join("notes.txt"),
        log.join("segment-1.log"),
        log.join("segment-0000000001.log.bak"),
        log.join("segment-00000000001.log"),
    ];
    let directories = [
        state.directory.join("lost+found"),
        log.join("old"),
        log.join("spare-1"),
        log.join("spare-2"),
        log.join("spare-3"),
    ];
    for path in &files {
        fs::write(path, "garbage").expect("a file");
    }
    for path in &directories {
        // Two spare files exist under these names.
        let _ = fs::remove_file(path);
        fs::create_dir(path).expect("a directory");
    }
    // Files that are left if the server is killed while it starts, and while it writes a checkpoint.
    fs::write(state.directory.join("probe"), "").expect("a file");
    fs::create_dir(state.directory.join("base.part")).expect("a directory");
    fs::write(log.join("spare-7"), "").expect("a file");
    for n in 2..5 {
        let server = Server::with(&state.settings());
        server.await_log("notes.txt");
        assert!(server.log().contains("segment-1.log"), "{}", server.log());
        publish(&server, "a", n.to_string());
        assert_eq!(numbers(&server, "a", n), (0..=n).collect::<Vec<_>>());
        server.kill();
    }
    for path in &files {
        assert_eq!(
            fs::read(path).expect("it is there"),
            b"garbage",
            "{}",
            path.display()
        );
    }
    assert!(directories.iter().all(|path| path.is_dir()));
    for removed in [state.directory.join("base.part"), log.join("spare-7")] {
        assert!(!removed.exists(), "{}", removed.display());
    }
}

#[test]
fn invalid_base_is_set_aside_and_the_one_before_it_is_read() {
    let state = stopped_state();
    for is_file in [true, false] {
        let garbage = state.directory.join("base-900-1-1");
        match is_file {
            true => fs::write(&garbage, "garbage").expect("a file"),
            false => fs::create_dir(&garbage).expect("a directory"),
        }
        assert_all_kept(&state);
        assert!(!garbage.exists() && state.directory.join("set-aside").exists());
    }
}

#[test]
fn log_after_a_damaged_base_is_read_with_its_own_number_of_partitions() {
    let mut state = stopped_state();
    let settings_of_three_partitions =
        |state: &State| format!("partitions = 3\n{}", state.settings());
    let document = state.base().join("home-1.state");
    let mut bytes = fs::read(&document).expect("a document");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&document, bytes).expect("a document");
    let server = Server::with(&settings_of_three_partitions(&state));
    server.await_log("it keeps them");
    // The segment also has the messages of the base.
    assert_eq!(numbers(&server, "a", 1), [0, 1]);
    server.kill();
    // With no readable document the number of partitions is unknown.
    state = stopped_state();
    for home in 0..2 {
        let document = state.base().join(format!("home-{home}.state"));
        fs::write(document, "garbage").expect("a document");
    }
    let name = state
        .directory
        .file_name()
        .expect("a name")
        .to_str()
        .expect("text");
    let error_log = does_not_start("127.0.0.1:0", name, &settings_of_three_partitions(&state));
    assert!(
        error_log.contains("partitions = 3 does not go with the log"),
        "{error_log}"
    );
    assert_all_kept(&state);
}

#[test]
fn no_file_is_written_through_a_link_in_the_directory() {
    let state = stopped_state();
    let target = state.directory.join("target");
    fs::write(&target, "precious").expect("a file");
    symlink(&target, state.directory.join("probe")).expect("a link");
    assert_all_kept(&state);
    assert_eq!(fs::read(&target).expect("it is there"), b"precious");
}
