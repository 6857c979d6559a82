//! Tests of the log in a real directory, and of the thread that commits.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use crore_disk::{
    Directory, Engine, Identity, Log, LogSpace, OpenError, Options, ScanError, ScanEvent, scan,
};

const IDENTITY: Identity = Identity { log: 7, seed: 8 };
const OPTIONS: Options = Options {
    segment_bytes: 1 << 20,
    bytes_max: u64::MAX,
    first_segment: 1,
    checkpoint_group: 0,
};

/// A directory that is removed at the end of the test.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("crore-disk-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        TestDirectory(path)
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.0.join(format!("segment-{number:010}.log"))
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> Result<Log<Directory>, ScanError> {
    let directory = Directory::lock(path).expect("a directory");
    Ok(Log::open(directory, OPTIONS, IDENTITY, |_| ())?.0)
}

/// The batches in the log of a directory, and the number of losses.
fn read(path: &Path) -> (Vec<Vec<u8>>, usize) {
    let directory = Directory::read_only(path).expect("a directory");
    let mut batches = Vec::new();
    let found = scan(&directory, (None, None), |it| {
        if let ScanEvent::Batch(_, batch) = it {
            batches.push(batch.to_vec());
        }
    });
    (batches, found.expect("a log").damages.len())
}

#[test]
fn a_log_comes_back_with_its_identity() {
    let scratch = TestDirectory::new("back");
    let mut log = open(&scratch.0).expect("a new log");
    log.commit([&b"one"[..], b"two"]).expect("there is room");
    drop(log);
    let directory = Directory::lock(&scratch.0).expect("the lock is free again");
    let other = Identity { log: 1, seed: 2 };
    let (mut log, found) = Log::open(directory, OPTIONS, other, |_| ()).expect("a log");
    assert_eq!((log.identity(), found.batches), (IDENTITY, 2));
    log.commit([&b"three"[..]]).expect("there is room");
    drop(log);
    let batches = ["one", "two", "three"].map(|it| it.as_bytes().to_vec());
    assert_eq!(read(&scratch.0), (batches.to_vec(), 0));
    let mode = fs::metadata(&scratch.0)
        .expect("a directory")
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o777,
        0o700,
        "messages are for the server's user only"
    );
}

#[test]
fn one_process_has_a_directory() {
    let scratch = TestDirectory::new("lock");
    let held = Directory::lock(&scratch.0).expect("a directory");
    let second = Directory::lock(&scratch.0);
    assert!(matches!(second, Err(OpenError::Locked(_))), "{second:?}");
    drop(held);
    assert!(Directory::lock(&scratch.0).is_ok());
}

#[test]
fn files_that_are_none_of_the_log_are_left_alone_and_named() {
    let scratch = TestDirectory::new("foreign");
    let mut log = open(&scratch.0).expect("a new log");
    log.commit([&b"one"[..]]).expect("there is room");
    drop(log);
    for name in [
        "notes.txt",
        "segment-1.log",
        "segment-0000000002.log.bak",
        "spare-keys",
    ] {
        fs::write(scratch.0.join(name), "x").expect("it is written");
    }
    let directory = Directory::lock(&scratch.0).expect("a directory");
    let (_, found) = Log::open(directory, OPTIONS, IDENTITY, |_| ()).expect("a log");
    assert_eq!(
        found.foreign_files,
        [
            "notes.txt",
            "segment-0000000002.log.bak",
            "segment-1.log",
            "spare-keys"
        ]
    );
    assert!(scratch.0.join("notes.txt").exists());
}

#[test]
fn a_symbolic_link_in_a_segments_place_is_refused() {
    let scratch = TestDirectory::new("link");
    let mut log = open(&scratch.0).expect("a new log");
    log.commit([&b"one"[..]]).expect("there is room");
    drop(log);
    let moved = scratch.0.join("elsewhere");
    fs::rename(scratch.segment(1), &moved).expect("it moves");
    symlink(&moved, scratch.segment(1)).expect("a link");
    let refused = open(&scratch.0).err().expect("it is refused");
    assert!(matches!(refused, ScanError::NotRegularFile(_)), "{refused}");
}

#[test]
fn a_segment_of_another_log_or_of_a_newer_format_is_refused() {
    let (scratch, other) = (TestDirectory::new("one"), TestDirectory::new("other"));
    for (scratch, identity) in [(&scratch, IDENTITY), (&other, Identity { log: 9, seed: 8 })] {
        let directory = Directory::lock(&scratch.0).expect("a directory");
        let (mut log, _) = Log::open(directory, OPTIONS, identity, |_| ()).expect("a new log");
        for _ in 0..3 {
            log.commit([&[0; 600 << 10][..]]).expect("there is room");
        }
    }
    fs::copy(other.segment(2), scratch.segment(2)).expect("it is copied");
    let refused = open(&scratch.0).err().expect("it is refused");
    assert!(matches!(refused, ScanError::OtherLog(_)), "{refused}");

    let mut bytes = fs::read(other.segment(3)).expect("a segment");
    bytes[8] = 99;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(other.segment(3), &bytes).expect("it is written");
    let refused = open(&other.0).err().expect("it is refused").to_string();
    assert!(refused.contains("version 99"), "{refused}");
}

/// Mounts a file system of 4 MiB; `None` if this user may not mount.
fn small_file_system(scratch: &TestDirectory) -> Option<impl Drop> {
    struct Mounted(PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    fs::create_dir_all(&scratch.0).expect("a directory");
    let mut mount = Command::new("mount");
    let mount = mount.args(["-t", "tmpfs", "-o", "size=4m", "crore-test"]);
    let mounted = mount
        .arg(&scratch.0)
        .status()
        .is_ok_and(|status| status.success());
    mounted.then(|| Mounted(scratch.0.clone()))
}

#[test]
fn full_file_system_stops_the_log_until_space_is_free() {
    let scratch = TestDirectory::new("full");
    let Some(_mounted) = small_file_system(&scratch) else {
        return;
    };
    let filler = scratch.0.join("filler");
    fs::write(&filler, vec![1; 1 << 20]).expect("there is room");
    let (answer, answered) = mpsc::channel();
    let log = open(&scratch.0).expect("a new log");
    let committed = move |group: Vec<Vec<u8>>| {
        group
            .into_iter()
            .for_each(|it| answer.send(it).expect("a reader"))
    };
    let engine =
        Engine::start(log, committed, |_| (), |error| panic!("{error}")).expect("a thread");
    // These 4 MiB of batches do not fit into the file system beside the filler file.
    for number in 0..64_u8 {
        engine.append_all([vec![number; 64 << 10]]);
    }
    let first: Vec<Vec<u8>> = answered.iter().take(20).collect();
    assert_eq!(first.len(), 20);
    fs::remove_file(&filler).expect("it is there");
    // The batches for which there is room now are committed. The rest waits, and is never acknowledged.
    let second: Vec<Vec<u8>> = answered.iter().take(20).collect();
    let numbers = first.iter().chain(&second).map(|batch| batch[0]);
    assert!(numbers.eq(0..40));
    drop(engine);
    assert!(answered.iter().count() < 24);
}

#[test]
fn full_log_reports_it_and_continues_when_segments_are_removed() {
    let scratch = TestDirectory::new("removed");
    let directory = Directory::lock(&scratch.0).expect("a directory");
    let options = Options {
        bytes_max: 6 << 20,
        ..OPTIONS
    };
    let (log, _) = Log::open(directory, options, IDENTITY, |_| ()).expect("a new log");
    let (answer, answered) = mpsc::channel();
    let committed = move |group: Vec<Vec<u8>>| {
        group
            .into_iter()
            .for_each(|it| answer.send(it).expect("a reader"))
    };
    let (say, said) = mpsc::channel();
    let mut was_full = false;
    let room = move |room: LogSpace| {
        if std::mem::replace(&mut was_full, room.is_full) != room.is_full {
            say.send(room.is_full).expect("a listener");
        }
    };
    let failed = |error| panic!("{error}");
    let engine = Engine::start(log, committed, room, failed).expect("a thread");
    let mut sent = 0;
    for round in 1..4_u8 {
        while !engine.state().is_full {
            engine.append_all([vec![round; 64 << 10]]);
            assert_eq!(answered.recv().expect("it is answered")[0], round);
            sent += 1;
        }
        let usage = engine.state().usage;
        assert_eq!(usage.bytes, 6 << 20);
        // The thread notices the new space although it has nothing to commit.
        engine.remove_before(usage.last_sealed + 1, 0);
        while engine.state().is_full {
            std::thread::yield_now();
        }
        assert!(!scratch.segment(usage.last_sealed).exists());
        assert_eq!(engine.state().usage.sealed_bytes, 0);
    }
    assert!(sent > 3 * 3 * 15 && engine.state().syncs >= sent);
    assert!(engine.state().usage.bytes <= 6 << 20);
    drop(engine);
    assert!(said.iter().eq([true, false].repeat(3)));
}

/// While a log reports that it is full, no client sends anything that would wake its thread.
#[test]
fn log_filled_by_a_long_batch_continues_by_itself_when_there_is_room() {
    let scratch = TestDirectory::new("long");
    let directory = Directory::lock(&scratch.0).expect("a directory");
    let options = Options {
        bytes_max: 6 << 20,
        ..OPTIONS
    };
    let (log, _) = Log::open(directory, options, IDENTITY, |_| ()).expect("a new log");
    let (answer, answered) = mpsc::channel();
    let committed = move |group: Vec<Vec<u8>>| answer.send(group.len()).expect("a reader");
    let (say, said) = mpsc::channel();
    let mut was_full = false;
    let room = move |room: LogSpace| {
        if std::mem::replace(&mut was_full, room.is_full) != room.is_full {
            say.send(room.is_full).expect("a listener");
        }
    };
    let engine = Engine::start(log, committed, room, |error| panic!("{error}")).expect("a thread");
    while engine.state().usage.last_sealed == 0 {
        engine.append_all([vec![1; 64 << 10]]);
        assert_eq!(answered.recv(), Ok(1));
    }
    // A group needs its own file if it is longer than a segment. Together with two segments and two spare files, this file of 2.5 MiB
    // makes the log half a MiB too large.
    engine.append_all([vec![2; 5 << 19]]);
    assert_eq!(said.recv(), Ok(true));
    engine.remove_before(2, 0);
    assert_eq!(answered.recv(), Ok(1));
    let forever = std::time::Duration::from_secs(60);
    assert_eq!(said.recv_timeout(forever), Ok(false));
}

#[test]
fn a_log_is_full_within_the_reserve_and_still_commits_and_seals() {
    let scratch = TestDirectory::new("reserve");
    let (answer, answered) = mpsc::channel();
    let log = open(&scratch.0).expect("a new log");
    let committed = move |group: Vec<Vec<u8>>| answer.send(group.len()).expect("a reader");
    let engine =
        Engine::start(log, committed, |_| (), |error| panic!("{error}")).expect("a thread");
    let becomes = |is_full| {
        while engine.state().is_full != is_full {
            std::thread::yield_now();
        }
    };
    // Reserves more space than any disk has, then none.
    for (reserve, is_full) in [(u64::MAX, true), (0, false), (u64::MAX, true)] {
        engine.reserve(reserve, 0);
        becomes(is_full);
        engine.append_all([vec![1; 1000]]);
        assert_eq!(answered.recv(), Ok(1));
        // The spare files exist. So the log can seal the segment, and a checkpoint can replace the deleted data in it.
        let segment = engine.end().segment;
        assert!(engine.seal());
        assert_eq!(engine.end().segment, segment + 1);
        assert!(engine.seal(), "there is nothing in it");
        assert_eq!(engine.end().segment, segment + 1);
    }
    engine.remove_spares();
    let files = fs::read_dir(&scratch.0).expect("the log");
    let names = files.map(|it| it.expect("a file").file_name());
    let spares = names.filter(|it| it.to_string_lossy().starts_with("spare-"));
    assert_eq!(spares.count(), 0);
}

#[test]
fn each_batch_is_answered_once_in_order_and_is_on_disk_then() {
    let scratch = TestDirectory::new("engine");
    let (answer, answered) = mpsc::channel();
    let log = open(&scratch.0).expect("a new log");
    let committed = move |group: Vec<Vec<u8>>| answer.send(group).expect("a reader");
    let engine =
        Engine::start(log, committed, |_| (), |error| panic!("{error}")).expect("a thread");
    let numbers = |group: &[Vec<u8>]| -> Vec<u32> {
        let number = |it: &Vec<u8>| u32::from_le_bytes(it[..4].try_into().expect("a number"));
        group.iter().map(number).collect()
    };
    let mut all = Vec::new();
    for number in 0..2000_u32 {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(4 + number as usize % 3000, 1);
        engine.append_all([bytes]);
        if number % 500 == 0 {
            all.extend(numbers(&answered.recv().expect("an answer")));
            let (batches, losses) = read(&scratch.0);
            assert!(batches.len() >= all.len() && losses == 0);
        }
    }
    drop(engine);
    answered
        .iter()
        .for_each(|group| all.extend(numbers(&group)));
    assert!(all.iter().copied().eq(0..2000));
    assert_eq!(read(&scratch.0).0.len(), 2000);
}
