//! Tests damaged state directories. The server refuses each with the reason and changes nothing, or starts in spite of the damage, as
//! docs/DURABILITY.md says.
//!
//! A base is the state that a checkpoint has written; it consists of documents, one for each home (the part of a shard that keeps topics)
//! or partition.
//!
//! Root may read everything. So if a test is about permissions and runs as root, its server runs as nobody.

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
/// With this [`BYTES_MAX`] a segment of the log has room for eight messages of this size.
const MESSAGE_BYTES: usize = 30_000;

pub fn settings(state: &State, bytes_max: u64) -> String {
    format!(
        "{}bytes_max = {bytes_max}\n[[rule]]\nmatch = \"#\"\nlog_messages = 10000\nlog_bytes = \"64 MiB\"\n",
        state.settings()
    )
}

fn log_of(state: &State) -> PathBuf {
    state.0.join("log")
}

/// The segments of the log, in order.
pub fn segments(state: &State) -> Vec<PathBuf> {
    let entries = fs::read_dir(log_of(state)).expect("the log");
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    found.retain(|path| path.extension().is_some_and(|it| it == "log"));
    found.sort();
    found
}

pub fn numbered(n: usize) -> String {
    format!("{n} {}", "x".repeat(MESSAGE_BYTES))
}

/// Publishes over a new connection. `None` if the server has ended.
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

/// The numbers in the messages of a topic, up to the number `last`.
pub fn numbers(server: &Server, topic: &str, last: usize) -> Vec<usize> {
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    let mut found = Vec::new();
    while found.last() != Some(&last) {
        let data = stream.event().expect("an event").data;
        let number = data.split(' ').next().expect("a number");
        found.push(number.parse().expect("a number"));
    }
    found
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

pub fn first_behind(server: &Server, topic: &str, position: &str) -> String {
    let target = format!("/sub/{topic}");
    let mut stream = Stream::open(server, &target, &[("Last-Event-ID", position)]);
    stream.event().expect("an event").kind
}

/// The state directory of a server that has left messages in a base and in the log.
fn left() -> State {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish(&server, "a", "0 in the base");
    server.stop();
    let server = Server::with(&state.settings());
    publish(&server, "a", "1 in the log");
    server.kill();
    state
}

pub fn all_is_there(state: &State) {
    let server = Server::with(&state.settings());
    assert_eq!(numbers(&server, "a", 1), [0, 1]);
    server.kill();
}

/// Fills four segments, and a base so large that no checkpoint follows meanwhile. Returns the position of the first message of `a`, and
/// the number of messages of `a`.
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
    let seen = first_position(&server, "a");
    server.kill();
    assert!(segments(state).len() >= 4, "{:?}", segments(state));
    (seen, OF_LOG)
}

pub fn is_root() -> bool {
    let id = output(Command::new("id").arg("-u")).stdout;
    id.starts_with(b"0\n")
}

/// The error of a server that does not start as nobody (or as the present user, if that is not root).
fn refused_to_nobody(state: &State) -> String {
    let file = state.0.with_extension("toml");
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
    let ended = output(command.arg(&file));
    let _ = fs::remove_file(file);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    said
}

pub fn refused(state: &State) -> String {
    let name = state.0.file_name().expect("a name").to_str().expect("text");
    does_not_start("127.0.0.1:0", name, &state.settings())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
}

#[test]
fn files_without_permission_are_refused_by_name_and_left_alone() {
    let state = left();
    let (log, base) = (log_of(&state), state.base());
    let (segment, document) = (segments(&state)[0].clone(), base.join("home-0.state"));
    for path in [&state.0, &log, &base] {
        set_mode(path, 0o777);
    }
    for path in [
        &segment,
        &document,
        &base.join("home-1.state"),
        &log.join("lock"),
        &log.join("end"),
        &state.0.join("lock"),
    ] {
        set_mode(path, 0o666);
    }
    let all = [
        (&state.0, 0o777, "cannot be written; name a directory"),
        (&log, 0o777, "ermission denied"),
        (&base, 0o777, "ermission denied"),
        (&segment, 0o666, "ermission denied"),
        (&log.join("end"), 0o666, "ermission denied"),
        (&document, 0o666, "ermission denied"),
    ];
    for (path, good, why) in all {
        set_mode(path, 0);
        let said = refused_to_nobody(&state);
        let name = path.file_name().expect("a name").to_str().expect("text");
        assert!(said.contains(name) && said.contains(why), "{name}: {said}");
        set_mode(path, good);
        assert!(!state.0.join("set-aside").exists(), "{name}");
    }
    all_is_there(&state);
}

/// The simulated fault is a disk that gives an I/O error.
#[test]
fn file_that_cannot_be_read_or_removed_at_a_start_is_named() {
    for name in ["lives", "clean"] {
        let state = left();
        let file = match name {
            "clean" => state.base().join(name),
            _ => state.0.join(name),
        };
        let _ = fs::remove_file(&file);
        fs::create_dir(&file).expect("a directory");
        let said = refused(&state);
        assert!(
            said.contains(file.to_str().expect("text")),
            "{name}: {said}"
        );
    }
}

#[test]
fn file_in_place_of_a_directory_is_refused() {
    let state = State::new();
    fs::write(&state.0, "a file").expect("a file");
    let said = refused(&state);
    assert!(said.contains(state.0.to_str().expect("text")), "{said}");
    assert!(said.contains("cannot be written"), "{said}");
    fs::remove_file(&state.0).expect("the file");
    fs::create_dir(&state.0).expect("a directory");
    let log = log_of(&state);
    fs::write(&log, "a file").expect("a file");
    let said = refused(&state);
    assert!(said.contains(log.to_str().expect("text")), "{said}");
    assert_eq!(fs::read(&log).expect("it is left alone"), b"a file");
}

#[test]
fn log_on_another_disk_is_reached_by_a_symbolic_link() {
    let (state, other) = (State::new(), State::new());
    fs::create_dir(&state.0).expect("a directory");
    fs::create_dir(&other.0).expect("a directory");
    symlink(&other.0, log_of(&state)).expect("a link");
    let server = Server::with(&state.settings());
    publish(&server, "a", "0");
    publish(&server, "a", "1");
    server.kill();
    assert!(other.0.join("segment-0000000001.log").exists());
    all_is_there(&state);
}

/// CRC-32C (RFC 3720 section 12.1), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1));
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[test]
fn newer_format_of_a_segment_is_refused_with_the_remedy_and_left_alone() {
    let state = left();
    let segment = &segments(&state)[0];
    let original = fs::read(segment).expect("the segment");
    let mut newer = original.clone();
    newer[8] = 3;
    let crc = crc32c(&newer[..60]);
    newer[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(segment, &newer).expect("the segment");
    let said = refused(&state);
    for words in [
        "has version 3 of the log's format",
        "this program reads version 2",
        "start the version",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(fs::read(segment).expect("the segment"), newer);
    fs::write(segment, original).expect("the segment");
    all_is_there(&state);
}

#[test]
fn links_and_directories_in_place_of_files_of_the_log_are_refused_and_left_alone() {
    let state = left();
    let aside = state.0.join("moved-away");
    for file in [segments(&state)[0].clone(), log_of(&state).join("lock")] {
        fs::rename(&file, &aside).expect("a file");
        symlink(&aside, &file).expect("a link");
        let said = refused(&state);
        assert!(
            said.contains("is no ordinary file") || said.contains("symbolic link"),
            "{said}"
        );
        fs::remove_file(&file).expect("the link");
        fs::create_dir(&file).expect("a directory");
        let said = refused(&state);
        assert!(
            said.contains("is no ordinary file") || said.contains("directory"),
            "{said}"
        );
        fs::remove_dir(&file).expect("the directory");
        fs::rename(&aside, &file).expect("the file");
    }
    all_is_there(&state);
}

#[test]
fn segment_that_is_missing_or_empty_is_told_as_a_gap_and_the_others_are_served() {
    for is_missing in [true, false] {
        let state = State::new();
        let (seen, count) = several_segments(&state);
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
        assert_eq!(first_behind(&server, "a", &seen), GAP_EVENT);
        // The gap (the notice of missed messages) was caused by damage, so the log names no setting.
        server.await_log("damage of the log on disk (`crore log verify` shows it)");
        assert!(!server.log().contains("rule.log_age_s"), "{}", server.log());
        let found = numbers(&server, "a", count - 1);
        assert!(found.is_sorted() && found[0] == 0, "{found:?}");
        // At most one segment of eight messages is missing.
        assert!(found.len() < count && found.len() + 9 >= count, "{found:?}");
        assert_eq!(numbers(&server, "base", 59).len(), 60);
        publish(&server, "a", "99");
        server.kill();
        let server = Server::with(&settings(&state, BYTES_MAX));
        let again = numbers(&server, "a", 99);
        assert_eq!(again[..found.len()], found);
    }
}

#[test]
fn empty_segment_at_the_end_is_told_as_a_gap_and_the_log_goes_on() {
    let state = State::new();
    let (seen, count) = several_segments(&state);
    let all = segments(&state);
    let last = all.last().expect("a segment");
    fs::write(last, "").expect("the segment");
    let server = Server::with(&settings(&state, BYTES_MAX));
    server.await_log("has a damaged header");
    publish(&server, "a", "99");
    assert_eq!(first_behind(&server, "a", &seen), GAP_EVENT);
    server.kill();
    let server = Server::with(&settings(&state, BYTES_MAX));
    let found = numbers(&server, "a", 99);
    assert!(found.len() > count / 2 && found.is_sorted(), "{found:?}");
}

#[test]
fn lost_newest_segment_is_told_as_a_gap_and_its_offsets_are_told_apart() {
    for is_deleted in [true, false] {
        let state = State::new();
        let (seen, count) = several_segments(&state);
        let server = Server::with(&settings(&state, BYTES_MAX));
        let newest = last_position(&server, "a", count);
        server.kill();
        let all = segments(&state);
        let last = all.last().expect("a segment");
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
        for position in [&seen, &newest] {
            assert_eq!(first_behind(&server, "a", position), GAP_EVENT);
        }
        server.kill();
        // The loss is told only once: the base now has what was left.
        let server = Server::with(&settings(&state, BYTES_MAX));
        assert!(!server.log().contains("it was longer"), "{}", server.log());
        let found = numbers(&server, "a", 100 + count - 1);
        assert!(found.is_sorted() && found.len() > count, "{found:?}");
    }
}

#[test]
fn files_that_are_none_of_ours_are_left_alone_and_told() {
    let state = left();
    let log = log_of(&state);
    let files = [
        state.0.join("notes.txt"),
        state.0.join("base-x"),
        log.join("notes.txt"),
        log.join("segment-1.log"),
        log.join("segment-0000000001.log.bak"),
        log.join("segment-00000000001.log"),
    ];
    let directories = [
        state.0.join("lost+found"),
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
    // The files that a killed start and a killed checkpoint leave behind.
    fs::write(state.0.join("probe"), "").expect("a file");
    fs::create_dir(state.0.join("base.part")).expect("a directory");
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
    for gone in [state.0.join("base.part"), log.join("spare-7")] {
        assert!(!gone.exists(), "{}", gone.display());
    }
}

#[test]
fn base_that_is_none_is_set_aside_and_the_one_before_it_counts() {
    let state = left();
    for is_file in [true, false] {
        let garbage = state.0.join("base-900-1-1");
        match is_file {
            true => fs::write(&garbage, "garbage").expect("a file"),
            false => fs::create_dir(&garbage).expect("a directory"),
        }
        all_is_there(&state);
        assert!(!garbage.exists() && state.0.join("set-aside").exists());
    }
}

#[test]
fn log_behind_a_damaged_base_is_read_with_the_number_of_partitions_that_wrote_it() {
    let mut state = left();
    let other = |state: &State| format!("partitions = 3\n{}", state.settings());
    let document = state.base().join("home-1.state");
    let mut bytes = fs::read(&document).expect("a document");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&document, bytes).expect("a document");
    let server = Server::with(&other(&state));
    server.await_log("it keeps them");
    // The segment also has the messages of the base.
    assert_eq!(numbers(&server, "a", 1), [0, 1]);
    server.kill();
    // With no readable document the number of partitions is unknown.
    state = left();
    for home in 0..2 {
        let document = state.base().join(format!("home-{home}.state"));
        fs::write(document, "garbage").expect("a document");
    }
    let name = state.0.file_name().expect("a name").to_str().expect("text");
    let said = does_not_start("127.0.0.1:0", name, &other(&state));
    assert!(
        said.contains("partitions = 3 does not go with the log"),
        "{said}"
    );
    all_is_there(&state);
}

#[test]
fn no_file_is_written_through_a_link_in_the_directory() {
    let state = left();
    let target = state.0.join("target");
    fs::write(&target, "precious").expect("a file");
    symlink(&target, state.0.join("probe")).expect("a link");
    all_is_there(&state);
    assert_eq!(fs::read(&target).expect("it is there"), b"precious");
}
