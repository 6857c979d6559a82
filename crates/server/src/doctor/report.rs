//! Formats the doctor's findings as text and as JSON.

use serde_json::{Value, json};

use super::bounds::Bound;
use super::checks::{Check, Verdict};
use super::findings::Findings;
use super::memory_estimate::MemoryEstimate;
use crate::settings::numbers::{format_bytes, format_count};

/// Width of the text, in columns.
const WIDTH: usize = 110;
/// Columns before the text of a check.
const INDENT: usize = 10;

/// The maximum number of bounds that the summary shows.
const SUMMARY_BOUNDS: usize = 3;
/// The maximum number of checks that the summary shows, so that the summary fits a terminal.
const SUMMARY_CHECKS: usize = 6;

/// The summary: the tightest limits, the necessary changes, and the verdict.
pub fn summary(findings: &Findings) -> String {
    let mut out = headline(findings);
    out.push_str(
        "\nLimits, the tightest first, and the number of connections that each permits:\n",
    );
    out.push_str(&format_bounds(
        &findings.bounds[..findings.bounds.len().min(SUMMARY_BOUNDS)],
        findings,
    ));
    let estimate = &findings.memory_estimate;
    let mark = if estimate.exceeds_available() {
        ">"
    } else {
        " "
    };
    let available = estimate
        .available
        .map_or("unknown".to_string(), format_bytes);
    out.push_str(&format!(
        "{mark} memory that Crore may use when everything is full: {} of {available} available\n",
        format_bytes(estimate.bytes())
    ));
    let changes = findings.checks.iter().filter(|it| it.has_change());
    let mut changes: Vec<&Check> = changes.collect();
    changes.sort_by_key(|check| check.verdict);
    if !changes.is_empty() {
        out.push('\n');
    }
    for check in changes.iter().take(SUMMARY_CHECKS) {
        let value = check.value.as_deref().unwrap_or("cannot be read here");
        out.push_str(&cut_line(&format!(
            "{:INDENT$}{}: {value}; should be {}",
            check.verdict.name(),
            check.setting,
            check.recommended
        )));
        if let Some(fix) = check.fixes.first() {
            out.push_str(&cut_line(&format!("{:INDENT$}{fix}", "")));
        }
    }
    if changes.len() > SUMMARY_CHECKS {
        out.push_str(&format!(
            "{:INDENT$}and {} more (--all)\n",
            "",
            changes.len() - SUMMARY_CHECKS
        ));
    }
    out.push_str(&format!(
        "\n{}\n`crore doctor --all` shows every limit, the use of memory, and each of {} checks with its reason\n",
        verdict(findings),
        findings.checks.len()
    ));
    out
}

/// A line of text, cut between two words if it is longer than [`WIDTH`].
fn cut_line(text: &str) -> String {
    let line: String = text.chars().take(WIDTH).collect();
    match line.rsplit_once(' ') {
        Some((words, _)) if line.len() < text.len() => format!("{words} …\n"),
        _ => line + "\n",
    }
}

/// A line for each bound.
fn format_bounds(bounds: &[Bound], findings: &Findings) -> String {
    let widest = bounds
        .iter()
        .map(|bound| bound.name.len())
        .max()
        .unwrap_or(0);
    let line = |bound: &Bound| {
        let mark = match bound.connections < findings.workload.connections {
            true => "<",
            false => " ",
        };
        let (name, holds) = (&bound.name, format_count(bound.connections));
        let line = format!("{mark} {name:widest$}  {holds:>13}  {}", bound.how);
        line.trim_end().to_string() + "\n"
    };
    bounds.iter().map(line).collect()
}

/// All findings as text.
pub fn full_text(findings: &Findings) -> String {
    let mut out = headline(findings);
    out.push_str(
        "\nLimits, the tightest first, and the number of connections that each permits:\n\n",
    );
    out.push_str(&format_bounds(&findings.bounds, findings));
    out.push_str(&format_memory(&findings.memory_estimate));
    for check in &findings.checks {
        out.push('\n');
        out.push_str(&format_check(check));
    }
    out.push_str(&format!("\n{}\n", verdict(findings)));
    out
}

fn format_memory(estimate: &MemoryEstimate) -> String {
    let room = estimate
        .available
        .map_or("unknown".to_string(), format_bytes);
    let part_rows = estimate.parts.iter().map(|part| {
        let size = part.bytes.map_or("unknown".to_string(), format_bytes);
        (" ", part.name, size, part.how.clone())
    });
    let mark = if estimate.exceeds_available() {
        ">"
    } else {
        " "
    };
    let sum_row = (
        mark,
        "all together",
        format_bytes(estimate.bytes()),
        format!("of {room} available"),
    );
    let mut out = "\nThe use of memory when everything that has a limit is full:\n\n".to_string();
    for (mark, name, size, how) in part_rows.chain([sum_row]) {
        out.push_str(&format!("{mark} {name:<19}  {size:>10}  {how}\n"));
    }
    out
}

fn headline(findings: &Findings) -> String {
    let workload = &findings.workload;
    let host = &findings.host;
    let memory = host
        .memory_bytes()
        .map_or("memory unknown".to_string(), format_bytes);
    let kernel = host
        .kernel
        .map_or("kernel unknown".to_string(), |(major, minor)| {
            format!("Linux {major}.{minor}")
        });
    format!(
        "{} {} connections{} on {}, {memory}, {kernel}, with {} of Crore\n{}\n",
        format_count(workload.connections),
        workload.protocol.title(),
        if workload.has_tls { " over TLS" } else { "" },
        plural(workload.cores, "core"),
        plural(workload.shards, "shard"),
        tightest_line(findings)
    )
}

fn tightest_line(findings: &Findings) -> String {
    let tightest = &findings.bounds[0];
    format!(
        "There is room for about {}; the first limit that they would reach: {}",
        format_count(tightest.connections),
        tightest.name
    )
}

fn plural(number: u64, noun: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{} {noun}{end}", format_count(number))
}

/// The verdict, which is the last line of the report.
fn verdict(findings: &Findings) -> String {
    let count_of = |state| {
        let same = findings
            .checks
            .iter()
            .filter(|check| check.verdict == state);
        same.count() as u64
    };
    let (changes, advice) = (count_of(Verdict::Change), count_of(Verdict::Advice));
    let connections = format_count(findings.workload.connections);
    match (findings.fits(), advice) {
        (false, _) => {
            let changes = plural(changes, "setting");
            format!(
                "{connections} connections do not fit: change {changes}; {advice} more would help"
            )
        }
        (true, 0) => format!("{connections} connections fit"),
        (true, _) => format!(
            "{connections} connections fit as it is; {} of advice for more or steadier service",
            plural(advice, "piece")
        ),
    }
}

fn format_check(check: &Check) -> String {
    let mut out = format!("{:INDENT$}{}\n", check.verdict.name(), check.setting);
    let value = check.value.as_deref().unwrap_or("cannot be read here");
    let mut add = |name: &str, text: &str| {
        out.push_str(&wrap_lines(&format!("{name:<8}{text}"), INDENT, 8));
    };
    add("is", value);
    add("should", &check.recommended);
    add("why", &check.why);
    for fix in &check.fixes {
        add("change", fix);
    }
    out
}

/// Wraps the text into lines. The first is indented by `indent` columns, and all others by `indent + hang`.
fn wrap_lines(text: &str, indent: usize, hang: usize) -> String {
    let mut out = " ".repeat(indent);
    let mut column = indent;
    for (index, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if column + width >= WIDTH && index > 0 {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent + hang));
            column = indent + hang;
        }
        out.push_str(word);
        out.push(' ');
        column += width + 1;
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The findings as JSON.
pub fn json(findings: &Findings) -> Value {
    let (workload, estimate) = (&findings.workload, &findings.memory_estimate);
    json!({
        "connections": workload.connections,
        "protocol": <&str>::from(workload.protocol),
        "tls": workload.has_tls,
        "shards": workload.shards,
        "cores": workload.cores,
        "bytes_per_connection": workload.connection_bytes(&findings.host),
        "fits": findings.fits(),
        "holds": findings.bounds[0].connections,
        "binds_first": findings.bounds[0].name,
        "bounds": findings.bounds,
        "memory": { "parts": estimate.parts, "bytes": estimate.bytes(), "available": estimate.available },
        "checks": findings.checks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = wrap_lines(&"word ".repeat(60), 10, 8);
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| line.len() < WIDTH));
        assert!(text.lines().next().unwrap().starts_with("          word"));
        assert!(text.lines().nth(1).unwrap().starts_with(&" ".repeat(18)));
        assert_eq!(text.matches("word").count(), 60);
    }
}
