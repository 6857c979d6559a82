//! Measures the sides of `durable` that need no server: the bare loop, which only writes and syncs, and SQLite's shell.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};

/// Size of the bare loop's file, in bytes: the size of a server's log segment. At the end of the file the loop continues at its beginning.
const FILE_BYTES: u64 = 64 << 20;

/// Writes and syncs `at_once` messages in a loop. Returns messages a second.
pub fn floor(
    directory: &Path,
    zeros: bool,
    at_once: u32,
    size: usize,
    seconds: f64,
) -> Result<f64> {
    let path = directory.join("floor");
    let mut file = allocated(&path, zeros)?;
    let bytes = vec![b'x'; at_once as usize * size];
    let (begin, mut messages, mut at) = (Instant::now(), 0, 0);
    while begin.elapsed().as_secs_f64() < seconds {
        if at + bytes.len() as u64 > FILE_BYTES {
            // The server does not overwrite a segment, so the loop begins a new file here.
            if !zeros {
                file = allocated(&path, false)?;
            }
            at = 0;
        }
        file.write_all_at(&bytes, at)?;
        file.sync_data()?;
        at += bytes.len() as u64;
        messages += at_once;
    }
    let rate = f64::from(messages) / begin.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

fn allocated(path: &Path, zeros: bool) -> Result<File> {
    let _ = std::fs::remove_file(path);
    let file = File::create_new(path)?;
    if zeros {
        file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
    } else {
        fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// The version of a program, if it is installed.
pub fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(String::from)
}

/// Inserts `at_once` messages in each transaction. Returns messages a second. The shell answers each transaction with a line.
pub fn sqlite(directory: &Path, at_once: u32, size: usize, seconds: f64) -> Result<f64> {
    let path = directory.join("sqlite");
    let mut shell = Command::new("sqlite3")
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("sqlite3 is not there")?;
    let mut words = BufWriter::new(shell.stdin.take().context("a pipe was asked for")?);
    let mut answers = shell.stdout.take().context("a pipe was asked for")?;
    let mut answered = |count: usize| {
        let mut bytes = vec![0; count];
        answers.read_exact(&mut bytes)
    };
    writeln!(words, "PRAGMA journal_mode = WAL;")?;
    writeln!(words, "PRAGMA synchronous = FULL;")?;
    writeln!(
        words,
        "CREATE TABLE message (id INTEGER PRIMARY KEY, topic TEXT, data TEXT);"
    )?;
    writeln!(words, ".print .")?;
    words.flush()?;
    answered("wal\n.\n".len())?;
    let data = "x".repeat(size);
    let (begin, mut messages) = (Instant::now(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        writeln!(words, "BEGIN;")?;
        for topic in 0..at_once {
            writeln!(
                words,
                "INSERT INTO message (topic, data) VALUES ('/p/s{topic}/-', '{data}');"
            )?;
        }
        writeln!(words, "COMMIT;\n.print .")?;
        words.flush()?;
        answered(".\n".len())?;
        messages += at_once;
    }
    let rate = f64::from(messages) / begin.elapsed().as_secs_f64();
    drop(words);
    ensure!(shell.wait()?.success(), "sqlite3 has failed");
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(directory.join(format!("sqlite{suffix}")));
    }
    Ok(rate)
}
