//! Finds programs that some tests need, and that a machine may lack. A test without its program does nothing and says so. With
//! `CRORE_TOOLS=required`, which `cargo xtask test` sets, it fails instead.

/// Whether a program of this name is in `PATH`.
pub fn is_in_path(tool: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(tool).is_file())
}

/// Whether a program of this name is in `PATH`. If it is missing: panics if `CRORE_TOOLS=required` is set, else prints a note and returns false.
#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]
pub fn has(tool: &str) -> bool {
    let found = is_in_path(tool);
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
