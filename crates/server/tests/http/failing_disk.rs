//! Tests disks that are read-only, full or broken. The server refuses publishes, or ends with the reason. No answered message is lost, as
//! docs/DURABILITY.md says.
//!
//! A base is the state that a checkpoint has written. It consists of documents, one for each partition or each home (the part of a shard
//! that keeps topics). Most tests mount file systems, which only root may do; without root they print that and test nothing.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crore_wire::sse::GAP_EVENT;

use super::directory::{
    BYTES_MAX, assert_all_kept, first_event_after, first_position, is_answered, numbered, numbers,
    segments, settings, start_error, try_publish,
};
use super::mounted::{Mounted, file_system};
use crate::support::http::{Conn, Response, once, publish};
use crate::support::program::output;
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::{Server, eventually, program, until};

#[test]
fn read_only_directory_is_refused_and_unchanged() {
    let state = State::new();
    let Some(mount) = Mounted::tmpfs(&state.directory, "200m") else {
        return;
    };
    let server = Server::with(&state.settings());
    publish(&server, "a", "0");
    publish(&server, "a", "1");
    server.kill();
    mount.remount("ro");
    let log = start_error(&state);
    assert!(log.contains("cannot be written; name a directory"), "{log}");
    mount.remount("rw");
    assert_all_kept(&state);
}

#[test]
fn publishes_are_refused_while_the_file_system_is_full() {
    let state = State::new();
    // The limit is more than the file system has.
    let settings = settings(&state, 64 << 20);
    let Some(_mount) = Mounted::tmpfs(&state.directory, "24m") else {
        return;
    };
    let ballast = state.directory.join("ballast");
    let fill = || {
        let mut file = fs::File::create(&ballast).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    let server = Server::with(&settings);
    publish(&server, "a", "0");
    fill();
    let mut answered = 1;
    let refused = |server: &Server, answered: &mut usize| {
        eventually("a refusal", || {
            let status = try_publish(server, "a", &numbered(*answered)).expect("the server lives");
            *answered += usize::from(is_answered(Some(status)));
            (status == 503).then_some(())
        });
    };
    refused(&server, &mut answered);
    assert_eq!(numbers(&server, "a", answered - 1).len(), answered);
    // A crash and a stop with the full disk lose no answered message.
    server.kill();
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "a", answered - 1).len(), answered);
    refused(&server, &mut answered);
    server.signal("TERM");
    server.await_exit();
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "a", answered - 1).len(), answered);
    fs::remove_file(&ballast).expect("the ballast");
    eventually("room", || {
        is_answered(try_publish(&server, "a", &numbered(answered))).then_some(())
    });
    server.kill();
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "a", answered).len(), answered + 1);
}

#[test]
fn server_starts_repeatedly_on_a_full_file_system() {
    let state = State::new();
    // The file `lives` gets the last offset of each partition at each start.
    let settings = format!("partitions = 256\n{}", settings(&state, 20 << 20));
    let Some(_mount) = Mounted::tmpfs(&state.directory, "32m") else {
        return;
    };
    let mut server = Server::with(&settings);
    publish(&server, "a", numbered(0));
    let position = first_position(&server, "a");
    for start in 0..20 {
        server.kill();
        fill(&state);
        server = Server::with(&settings);
        assert_eq!(numbers(&server, "a", 0), [0], "start {start}");
    }
    empty(&state);
    eventually("room", || {
        is_answered(try_publish(&server, "a", &numbered(1))).then_some(())
    });
    assert_ne!(first_event_after(&server, "a", &position), GAP_EVENT);
}

/// Writes a file that takes all free space.
fn fill(state: &State) {
    let mut file = fs::File::create(state.directory.join("ballast")).expect("a file");
    while file.write_all(&[0; 4096]).is_ok() {}
}

/// Takes the space that is free again after [`fill`].
fn fill_rest(state: &State) {
    let ballast = state.directory.join("more-ballast");
    let mut options = fs::OpenOptions::new();
    let mut file = (options.create(true).append(true).open(ballast)).expect("a file");
    while file.write_all(&[0; 4096]).is_ok() {}
}

fn empty(state: &State) {
    fs::remove_file(state.directory.join("ballast")).expect("the ballast");
}

/// Number of refusals in a row after which no checkpoint makes room any more.
const REFUSALS: u32 = 25;

#[test]
fn file_system_filled_by_the_log_accepts_messages_again_after_deletes() {
    let state = State::new();
    // The limit is more than the file system has.
    let settings = settings(&state, 64 << 20);
    let Some(_mount) = Mounted::tmpfs(&state.directory, "24m") else {
        return;
    };
    let server = Server::with(&settings);
    server.await_log("state.bytes_max (64 MiB) is more than the file system of state.directory has: 24 MiB count");
    // The disk may be full for a moment while a checkpoint writes a base.
    let (mut created, mut refused) = (0, 0);
    while refused < REFUSALS {
        let status = try_publish(&server, &format!("t/{created}"), &numbered(created));
        if status == Some(503) {
            refused += 1;
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        assert!(is_answered(status), "{status:?}");
        (created, refused) = (created + 1, 0);
        assert!(created < 1000, "it is not bounded");
    }
    let is_kept = |n: usize| n.is_multiple_of(2);
    for n in (0..created).filter(|n| !is_kept(*n)) {
        let answer = once(&server, "DELETE", &format!("/pub/t/{n}"), &[], "");
        assert_eq!(answer.status, 200, "{n} of {created}");
    }
    eventually("room", || {
        is_answered(try_publish(&server, "new", &numbered(0))).then_some(())
    });
    server.kill();
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "new", 0), [0]);
    for n in (0..created).filter(|n| is_kept(*n)) {
        assert_eq!(numbers(&server, &format!("t/{n}"), n), [n]);
    }
}

/// Number of messages, each in its own topic, that together fill half of a small file system.
const MESSAGES: usize = 450;
/// Minimum size of the base when most of the messages are in it.
const BASE_BYTES: u64 = 12 << 20;

/// The bytes of the newest base. The number is smaller for a moment while the base before it is removed.
fn base_bytes(state: &State) -> u64 {
    let files = state.files();
    let base = files.iter().rfind(|name| name.starts_with("base-"));
    let documents = fs::read_dir(state.directory.join(base.expect("a base")));
    let lens = documents.into_iter().flatten().flatten();
    lens.map(|entry| entry.metadata().map_or(0, |entry| entry.len()))
        .sum()
}

/// A server that keeps all [`MESSAGES`], most of them in a base.
fn server_with_large_base(state: &State, settings: &str) -> Server {
    let server = Server::with(settings);
    for n in 0..MESSAGES {
        eventually("room", || {
            is_answered(try_publish(&server, &format!("t/{n}"), &numbered(n))).then_some(())
        });
    }
    until("a base", || {
        // The log grows until a checkpoint is due, since the last one may have been before most of the messages.
        try_publish(&server, "gone", &numbered(0));
        once(&server, "DELETE", "/pub/gone", &[], "");
        base_bytes(state) > BASE_BYTES
    });
    await_reserve(state, BASE_BYTES / 16);
    server
}

/// Waits until a file reserves this much disk space for a checkpoint.
fn await_reserve(state: &State, bytes: u64) {
    until("a reserve", || {
        fs::metadata(state.directory.join("reserve")).is_ok_and(|entry| entry.len() > bytes)
    });
}

/// Fills the disk as another program would, and waits until the server refuses a publish.
fn fill_as_other_program(server: &Server, state: &State) {
    eventually("a refusal", || {
        fill(state);
        (try_publish(server, "refused", &numbered(0)) == Some(503)).then_some(())
    });
}

fn is_kept(n: usize) -> bool {
    n.is_multiple_of(5)
}

fn delete_most(server: &Server) {
    for n in (0..MESSAGES).filter(|n| !is_kept(*n)) {
        let answer = once(server, "DELETE", &format!("/pub/t/{n}"), &[], "");
        assert_eq!(answer.status, 200, "{n}");
    }
}

/// The number in the only message of a topic.
fn number_of_only_message(server: &Server, topic: &str) -> usize {
    assert_eq!(messages(server, topic), 1, "{topic}");
    let mut stream = Stream::open(server, &format!("/sub/{topic}?since=oldest"), &[]);
    let data = stream.event().expect("an event").data;
    let number = data.split(' ').next().expect("a number");
    number.parse().expect("a number")
}

/// Checks that the deleted topics do not exist, and that the others have their message.
fn assert_kept_messages(server: &Server) {
    for n in 0..MESSAGES {
        match is_kept(n) {
            true => assert_eq!(number_of_only_message(server, &format!("t/{n}")), n),
            false => {
                let answer = once(server, "GET", &format!("/pub/t/{n}"), &[], "");
                assert_eq!(answer.status, 404, "{n}");
            }
        }
    }
}

/// Only the server's own checkpoint can make room, since the other program keeps what it has written.
#[test]
fn disk_filled_by_another_program_accepts_messages_again_after_deletes() {
    // After a stop the base has a document for each home, otherwise one for each partition. The other program may also write between a
    // stop and the next start.
    for (stops, fills_between) in [(false, false), (true, false), (true, true)] {
        let state = State::new();
        let settings = settings(&state, 20 << 20);
        let Some(mount) = Mounted::tmpfs(&state.directory, "64m") else {
            return;
        };
        let mut server = server_with_large_base(&state, &settings);
        if stops {
            server.stop();
            await_reserve(&state, BASE_BYTES);
            if fills_between {
                fill(&state);
            }
            server = Server::with(&settings);
        } else {
            mount.remount("size=26m");
        }
        fill_as_other_program(&server, &state);
        delete_most(&server);
        eventually("room", || {
            is_answered(try_publish(&server, "new", &numbered(0))).then_some(())
        });
        server.kill();
        let server = Server::with(&settings);
        assert_eq!(numbers(&server, "new", 0), [0]);
        assert_kept_messages(&server);
    }
}

/// Deletes most messages of a server on a disk that another program has filled to the last byte, and checks that this gives room.
fn deletes_make_room(state: &State, settings: &str) {
    let server = Server::with(settings);
    eventually("a refusal", || {
        fill_rest(state);
        (try_publish(&server, "refused", &numbered(0)) == Some(503)).then_some(())
    });
    delete_most(&server);
    eventually("room", || {
        is_answered(try_publish(&server, "new", &numbered(0))).then_some(())
    });
    server.kill();
    let server = Server::with(settings);
    assert_eq!(numbers(&server, "new", 0), [0]);
    assert_kept_messages(&server);
    server.kill();
    assert_verified(state);
}

/// The other program takes all space that the server frees when it ends.
#[test]
fn reserve_for_the_next_checkpoint_survives_a_failed_stop_on_a_full_disk() {
    let state = State::new();
    let settings = settings(&state, 20 << 20);
    let Some(mount) = Mounted::tmpfs(&state.directory, "64m") else {
        return;
    };
    let server = server_with_large_base(&state, &settings);
    mount.remount("size=26m");
    fill(&state);
    server.signal("TERM");
    let (code, stop_log) = server.await_exit();
    assert_eq!(code, Some(1), "{stop_log}");
    fill(&state);
    deletes_make_room(&state, &settings);
}

#[test]
fn reserve_for_the_next_checkpoint_survives_a_killed_stop() {
    let state = State::new();
    let settings = settings(&state, 20 << 20);
    let Some(mount) = Mounted::tmpfs(&state.directory, "64m") else {
        return;
    };
    server_with_large_base(&state, &settings).kill();
    mount.remount("size=26m");
    // A server that is killed while it stops leaves a part of the next base, and no reserve.
    let (reserve, part) = (
        state.directory.join("reserve"),
        state.directory.join("base.part"),
    );
    let _ = fs::remove_dir_all(&part);
    fs::create_dir(&part).expect("a directory");
    fs::rename(reserve, part.join("home-0.state")).expect("the reserve");
    fill(&state);
    deletes_make_room(&state, &settings);
}

#[test]
fn start_without_room_for_a_base_keeps_the_reserve_for_the_next_checkpoint() {
    let state = State::new();
    let settings = settings(&state, 20 << 20);
    let Some(mount) = Mounted::tmpfs(&state.directory, "64m") else {
        return;
    };
    server_with_large_base(&state, &settings).kill();
    mount.remount("size=26m");
    let newest = segments(&state).pop().expect("a segment");
    fs::OpenOptions::new()
        .write(true)
        .open(newest)
        .and_then(|file| file.write_all_at(&[0xff; 4096], 0))
        .expect("a segment");
    fill(&state);
    let reserved_bytes =
        || fs::metadata(state.directory.join("reserve")).map_or(0, |entry| entry.len());
    let reserved_before = reserved_bytes();
    for _ in 0..2 {
        let log = start_error(&state);
        assert!(log.contains("No space left on device"), "{log}");
        assert!(
            reserved_bytes() >= reserved_before,
            "{} of {reserved_before}",
            reserved_bytes()
        );
    }
}

/// A checkpoint that replaces the documents of the last base one by one is interrupted in the middle.
#[test]
fn partly_replaced_base_is_read_with_the_log_after_it() {
    let state = State::new();
    let settings = settings(&state, 20 << 20);
    let Some(mount) = Mounted::tmpfs(&state.directory, "64m") else {
        return;
    };
    let server = server_with_large_base(&state, &settings);
    let mut stream = Stream::open(&server, "/sub/t/0?since=oldest", &[]);
    let position = stream.event().expect("an event").id;
    // Some messages are in a finished segment and not in the base yet.
    let mut number = 0;
    while segments(&state).len() < 2 || state.directory.join("base.part").exists() {
        let status = try_publish(&server, &format!("more/{number}"), &numbered(number));
        number += usize::from(is_answered(status));
    }
    mount.remount("size=26m");
    fill(&state);
    let base = state.base();
    let mut documents: Vec<_> = fs::read_dir(&base)
        .expect("the base")
        .map(|entry| entry.expect("a document"))
        .map(|entry| (entry.metadata().expect("a file").len(), entry.path()))
        .collect();
    documents.sort();
    // A checkpoint reads the largest document first.
    let (first, last) = (&documents[documents.len() - 1].1, &documents[0].1);
    let content_before = fs::read(first).expect("a document");
    let flip_byte = || {
        let file = fs::OpenOptions::new().read(true).write(true).open(last);
        let (file, mut byte) = (file.expect("a document"), [0]);
        file.read_exact_at(&mut byte, 10_000).expect("a byte");
        byte[0] ^= 1;
        file.write_all_at(&byte, 10_000).expect("a byte");
    };
    flip_byte();
    delete_most(&server);
    server.await_log("state.directory: no checkpoint");
    assert_eq!(state.base(), base);
    let content_after = fs::read(first).expect("a document");
    assert!(content_after != content_before, "no document was replaced");
    server.kill();
    flip_byte();
    assert_verified(&state);
    let server = Server::with(&settings);
    assert_kept_messages(&server);
    for n in 0..number {
        assert_eq!(number_of_only_message(&server, &format!("more/{n}")), n);
    }
    eventually("room", || {
        is_answered(try_publish(&server, "t/0", &numbered(1))).then_some(())
    });
    let mut stream = Stream::open(&server, "/sub/t/0", &[("Last-Event-ID", &position)]);
    assert_eq!(stream.event().expect("an event").data, numbered(1));
    server.kill();
    assert_verified(&state);
}

#[test]
fn stop_on_a_full_disk_saves_the_state_or_fails_with_the_loss() {
    let state = State::new();
    let settings = settings(&state, 64 << 20);
    let Some(_mount) = Mounted::tmpfs(&state.directory, "24m") else {
        return;
    };
    let server = Server::with(&settings);
    publish(&server, "a", numbered(0));
    fill(&state);
    // The spare segment files give enough room for this little state.
    let stop_log = server.stop();
    assert!(stop_log.contains("state written to"), "{stop_log}");
    empty(&state);
    let server = Server::with(&settings);
    for n in 1..170 {
        publish(&server, "a", numbered(n));
    }
    fill(&state);
    server.signal("TERM");
    let (code, stop_log) = server.await_exit();
    assert_eq!(code, Some(1), "{stop_log}");
    for part in [
        "the stop could not save the state",
        "No space left on device",
        "all acknowledged messages, from the log, and neither MQTT sessions",
    ] {
        assert!(stop_log.contains(part), "{stop_log}");
    }
    empty(&state);
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "a", 169).len(), 170);
    server.kill();
}

/// The log ends with a damaged segment, and the disk has no room for the next one. So the start writes the remaining messages into a base,
/// and the log has no segment until there is room.
#[test]
fn loss_is_reported_once_on_a_full_disk() {
    let state = State::new();
    // The limit is more than the file system has. A segment has 1 MiB.
    let settings = settings(&state, 64 << 20);
    let Some(_mount) = Mounted::tmpfs(&state.directory, "16m") else {
        return;
    };
    let server = Server::with(&settings);
    publish(&server, "a", "0");
    let mut stream = Stream::open(&server, "/sub/a?since=oldest", &[]);
    let position = stream.event().expect("an event").id;
    server.kill();
    let log = state.directory.join("log");
    let files = fs::read_dir(&log).expect("the log");
    for file in files.map(|entry| entry.expect("an entry").path()) {
        let name = file.file_name().expect("a name").to_string_lossy();
        if name.starts_with("spare-") {
            fs::remove_file(&file).expect("a spare file");
        } else if name.starts_with("segment-") {
            fs::write(&file, "").expect("a segment");
        }
    }
    fill(&state);
    // Makes room for a base.
    let ballast = fs::OpenOptions::new()
        .write(true)
        .open(state.directory.join("ballast"))
        .expect("the ballast");
    let len = ballast.metadata().expect("its length").len();
    ballast.set_len(len - (256 << 10)).expect("room");
    drop(ballast);
    let server = Server::with(&settings);
    server.await_log("has a damaged header");
    let first_event_after = |server: &Server| {
        let mut stream = Stream::open(server, "/sub/a", &[("Last-Event-ID", &position)]);
        stream.event().expect("an event").kind
    };
    assert_eq!(first_event_after(&server), GAP_EVENT);
    assert_eq!(try_publish(&server, "a", "1"), Some(503));
    server.kill();
    assert_verified(&state);
    let server = Server::with(&settings);
    empty(&state);
    eventually("room", || {
        is_answered(try_publish(&server, "a", &numbered(0))).then_some(())
    });
    let mut log = server.log();
    server.kill();
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "a", 0), [0]);
    log += &server.log();
    assert!(!log.contains("told a gap"), "{log}");
    server.kill();
    assert_verified(&state);
}

fn assert_verified(state: &State) {
    let mut verify = Command::new(program());
    let verified = output(verify.args(["log", "verify"]).arg(&state.directory));
    let log = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(verified.status.success(), "{log}");
}

/// Publishes until the server has ended. Returns how many publishes were answered.
fn publish_until_it_ends(server: &Server) -> usize {
    (0..)
        .take_while(|n| is_answered(try_publish(server, "a", &numbered(*n))))
        .count()
}

#[test]
fn failed_write_ends_the_process_and_loses_no_answered_message() {
    let state = State::new();
    let server = Server::with(&settings(&state, BYTES_MAX));
    publish(&server, "a", numbered(0));
    let id = server.pid().to_string();
    // Writes to a segment beyond this size now fail with EFBIG.
    let limited = output(Command::new("prlimit").args(["--fsize=131072", "--pid", &id]));
    assert!(
        limited.status.success(),
        "{}",
        String::from_utf8_lossy(&limited.stderr)
    );
    let answered = 1
        + (1..)
            .take_while(|n| is_answered(try_publish(&server, "a", &numbered(*n))))
            .count();
    server.await_log("the log in state.directory cannot be written");
    let (code, stop_log) = server.await_exit();
    assert_eq!(code, Some(1), "{stop_log}");
    assert!(
        stop_log.contains("the log in state.directory cannot be written: File too large"),
        "{stop_log}"
    );
    assert!(answered < 8, "{answered}");
    let server = Server::with(&settings(&state, BYTES_MAX));
    assert_eq!(numbers(&server, "a", answered - 1).len(), answered);
}

#[test]
#[ignore = "the file behind the loop device loses the last write that it has said to be synced on some machines"]
fn failed_disk_ends_the_process_and_loses_no_answered_message() {
    let (state, disk) = (State::new(), State::new());
    // The file system has 64 MB, but the disk below it only 10.
    let Some(disk_space) = Mounted::tmpfs(&disk.directory, "10m") else {
        return;
    };
    let loop_of = file_system(&disk.directory, 64, &[]);
    let Some(mount) = Mounted::new(&state.directory, &loop_of) else {
        return;
    };
    let settings = settings(&state, 32 << 20);
    let server = Server::with(&settings);
    let answered = publish_until_it_ends(&server);
    server.await_log("the log in state.directory cannot be written");
    let (code, stop_log) = server.await_exit();
    assert_eq!(code, Some(1), "{stop_log}");
    assert!(answered > 0);
    // The disk works again.
    drop(mount);
    disk_space.remount("size=200m");
    let remounted = Mounted::new(&state.directory, &loop_of);
    let _remounted = remounted.expect("it was mounted before");
    let server = Server::with(&settings);
    let kept_count = messages(&server, "a");
    assert!(
        kept_count >= answered,
        "{kept_count} of {answered}: {}",
        server.log()
    );
    assert_eq!(numbers(&server, "a", answered - 1).len(), answered);
}

/// A file system on which every write waits, as on a disk that hangs, until this is dropped.
struct Frozen<'a>(&'a Path);

impl Frozen<'_> {
    fn new(at: &Path) -> Frozen<'_> {
        let frozen = output(Command::new("fsfreeze").arg("-f").arg(at));
        let reason = String::from_utf8_lossy(&frozen.stderr);
        assert!(frozen.status.success(), "{reason}");
        Frozen(at)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

/// Publishes a retained value with an idempotency key. The timeout is longer than that of the server for a disk that hangs.
fn set(server: &Server, value: &str) -> Response {
    let mut conn = Conn::open(server);
    let longer = Some(Duration::from_secs(30));
    conn.stream().set_read_timeout(longer).expect("a timeout");
    let headers = [("Idempotency-Key", value), ("Crore-Retain", "true")];
    conn.ask("POST", "/pub/a", &headers, value);
    conn.response()
}

#[test]
fn value_with_an_unknown_outcome_never_replaces_a_newer_one() {
    let (state, disk) = (State::new(), State::new());
    let Some(_below) = Mounted::tmpfs(&disk.directory, "100m") else {
        return;
    };
    let image = file_system(&disk.directory, 64, &[]);
    let _mount = Mounted::new(&state.directory, &image).expect("a mounted file");
    let settings = settings(&state, 32 << 20);
    let server = Server::with(&settings);
    assert_eq!(set(&server, "first").status, 202);
    let frozen = Frozen::new(&state.directory);
    let unknown = set(&server, "unknown");
    assert_eq!(unknown.status, 503, "{}", unknown.text());
    assert!(
        unknown.text().contains("Idempotency-Key"),
        "{}",
        unknown.text()
    );
    drop(frozen);
    let newer = set(&server, "newer");
    assert_eq!(newer.status, 202, "{}", newer.text());
    // The retry is answered as the first attempt, whose message is before the newer one in the log.
    let retried = set(&server, "unknown");
    assert!(is_answered(Some(retried.status)), "{}", retried.text());
    let is_in_order = |server: &Server| {
        let mut all = Stream::open(server, "/sub/a?since=oldest", &[]);
        for expected in ["first", "unknown", "newer"] {
            assert_eq!(all.event().expect("a message").data, expected);
        }
        let mut retained = Stream::open(server, "/sub/a", &[]);
        assert_eq!(retained.event().expect("a message").data, "newer");
    };
    is_in_order(&server);
    server.kill();
    let server = Server::with(&settings);
    is_in_order(&server);
    server.kill();
}

/// The offset of the first broken byte of the file. The kernel does not read ahead as far as this when the file is opened.
const BROKEN_AT: u64 = 10 << 20;

#[test]
fn unreadable_document_is_refused_and_unchanged() {
    let (state, disk) = (State::new(), State::new());
    let Some(_below) = Mounted::tmpfs(&disk.directory, "100m") else {
        return;
    };
    // The file system has a single group of blocks, so that the documents lie behind its own data.
    let loop_of = file_system(&disk.directory, 96, &["-b", "4096", "-O", "^has_journal"]);
    let Some(mount) = Mounted::new(&state.directory, &loop_of) else {
        return;
    };
    let settings = settings(&state, 64 << 20);
    let server = Server::with(&settings);
    for n in 0..400 {
        publish(&server, "a", numbered(n));
    }
    server.stop();
    let document = state.base().join("home-0.state");
    let second_document = state.base().join("home-1.state");
    let bytes = fs::metadata(&document).expect("a document").len();
    let document = match bytes > BROKEN_AT {
        true => document,
        false => second_document,
    };
    let disk_offset = offset_on_disk(&document, BROKEN_AT);
    drop(mount);
    let image = disk.directory.join("image");
    let intact_image = fs::read(&image).expect("the image");
    let mount = Mounted::new(&state.directory, &loop_of).expect("it was mounted before");
    // The end of the disk is missing, so reads of the loop device fail there.
    let cut = fs::OpenOptions::new().write(true).open(&image);
    cut.and_then(|file| file.set_len(disk_offset))
        .expect("the image");
    let log = start_error(&state);
    let name = document.display().to_string();
    let reason = format!("{name} cannot be read: Input/output error");
    assert!(log.contains(&reason), "{log}");
    assert!(!state.directory.join("set-aside").exists(), "{log}");
    drop(mount);
    fs::write(&image, intact_image).expect("the image");
    let _mount = Mounted::new(&state.directory, &loop_of).expect("it was mounted before");
    let server = Server::with(&settings);
    assert_eq!(numbers(&server, "a", 399).len(), 400);
    server.kill();
}

/// The offset on its disk of a byte of a file.
fn offset_on_disk(path: &Path, byte: u64) -> u64 {
    let extents = output(Command::new("filefrag").args(["-v", "-b4096"]).arg(path)).stdout;
    let extents = String::from_utf8_lossy(&extents).into_owned();
    let block = byte / 4096;
    // A line of the output: "   0:        0..     739:      34816..     35555:    740: ..."
    let mut places = extents.lines().filter_map(|line| {
        let numbers = line.split(|c: char| !c.is_ascii_digit());
        let mut numbers = numbers
            .filter_map(|entry| entry.parse::<u64>().ok())
            .skip(1);
        let (first, last, first_on_disk) = (numbers.next()?, numbers.next()?, numbers.next()?);
        (first..=last)
            .contains(&block)
            .then(|| first_on_disk + block - first)
    });
    places.next_back().expect("a place") * 4096
}

/// The number of kept messages of a topic.
fn messages(server: &Server, topic: &str) -> usize {
    let json = [("Accept", "application/json")];
    let answer = once(server, "GET", &format!("/pub/{topic}"), &json, "");
    answer.json()["messages"].as_u64().expect("a number") as usize
}
