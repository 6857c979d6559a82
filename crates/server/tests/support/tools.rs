//! Finds programs that some tests need and that a machine may lack. With `CRORE_TOOLS=required`, as `cargo xtask test` sets it, a test
//! without its program fails. Otherwise it prints what it leaves out.

/// Whether a tool is in `PATH`.
pub fn is_there(tool: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(tool).is_file())
}

/// Whether a tool is in `PATH`. Panics if it is missing and required.
#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]
pub fn has(tool: &str) -> bool {
    let found = is_there(tool);
    let required = std::env::var_os("CRORE_TOOLS").is_some_and(|value| value == "required");
    assert!(
        found || !required,
        "{tool} is missing, and CRORE_TOOLS=required"
    );
    if !found {
        eprintln!("left out: what needs {tool}, which is not in PATH");
    }
    found
}
