//! Runs programs for tests. A program that does not end within `PATIENCE` is killed, and the test fails.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use super::PATIENCE;

/// An environment variable that each program under `faketime` needs. Without it `faketime` also sets CLOCK_MONOTONIC ahead, and a thread
/// that waits with a timeout waits too long: the kernel knows only the real clock.
pub const REAL_MONOTONIC: &str = "FAKETIME_DONT_FAKE_MONOTONIC";

/// Runs a command, and returns its output when it has ended.
pub fn output(command: &mut Command) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    await_output(piped.spawn().expect("it starts"))
}

/// Waits until a program has ended, and returns its output.
pub fn await_output(child: Child) -> Output {
    let id = child.id().to_string();
    let (sender, outputs) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = outputs.recv_timeout(PATIENCE) else {
        // The thread has not reaped the process yet, so no other process has its id.
        let _ = Command::new("kill").args(["-s", "KILL", &id]).status();
        panic!("process {id} does not end");
    };
    output.expect("it runs")
}
