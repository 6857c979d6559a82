//! Writes the sections of the report's page.

use anyhow::Result;
use serde_json::Value;

use super::html::{escape, plots, table};
use super::plot::{self, Axis, Line};
use super::published;
use super::record::{Record, bytes, count, decimals, short};

const MS: Axis = Axis {
    name: "latency, ms",
    is_log: true,
    text: decimals,
};
const SECONDS: Axis = Axis {
    name: "seconds since the start",
    is_log: false,
    text: short,
};
const CONNECTIONS: Axis = Axis {
    name: "open connections",
    is_log: false,
    text: short,
};

/// The section about memory per connection: published results and ours.
pub fn plot_memory(records: &[Record]) -> Result<String> {
    let mut rows: Vec<plot::Bar> = published::ALL
        .iter()
        .filter_map(|experiment| {
            let name = format!(
                "{}: {} × {}",
                experiment.name,
                count(experiment.connections as f64),
                experiment.transport
            );
            Some((name, experiment.bytes?.to_vec()))
        })
        .collect();
    for record in records_to_show(records) {
        if let (Some(both), Some(n)) =
            (record.bytes_per_connection(), record.number("/connections"))
        {
            rows.push((
                format!("Crore: {} × {}", count(n), record.protocol()),
                both.to_vec(),
            ));
        }
    }
    plot::bars(
        "Memory of a connection",
        &["process", "kernel"],
        &rows,
        bytes,
    )
}

/// For each protocol and number of connections, the last run by name, or the last run of a swarm if there is one. Runs with a log are left
/// out, except for long-poll, which needs a log.
fn records_to_show(records: &[Record]) -> Vec<&Record> {
    let mut shown: Vec<&Record> = Vec::new();
    for record in records
        .iter()
        .filter(|record| record.has_topic_per_connection())
    {
        let has_log = record.number("/log_messages") > Some(0.0) && record.protocol() != "poll";
        if has_log || record.bytes_per_connection().is_none() {
            continue;
        }
        let protocol_and_connections = |record: &Record| {
            (
                record.number("/connections").map(|n| n as u64),
                record.protocol().to_string(),
            )
        };
        let is_swarm = |record: &Record| record.result()["clients"] == "swarm";
        match shown
            .iter_mut()
            .find(|other| protocol_and_connections(other) == protocol_and_connections(record))
        {
            Some(other) if is_swarm(other) && !is_swarm(record) => {}
            Some(other) => *other = record,
            None => shown.push(record),
        }
    }
    shown.sort_by(|a, b| {
        a.number("/connections")
            .partial_cmp(&b.number("/connections"))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    shown
}

/// The rows of the published experiments that served messages, and of our runs.
fn experiment_rows(records: &[Record]) -> Vec<Vec<String>> {
    let text = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    let mut rows = Vec::new();
    for experiment in &published::ALL {
        let Some((rate, [mean, deviation, max])) = experiment.served else {
            continue;
        };
        rows.push(vec![
            experiment.name.into(),
            count(experiment.connections as f64),
            count(rate),
            text(Some(mean)),
            text(Some(deviation)),
            String::new(),
            text(Some(max)),
            text(experiment.cores),
        ]);
    }
    for record in records
        .iter()
        .filter(|record| record.has_topic_per_connection())
    {
        let (Some(n), Some(rate)) = (record.number("/connections"), record.number("/rate_per_s"))
        else {
            continue;
        };
        let latency = |name: &str| {
            let calm = record.number(&format!("/windows/calm/latency_ms/{name}"));
            text(calm.or_else(|| record.number(&format!("/received/latency_ms/{name}"))))
        };
        let cores = record.number("/windows/calm/server_cores");
        rows.push(vec![
            format!("{} ({})", record.name, record.protocol()),
            count(n),
            count(rate),
            latency("mean"),
            latency("standard_deviation"),
            latency("p99"),
            latency("max"),
            text(cores.or_else(|| record.number("/server_cores_busy"))),
        ]);
    }
    rows
}

/// A plot of the memory per connection by the number of connections.
fn plot_memory_by_connections(records: &[Record]) -> Result<Option<String>> {
    let points = |bytes_index: usize, protocol: &str| -> Vec<(f64, f64)> {
        let runs = records_to_show(records).into_iter();
        runs.filter(|record| record.protocol() == protocol)
            .filter_map(|record| {
                Some((
                    record.number("/connections")?,
                    record.bytes_per_connection()?[bytes_index],
                ))
            })
            .collect()
    };
    let lines = [
        ("process, WebSocket", points(0, "ws")),
        ("kernel, WebSocket", points(1, "ws")),
        ("process, long-poll", points(0, "poll")),
    ];
    let lines = lines.map(|(name, points)| (name.to_string(), points));
    let lines: Vec<Line> = lines.into_iter().filter(|line| line.1.len() > 1).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let x = Axis {
        is_log: true,
        ..CONNECTIONS
    };
    let y = Axis {
        name: "bytes of each",
        is_log: true,
        text: short,
    };
    plot::lines("Memory over connections", x, y, &lines).map(Some)
}

/// The section that compares the published experiments with our runs.
pub fn published_section(records: &[Record]) -> Result<String> {
    let column_names = [
        "whose",
        "subscribers",
        "messages/s",
        "mean, ms",
        "deviation",
        "p99",
        "max",
        "server, cores",
    ];
    let mut out = String::from(
        "<h2>Published experiments beside ours</h2>\n<p>Latencies of unequal rates do not compare; \
         our machine has two cores, which the load tools share.</p>\n",
    );
    out += &table(&column_names, &experiment_rows(records));
    let mut figures = vec![plot_memory(records)?];
    figures.extend(plot_memory_by_connections(records)?);
    out += &plots(&figures);
    let sources = published::ALL
        .iter()
        .filter_map(|experiment| Some((experiment.name, experiment.source?)));
    let mut links: Vec<String> = sources
        .map(|(name, source)| format!("<a href=\"{source}\">{}</a>", escape(name)))
        .collect();
    links.dedup();
    Ok(out + &format!("<p class=\"of\">Sources: {}</p>\n", links.join(" · ")))
}

/// A plot of the distribution of latencies, with a line for each window.
pub fn plot_distribution(record: &Record) -> Result<Option<String>> {
    let mut lines: Vec<Line> = Vec::new();
    let windows = record.result()["windows"].as_object();
    let mut all: Vec<(&str, &Value)> = windows
        .into_iter()
        .flatten()
        .map(|(name, window)| (name.as_str(), &window["latency_ms"]["quantiles"]))
        .collect();
    if all.is_empty() {
        all.push((
            "all messages",
            &record.result()["received"]["latency_ms"]["quantiles"],
        ));
    }
    for (name, quantiles) in all {
        let pairs = quantiles.as_array().into_iter().flatten();
        let points: Vec<(f64, f64)> = pairs
            .filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?)))
            // The maximum cannot be shown on this axis.
            .filter(|(share, ms)| *share < 1.0 && *ms > 0.0)
            .map(|(share, ms)| (1.0 / (1.0 - share), ms))
            .collect();
        if points.len() > 1 {
            lines.push((name.to_string(), points));
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    let x = Axis {
        name: "share of messages that are as fast",
        is_log: true,
        text: percentile,
    };
    plot::lines("Latency by percentile", x, MS, &lines).map(Some)
}

/// The name of the percentile that one message in `rarity` exceeds.
fn percentile(rarity: f64) -> String {
    let decimals = (rarity.log10().ceil() as usize).saturating_sub(2);
    format!("{:.decimals$} %", 100.0 - 100.0 / rarity)
}

/// Plots of a swarm's records of each second.
fn plot_seconds(record: &Record) -> Result<Vec<String>> {
    let seconds = record.result()["seconds"].as_array();
    let seconds = seconds.map_or(&[][..], Vec::as_slice);
    let points = |x: &str, y: &str, is_wanted: fn(&Value) -> bool| -> Vec<(f64, f64)> {
        let wanted_seconds = seconds.iter().filter(|second| is_wanted(second));
        wanted_seconds
            .filter_map(|second| Some((second[x].as_f64()?, second[y].as_f64()?)))
            .collect()
    };
    let has_messages: fn(&Value) -> bool = |second| second["messages_per_s"].as_f64() > Some(0.0);
    let is_opening: fn(&Value) -> bool =
        |second| second["messages_per_s"] == 0.0 && second["opened_per_s"].as_f64() > Some(0.0);
    let mut out = Vec::new();
    let latency: Vec<Line> = ["p50_ms", "p99_ms", "max_ms"]
        .into_iter()
        .map(|name| {
            (
                name.trim_end_matches("_ms").to_string(),
                points("at_s", name, has_messages),
            )
        })
        .filter(|line| line.1.len() > 1)
        .collect();
    if !latency.is_empty() {
        out.push(plot::lines("Latency over time", SECONDS, MS, &latency)?);
    }
    let cores = |x, is_wanted: fn(&Value) -> bool| -> Vec<Line> {
        let each = [
            ("server", "server_cores"),
            ("tool, with the kernel's receiving", "tool_cores"),
        ];
        let lines = each.map(|(name, key)| (name.to_string(), points(x, key, is_wanted)));
        lines.into_iter().filter(|line| line.1.len() > 1).collect()
    };
    let y = Axis {
        name: "busy cores",
        is_log: false,
        text: decimals,
    };
    let opening = cores("live", is_opening);
    if !opening.is_empty() {
        out.push(plot::lines(
            "Processors while connections open",
            CONNECTIONS,
            y,
            &opening,
        )?);
    }
    let serving = cores("at_s", has_messages);
    if !serving.is_empty() {
        out.push(plot::lines(
            "Processors while messages flow",
            SECONDS,
            y,
            &serving,
        )?);
    }
    Ok(out)
}

/// A plot of the memory of a connection, by parts.
fn plot_memory_parts(record: &Record) -> Result<Option<String>> {
    let cost = &record.result()["per_connection_open"];
    let Some(slabs) = cost["kernel_slabs"].as_object() else {
        return Ok(None);
    };
    let Some(process) = cost["server_pss_bytes"].as_f64() else {
        return Ok(None);
    };
    let mut rows = vec![("server process".to_string(), vec![process])];
    for (name, value) in slabs {
        rows.push((
            format!("kernel, {name}"),
            vec![value.as_f64().unwrap_or(0.0)],
        ));
    }
    rows.retain(|row| row.1[0] >= 1.0);
    plot::bars(
        "Where the bytes of a connection are",
        &["bytes"],
        &rows,
        bytes,
    )
    .map(Some)
}

/// The section with the runs that recorded every second.
pub fn runs_section(records: &[Record]) -> Result<String> {
    let mut out = String::new();
    for record in records {
        let mut figures = plot_seconds(record)?;
        figures.extend(plot_distribution(record)?);
        if figures.is_empty() {
            continue;
        }
        figures.extend(plot_memory_parts(record)?);
        out += &format!("<h2>{}</h2>\n{}", escape(&record.title()), record.origin());
        out += &plots(&figures);
    }
    Ok(out)
}

/// The section that compares the servers of `pair`.
pub fn peers_section(records: &[Record]) -> Result<String> {
    let mut out = String::new();
    for record in records
        .iter()
        .filter(|record| record.name.starts_with("compare"))
    {
        let Some(rows) = record.result()["rows"].as_object() else {
            continue;
        };
        let mut figures = Vec::new();
        for (row_name, row) in rows {
            for (name, value) in row["values"].as_object().into_iter().flatten() {
                let medians = value["medians"].as_object().into_iter().flatten();
                let rows: Vec<plot::Bar> = medians
                    .filter_map(|(side, median)| Some((side.clone(), vec![median.as_f64()?])))
                    .collect();
                if rows.len() > 1 {
                    let title = format!("{row_name}: {}", name.replace('_', " "));
                    figures.push(plot::bars(&title, &[""], &rows, |value| {
                        if value >= 1_000.0 {
                            count(value)
                        } else {
                            decimals(value)
                        }
                    })?);
                }
            }
        }
        if !figures.is_empty() {
            out += &format!(
                "<h2>Peers side by side: {}</h2>\n{}",
                escape(&record.name),
                record.origin()
            );
            out += &plots(&figures);
        }
    }
    Ok(out)
}

/// The section with all results, each with machine, date and command.
pub fn all_results_section(records: &[Record]) -> String {
    let mut out = String::from("<h2>All results</h2>\n");
    for record in records {
        out += &format!(
            "<h3>{} {}</h3>\n{}",
            escape(&record.name),
            escape(record.scenario()),
            record.origin()
        );
    }
    out
}

/// The run with the most connections, among the runs that recorded every second.
pub fn largest_run(records: &[Record]) -> Option<&Record> {
    let runs = records
        .iter()
        .filter(|record| record.result()["windows"]["calm"]["latency_ms"]["quantiles"].is_array());
    runs.max_by_key(|record| record.number("/connections").unwrap_or(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_below_the_largest_value_are_less_than_100() {
        let labels = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7].map(percentile);
        assert_eq!(
            labels,
            [
                "0 %",
                "90 %",
                "99 %",
                "99.9 %",
                "99.99 %",
                "99.999 %",
                "99.9999 %",
                "99.99999 %"
            ]
        );
    }
}
