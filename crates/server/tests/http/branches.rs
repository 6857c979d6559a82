//! Tests logs that are restored from a backup. Such a log is a new branch: it continues without the messages after the backup. A client
//! with a position from the lost part is told a gap (that it missed messages). A position from before the backup stays valid, and so does
//! each position of a log that was not restored.

use std::fs;
use std::path::{Path, PathBuf};

use crore_wire::sse::GAP_EVENT;

use crate::support::http::{once, publish};
use crate::support::state::State;
use crate::support::stream::{Event, Stream};
use crate::support::{Server, eventually};

/// Targets that subscribe to the topic `a`. Each has its own form of positions.
const TARGETS: [&str; 3] = ["/sub/a", "/sub?topic=a&topic=b", "/sub?filter=a/%23"];

/// Copies the directory of a running server. SIGSTOP suspends the server meanwhile, so that no file changes.
fn snapshot(server: &Server, state: &Path) -> PathBuf {
    server.signal("STOP");
    eventually("all threads stand still", || {
        let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
        let stopped = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state of the process follows its name, which is in parentheses and may contain any character.
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        let mut threads = threads.map(|thread| thread.expect("a thread"));
        threads.all(stopped).then_some(())
    });
    let copied = copy(state);
    server.signal("CONT");
    copied
}

/// Copies a state directory, as `cp -a` does.
fn copy(state: &Path) -> PathBuf {
    let copy = state.with_extension("copy");
    let _ = fs::remove_dir_all(&copy);
    copy_into(state, &copy);
    copy
}

fn copy_into(from: &Path, copy: &Path) {
    fs::create_dir(copy).expect("a directory");
    for entry in fs::read_dir(from).expect("the directory") {
        let entry = entry.expect("an entry");
        let (path, target) = (entry.path(), copy.join(entry.file_name()));
        match path.is_dir() {
            true => copy_into(&path, &target),
            false => drop(fs::copy(&path, &target).expect("a copy")),
        }
    }
}

/// Replaces the directory with the copy.
fn restore(copy: &Path, state: &Path) {
    fs::remove_dir_all(state).expect("the directory");
    copy_into(copy, state);
}

fn publish_all(server: &Server, texts: &[&str]) {
    for text in texts {
        publish(server, "a", text);
    }
}

/// The first `count` messages of the topic `a` with their positions, in the form of this target.
fn first_events(server: &Server, target: &str, count: usize) -> Vec<Event> {
    let with_since = format!(
        "{target}{}since=oldest",
        if target.contains('?') { '&' } else { '?' }
    );
    let mut stream = Stream::open(server, &with_since, &[]);
    let events = (0..count).map(|_| stream.event().expect("an event"));
    events.collect()
}

/// The first `count` events after `position`: the data of a message, or the name of a gap event.
fn events_after(server: &Server, target: &str, position: &str, count: usize) -> Vec<String> {
    let headers = [("Last-Event-ID", position), ("Cache-Control", "no-cache")];
    let mut stream = Stream::open(server, target, &headers);
    let events = (0..count).map(|_| stream.event().expect("an event"));
    let data_or_kind = |event: Event| match event.kind.as_str() {
        "message" => event.data,
        _ => event.kind,
    };
    events.map(data_or_kind).collect()
}

#[test]
fn positions_from_after_a_restored_backup_get_a_gap() {
    // How the backup is made (of a running server, after a stop, or after a crash), and whether messages are durable or survive only
    // planned restarts.
    for (way_to_copy, durable) in [
        ("runs", true),
        ("stops", true),
        ("crashes", true),
        ("stops", false),
    ] {
        let state = if durable {
            State::new()
        } else {
            State::for_planned_restarts()
        };
        let mut server = Server::with(&state.settings());
        publish_all(&server, &["1", "2", "3"]);
        let early_events = TARGETS.map(|target| first_events(&server, target, 3));
        let backup = match way_to_copy {
            "runs" => snapshot(&server, &state.directory),
            target => {
                match target {
                    "stops" => drop(server.stop()),
                    _ => server.kill(),
                }
                let backup = copy(&state.directory);
                server = Server::with(&state.settings());
                backup
            }
        };
        publish_all(&server, &["old-4", "old-5", "old-6"]);
        let late_events = TARGETS.map(|target| first_events(&server, target, 6));
        for (target, late_events) in TARGETS.iter().zip(&late_events) {
            assert_eq!(
                events_after(&server, target, &late_events[4].id, 1),
                ["old-6"],
                "{target}"
            );
        }
        server.stop();
        restore(&backup, &state.directory);
        let server = Server::with(&state.settings());
        let expect_gap = |case: &str| {
            for (target, late_events) in TARGETS.iter().zip(&late_events) {
                for event in &late_events[3..] {
                    let first = &events_after(&server, target, &event.id, 1)[0];
                    assert_eq!(
                        first, GAP_EVENT,
                        "{way_to_copy}, {target}, {}: {case}",
                        event.data
                    );
                }
            }
        };
        expect_gap("at once");
        // The new messages have the same offsets as the lost ones.
        publish_all(&server, &["new-4"]);
        expect_gap("behind one");
        publish_all(&server, &["new-5", "new-6", "new-7"]);
        expect_gap("behind several");
        let target = format!("/history/a?since={}", late_events[0][5].id);
        assert!(
            once(&server, "GET", &target, &[], "")
                .header("crore-gap")
                .is_some()
        );
        let tag = [("If-None-Match", late_events[0][5].id.as_str())];
        assert!(
            once(&server, "GET", "/sub/a", &tag, "")
                .header("crore-gap")
                .is_some()
        );
        // Positions that both branches share: each later message comes, and no gap is told.
        for (target, early_events) in TARGETS.iter().zip(&early_events) {
            let after_backup = ["3", "new-4", "new-5", "new-6", "new-7"];
            assert_eq!(
                events_after(&server, target, &early_events[1].id, 5),
                after_backup,
                "{way_to_copy}, {target}"
            );
        }
        fs::remove_dir_all(backup).expect("the copy");
    }
}

#[test]
fn servers_with_copies_of_one_directory_distinguish_their_positions() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish_all(&server, &["1"]);
    let common = first_events(&server, TARGETS[0], 1);
    server.stop();
    let copied = State::new();
    copy_into(&state.directory, &copied.directory);
    let servers = [&state, &copied].map(|state| Server::with(&state.settings()));
    let branches: [[&str; 2]; 2] = [["a2", "a3"], ["b2", "b3"]];
    for (server, texts) in servers.iter().zip(branches) {
        publish_all(server, &texts);
        assert_eq!(events_after(server, TARGETS[0], &common[0].id, 2), texts);
    }
    for target in TARGETS {
        let [first, second] = [0, 1].map(|n| first_events(&servers[n], target, 3));
        for (server, foreign) in [(&servers[1], first), (&servers[0], second)] {
            for event in &foreign[1..] {
                assert_eq!(
                    events_after(server, target, &event.id, 1),
                    [GAP_EVENT],
                    "{target}"
                );
            }
        }
    }
}

/// After stops, crashes and planned restarts there is one branch, and each position stays valid.
#[test]
fn log_that_was_not_restored_causes_no_gap() {
    for state in State::of_both_kinds() {
        let mut server = Server::with(&state.settings());
        let mut positions: Vec<[String; 3]> = Vec::new();
        let kills = state.settings().contains("durable = false");
        for round in 0..6 {
            publish_all(&server, &[&round.to_string()]);
            let count = positions.len() + 1;
            positions.push(
                TARGETS.map(|target| first_events(&server, target, count)[count - 1].id.clone()),
            );
            match round % 2 == 0 || kills {
                true => drop(server.stop()),
                false => server.kill(),
            }
            server = Server::with_shards(1 + round % 3, &state.settings());
            for (n, positions_of_round) in positions.iter().enumerate().take(count - 1) {
                let later: Vec<_> = (n + 1..count).map(|n| n.to_string()).collect();
                for (target, position) in TARGETS.iter().zip(positions_of_round) {
                    assert_eq!(
                        events_after(&server, target, position, later.len()),
                        later,
                        "{target}"
                    );
                }
            }
            // After the newest position there is no message until the next one is published.
            let newest = &positions[count - 1][0];
            let target = format!("/history/a?since={newest}");
            let history = once(&server, "GET", &target, &[], "");
            assert_eq!(
                (history.text(), history.header("crore-gap")),
                ("[]\n", None)
            );
        }
    }
}

/// The file `lives` records the starts of the server. If it is damaged, no earlier position is certain, so clients are told a gap once.
#[test]
fn damaged_file_of_lives_is_a_gap() {
    let state = State::new();
    let server = Server::with(&state.settings());
    publish_all(&server, &["1", "2"]);
    server.kill();
    let server = Server::with(&state.settings());
    let position = first_events(&server, TARGETS[0], 1)[0].id.clone();
    server.kill();
    let note = state.directory.join("lives");
    let text = fs::read_to_string(&note).expect("a note");
    fs::write(&note, text.replace("sum", "sun")).expect("a note");
    let server = Server::with(&state.settings());
    server.await_log("`lives` is damaged");
    assert_eq!(
        events_after(&server, TARGETS[0], &position, 3),
        [GAP_EVENT, "1", "2"]
    );
    let position = first_events(&server, TARGETS[0], 1)[0].id.clone();
    server.kill();
    for _ in 0..2 {
        let server = Server::with_shards(2, &state.settings());
        assert_eq!(events_after(&server, TARGETS[0], &position, 1), ["2"]);
        server.kill();
    }
}
