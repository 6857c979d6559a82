//! `crore bench report`: recorded results as one page of HTML with plots, beside the published experiments. The page has no script and
//! needs no network.

mod html;
mod plot;
mod published;
mod record;
mod sections;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::report;
use record::Record;

/// Where results are when no file is named.
const DIRECTORY: &str = "docs/benchmarks";

/// `crore bench report`
#[derive(clap::Args, Clone, Debug)]
pub struct ReportArgs {
    /// Results, as --json keeps them [default: those in docs/benchmarks]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also keep the two pictures that say most (memory.svg, latency.svg) in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub pictures: Option<PathBuf>,
}

/// Writes the page.
pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    let mut files = args.files.clone();
    if files.is_empty() {
        files = results(Path::new(DIRECTORY))?;
    }
    let records: Vec<Record> = files.iter().map(|file| read(file)).collect::<Result<_>>()?;
    ensure!(!records.is_empty(), "there is no result in {DIRECTORY}");
    let body = [
        sections::records(&records)?,
        sections::runs(&records)?,
        sections::peers(&records)?,
        sections::all(&records),
    ];
    let page = html::page("Crore: benchmarks", &body.concat());
    keep(&args.out, &page)?;
    if let Some(directory) = &args.pictures {
        keep(
            &directory.join("memory.svg"),
            &plot::alone(&sections::memory(&records)?),
        )?;
        if let Some(record) = sections::largest(&records)
            && let Some(svg) = sections::distribution(record)?
        {
            keep(&directory.join("latency.svg"), &plot::alone(&svg))?;
        }
    }
    report::say(&format!(
        "{} results are in {}",
        records.len(),
        args.out.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn results(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}: name the files", directory.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    paths.sort();
    Ok(paths)
}

fn read(file: &Path) -> Result<Record> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let value =
        serde_json::from_str(&text).with_context(|| format!("{} is no result", file.display()))?;
    let name = file
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Ok(Record { name, value })
}

fn keep(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(value: serde_json::Value) -> Record {
        Record {
            name: "a<b".into(),
            value,
        }
    }

    #[test]
    fn a_page_is_made_of_any_results() {
        for value in [
            json!({}),
            json!([1, 2]),
            json!({ "result": { "seconds": [{}], "windows": { "calm": {} }, "rows": 3 } }),
            json!({ "scenario": "Million", "result": { "connections": 0, "rate_per_s": 0, "protocol": "ws" } }),
        ] {
            let records = [record(value)];
            let body = [
                sections::records(&records).unwrap(),
                sections::runs(&records).unwrap(),
                sections::peers(&records).unwrap(),
                sections::all(&records),
            ]
            .concat();
            assert!(body.contains("a&lt;b") && !body.contains("a<b"));
            assert!(!html::page("t", &body).contains("<script"));
        }
    }

    #[test]
    fn a_run_shows_its_latency_and_its_origin() {
        let quantiles = json!([[0.5, 1.0], [0.99, 3.0], [1.0, 9.0]]);
        let second = |at: u32| json!({ "at_s": at, "messages_per_s": 5.0, "p50_ms": 1, "p99_ms": 2, "max_ms": 3, "server_cores": 1, "tool_cores": 1 });
        let records = [record(json!({
            "scenario": "Million", "command": "crore bench run million", "date": "2026-01-02",
            "machine": { "cores": 2, "cpu": "X" },
            "result": {
                "connections": 1000, "protocol": "ws", "rate_per_s": 7.0, "clean": false,
                "windows": { "calm": { "latency_ms": { "quantiles": quantiles } } },
                "seconds": [second(1), second(2)],
            },
        }))];
        let page = sections::runs(&records).unwrap();
        for text in [
            "Latency by percentile",
            "Latency over time",
            "2 cores",
            "2026-01-02",
            "bench run million",
            "has failed",
        ] {
            assert!(page.contains(text), "{text}");
        }
        // No colour is fixed: a chart is readable in light and in dark.
        assert!(!page.contains("#0") && page.contains("var(--s0)"));
        assert!(sections::largest(&records).is_some());
    }
}
