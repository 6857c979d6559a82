//! `crore-bench report`: writes an HTML page with plots of recorded results, next to the results of published experiments. The page has no
//! script and needs no network.

mod html;
mod plot;
mod published;
mod record;
mod sections;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::report;
use record::Record;

/// The directory with the results to show, if the command names no file.
const RESULTS_DIRECTORY: &str = "docs/benchmarks";

/// `crore-bench report`
#[derive(clap::Args, Clone, Debug)]
pub struct ReportArgs {
    /// Results, written by --json of the other tools [default: all results in docs/benchmarks]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The HTML file to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also write the plots of memory and latency (memory.svg, latency.svg) to this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub pictures: Option<PathBuf>,
}

/// Writes the page.
pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    let records = match &args.files[..] {
        [] => read_directory(Path::new(RESULTS_DIRECTORY))?,
        files => read_files(files)?,
    };
    let page = html::page("Crore: benchmarks", &body(&records)?);
    write_file(&args.out, &page)?;
    if let Some(directory) = &args.pictures {
        write_file(
            &directory.join("memory.svg"),
            &plot::alone(&sections::plot_memory(&records)?),
        )?;
        if let Some(record) = sections::largest_run(&records)
            && let Some(svg) = sections::plot_distribution(record)?
        {
            write_file(&directory.join("latency.svg"), &plot::alone(&svg))?;
        }
    }
    report::say(&format!(
        "{} results are in {}",
        records.len(),
        args.out.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// The sections of the page: our measurements, then the results of others.
fn body(records: &[Record]) -> Result<String> {
    let sections = [
        sections::runs_section(records)?,
        sections::peers_section(records)?,
        sections::all_results_section(records),
        sections::published_section(records)?,
    ];
    Ok(sections.concat())
}

/// Reads these files. A file without a result is an error.
fn read_files(files: &[PathBuf]) -> Result<Vec<Record>> {
    let record = |file: &PathBuf| {
        Record::from_file(file_stem(file), read_json(file)?).with_context(|| {
            format!(
                "{} is no result: it lacks `scenario` or `result`; name a file that a scenario wrote (--json FILE)",
                file.display()
            )
        })
    };
    files.iter().map(record).collect()
}

/// Reads the results in a directory, ordered by name. Ignores the files of other tools.
fn read_directory(directory: &Path) -> Result<Vec<Record>> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}: name the files", directory.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    paths.sort();
    let mut records = Vec::new();
    for path in &paths {
        records.extend(Record::from_file(file_stem(path), read_json(path)?));
    }
    ensure!(
        !records.is_empty(),
        "there is no result in {}",
        directory.display()
    );
    Ok(records)
}

fn read_json(file: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))
}

fn file_stem(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(value: Value) -> Record {
        Record::from_file("a<b".into(), value).expect("a result")
    }

    #[test]
    fn a_page_is_made_of_any_results() {
        for value in [
            json!({ "scenario": "Swarm", "result": { "seconds": [{}], "windows": { "calm": {} }, "rows": 3 } }),
            json!({ "scenario": "Million", "result": { "connections": 0, "rate_per_s": 0, "protocol": "ws" } }),
        ] {
            let body = body(&[record(value)]).unwrap();
            assert!(body.contains("a&lt;b") && !body.contains("a<b"));
            assert!(!html::page("t", &body).contains("<script"));
        }
    }

    #[test]
    fn file_without_a_result_is_refused_by_its_name() {
        let directory = std::env::temp_dir().join(format!("crore-report-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for (text, reason) in [
            ("{}", "is no result"),
            ("[1, 2]", "is no result"),
            (r#"{ "scenario": "Million" }"#, "is no result"),
            (r#"{ "scenario": 1, "result": {} }"#, "is no result"),
            ("{", "is no JSON"),
        ] {
            let file = directory.join("other.json");
            fs::write(&file, text).unwrap();
            let error = run(&ReportArgs {
                files: vec![file],
                out: directory.join("report.html"),
                pictures: None,
            });
            let error = format!("{:#}", error.expect_err(text));
            assert!(error.contains("other.json"), "{error}");
            assert!(error.contains(reason), "{error}");
            assert!(!directory.join("report.html").exists(), "{text}");
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn page_begins_with_local_measurements() {
        let quantiles = json!([[0.5, 1.0], [0.99, 3.0]]);
        let page = body(&[record(json!({
            "scenario": "Million",
            "result": { "windows": { "calm": { "latency_ms": { "quantiles": quantiles } } } },
        }))]);
        let page = page.unwrap();
        let position = |text: &str| page.find(text).expect(text);
        assert!(position("Latency by percentile") < position("Published experiments"));
        assert!(position("All results") < position("Published experiments"));
    }

    #[test]
    fn a_run_shows_its_latency_and_its_origin() {
        let quantiles = json!([[0.5, 1.0], [0.99, 3.0], [1.0, 9.0]]);
        let second = |at: u32| json!({ "at_s": at, "messages_per_s": 5.0, "p50_ms": 1, "p99_ms": 2, "max_ms": 3, "server_cores": 1, "tool_cores": 1 });
        let records = [record(json!({
            "scenario": "Million", "command": "crore-bench run million", "date": "2026-01-02",
            "machine": { "cores": 2, "cpu": "X" },
            "result": {
                "connections": 1000, "protocol": "ws", "rate_per_s": 7.0, "clean": false,
                "windows": { "calm": { "latency_ms": { "quantiles": quantiles } } },
                "seconds": [second(1), second(2)],
            },
        }))];
        let page = sections::runs_section(&records).unwrap();
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
        // Colours are variables, so a chart is readable in light and in dark.
        assert!(!page.contains("#0") && page.contains("var(--s0)"));
        assert!(sections::largest_run(&records).is_some());
    }
}
