//! Runs programs for tests, with a time limit for each.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use super::PATIENCE;

/// This variable must be set for a program under `faketime`. Otherwise `faketime` also sets CLOCK_MONOTONIC ahead, which the kernel does
/// not know; then a thread that waits with a timeout waits for as long as the clock is ahead.
pub const REAL_MONOTONIC: &str = "FAKETIME_DONT_FAKE_MONOTONIC";

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finished(piped.spawn().expect("it starts"))
}

/// The output of a program when it ends. A program that does not end is killed, and the test fails.
pub fn finished(child: Child) -> Output {
    let id = child.id().to_string();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    let Ok(output) = told.recv_timeout(PATIENCE) else {
        // The thread has not reaped the process yet, so no other process has its id.
        let _ = Command::new("kill").args(["-s", "KILL", &id]).status();
        panic!("process {id} does not end");
    };
    output.expect("it runs")
}
