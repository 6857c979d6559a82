//! Tests a small disk, of the size in a bug report: ext4 of 420 MiB on a loop device. The log fills it, deletes make room, and at the end
//! the space is free in the file system too. `failing_disk` has the tests of full disks in memory.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::directory::{is_answered, numbers, try_publish};
use super::mounted::{Mounted, file_system};
use crate::support::http::{Conn, once};
use crate::support::program::output;
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::{Server, eventually, until};

const DISK_MIB: u64 = 420;
const MESSAGE_BYTES: usize = 250_000;
/// Number of refusals in a row after which no checkpoint makes room any more.
const REFUSALS: u32 = 25;
/// Maximum bytes in use when all messages were deleted and erased. They are the open segment and two spare ones (a sixteenth of the disk
/// each), and a sixteenth for the empty base, the reserve for the next one, and ext4 itself.
const REMAINING_BYTES_MAX: u64 = 4 * (DISK_MIB << 20) / 16;

fn message(n: usize) -> String {
    format!("{n} {}", "x".repeat(MESSAGE_BYTES))
}

/// The bytes in use of the file system that contains `directory`.
fn used_bytes(directory: &Path) -> u64 {
    let df_output = output(
        Command::new("df")
            .args(["--output=used", "-B1"])
            .arg(directory),
    )
    .stdout;
    let df_output = String::from_utf8(df_output).expect("text");
    let used = df_output
        .lines()
        .nth(1)
        .and_then(|field| field.trim().parse().ok());
    used.expect("a number of bytes")
}

/// Publishes each message in its own topic until the disk is full. Returns the number of answered publishes.
fn fill(server: &Server) -> usize {
    let (mut created, mut refused) = (0, 0);
    while refused < REFUSALS {
        let status = try_publish(server, &format!("t/{created}"), &message(created));
        if status == Some(503) {
            refused += 1;
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        assert!(is_answered(status), "{status:?}");
        (created, refused) = (created + 1, 0);
        assert!(
            created * MESSAGE_BYTES < (DISK_MIB as usize) << 20,
            "the disk is not full"
        );
    }
    created
}

fn delete(server: &Server, n: usize) {
    let answer = once(server, "DELETE", &format!("/pub/t/{n}"), &[], "");
    assert_eq!(answer.status, 200, "{n}: {}", answer.text());
}

fn is_kept(n: usize) -> bool {
    n.is_multiple_of(5)
}

/// Checks that each kept topic has its message, and that the deleted ones do not exist.
fn assert_kept_messages(server: &Server, created: usize) {
    let mut conn = Conn::open(server);
    for n in 0..created {
        match is_kept(n) {
            true => {
                let mut stream = Stream::open(server, &format!("/sub/t/{n}?since=oldest"), &[]);
                assert!(stream.event().expect("a message").data == message(n), "{n}");
            }
            false => assert_eq!(conn.get(&format!("/pub/t/{n}"), &[]).status, 404, "{n}"),
        }
    }
}

#[test]
fn disk_filled_by_the_log_is_freed_after_deletes() {
    let (state, disk) = (State::new(), State::new());
    let Some(_below) = Mounted::tmpfs(&disk.directory, "450m") else {
        return;
    };
    let image = file_system(&disk.directory, DISK_MIB, &[]);
    let _mount = Mounted::new(&state.directory, &image).expect("a mounted file");
    let settings = |state_settings: &str| {
        format!(
            "{}bytes_max = '1 GiB'\n{state_settings}[limits]\nlog_bytes = '1 GiB'\nmemory_bytes = '2 GiB'\n",
            state.settings()
        )
    };
    let mut server = Server::with(&settings(""));
    let created = fill(&server);
    (0..created)
        .filter(|n| !is_kept(*n))
        .for_each(|n| delete(&server, n));
    eventually("room", || {
        is_answered(try_publish(&server, "new", &message(0))).then_some(())
    });
    // The stop fails unless it saves everything.
    server.stop();
    server = Server::with(&settings(""));
    assert_kept_messages(&server, created);
    server.kill();
    // Without this, two segments of deleted messages may stay, because a checkpoint is not worth its work for less.
    server = Server::with(&settings("erase_within_s = 2\n"));
    assert_kept_messages(&server, created);
    assert_eq!(numbers(&server, "new", 0), [0]);
    (0..created)
        .filter(|n| is_kept(*n))
        .for_each(|n| delete(&server, n));
    until("room on the disk", || {
        used_bytes(&state.directory) <= REMAINING_BYTES_MAX
    });
    server.stop();
}
