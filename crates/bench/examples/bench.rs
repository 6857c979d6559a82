//! The load tools alone, without the server, as `crore bench` would run them:
//! `cargo run -p crore-bench --example bench -- bench floor`.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Measure a server
    Bench(crore_bench::BenchArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    let Command::Bench(args) = Command::parse();
    crore_bench::run(args)
}
