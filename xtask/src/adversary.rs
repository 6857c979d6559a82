//! `cargo xtask adversary`: runs attackers beside honest clients for a chosen time (`crates/server/tests/adversary`).

use anyhow::{Context, Result, bail};

use crate::run::Program;

/// The maximum delay of an honest client that the server may cause, in milliseconds. The ordinary test run allows more, because a debug build is slow and
/// other tests run at the same time.
const LATE_MS: &str = "1000";

/// Default duration, which is enough for a few rounds.
const MINUTES: u64 = 5;

/// Builds the test and runs it with these arguments.
pub fn run(args: &[&str]) -> Result<()> {
    let mut test =
        Program::new("cargo").args(["test", "--package", "crore", "--test", "adversary"]);
    let mut minutes = MINUTES;
    let mut rest = args;
    while let [name, after @ ..] = rest {
        if *name == "--release" {
            test = test.args(["--release"]);
            rest = after;
            continue;
        }
        let [value, after @ ..] = after else {
            bail!("{name}: its value is missing");
        };
        test = match *name {
            "--minutes" => {
                minutes = value.parse().context("--minutes: a number")?;
                test
            }
            "--seed" => test.env("CRORE_ADVERSARY_SEED", value),
            "--each" => test.env("CRORE_ADVERSARY_EACH", value),
            "--json" => test.env("CRORE_ADVERSARY_JSON", std::path::absolute(value)?),
            "--only" => test.env("CRORE_ADVERSARY_ONLY", value),
            "--server" => test.env("CRORE_TEST_PROGRAM", std::path::absolute(value)?),
            _ => bail!("adversary: unknown argument {name:?}"),
        };
        rest = after;
    }
    test.args(["--locked", "honest_clients", "--", "--nocapture"])
        .env("CRORE_ADVERSARY_SECONDS", (minutes * 60).to_string())
        .env("CRORE_ADVERSARY_LATE_MS", LATE_MS)
        .run()
}
