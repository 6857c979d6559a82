//! Generates man pages and shell completions for packages (`packaging/`) from the definition of the command line.

use std::io;
use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::stdout::print;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::program(), "crore", &mut text);
    print(&text)
}

/// Writes a man page for the program, and one for each of its commands.
pub fn write_man_pages(directory: &Path) -> anyhow::Result<()> {
    let error_context = || format!("cannot write man pages into {}", directory.display());
    std::fs::create_dir_all(directory).with_context(error_context)?;
    let mut program = Cli::program().disable_help_subcommand(true);
    program.build();
    write_man_page(&program, directory).with_context(error_context)
}

fn write_man_page(command: &Command, directory: &Path) -> io::Result<()> {
    for command in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_man_page(command, directory)?;
    }
    let after_help = command.get_after_help().map(ToString::to_string);
    let mut text = Vec::new();
    let man = Man::new(command.clone().after_help(None::<&str>))
        .source(concat!("crore ", env!("CARGO_PKG_VERSION")));
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend_from_slice(sections(&after_help.unwrap_or_default()).as_bytes());
    std::fs::write(directory.join(man.get_filename()), text)
}

/// The text below a command's flags, in roff, as the sections NOTES and EXAMPLES. Line ends are kept.
fn sections(after_help: &str) -> String {
    let (mut notes, mut examples, mut is_example) = (String::new(), String::new(), false);
    for line in after_help.lines() {
        match line {
            "Examples:" => is_example = true,
            "" if is_example && !examples.is_empty() => is_example = false,
            line if is_example => examples.push_str(&format!("{}\n", literal(line))),
            line => notes.push_str(&format!("{}\n", literal(line))),
        }
    }
    let section = |heading: &str, text: &str| match text.trim().is_empty() {
        true => String::new(),
        false => format!(".SH {heading}\n.nf\n{}\n.fi\n", text.trim_end()),
    };
    section("NOTES", notes.trim_start()) + &section("EXAMPLES", &examples)
}

/// A line, escaped so that roff shows it unchanged.
fn literal(line: &str) -> String {
    // Roff would replace these characters with typographic ones, which shells do not accept.
    let escapes = [
        ("\\", "\\e"),
        ("-", "\\-"),
        ("'", "\\(aq"),
        ("`", "\\(ga"),
        ("~", "\\(ti"),
        ("^", "\\(ha"),
    ];
    let line = escapes.iter().fold(line.to_string(), |line, (sign, name)| {
        line.replace(sign, name)
    });
    // A dot at the start of a line begins a roff request.
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line,
    }
}
