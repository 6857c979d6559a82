//! The program `crore-bench`. Its code is in the library.

use std::process::ExitCode;

use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: crore_net::memory::PoolAllocator = crore_net::memory::PoolAllocator;

fn main() -> ExitCode {
    crore_bench::run(&crore_bench::Cli::parse())
}
