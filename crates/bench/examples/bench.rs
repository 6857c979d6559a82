//! The load tools alone, without the server: `cargo run -p crore-bench --example bench -- floor`.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    bench: crore_bench::BenchArgs,
}

fn main() -> anyhow::Result<ExitCode> {
    crore_bench::run(Args::parse().bench)
}
