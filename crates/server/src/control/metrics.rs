//! `GET /metrics`: the metrics as text for Prometheus, or as OpenMetrics if the client asks for it.
//!
//! Each metric is a row of [`rows`], or a counter or gauge of the broker (`budget/stats.rs`). A test compares these rows with the table of
//! docs/OPERATIONS.md and the queries of examples/grafana. Counters are totals since the process began.

mod rows;
mod text;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use crore_broker::{Accounts, Reason, Transport};
use crore_wire::http::accept;

use self::text::{Kind, MetricWriter, TextFormat};
use super::cluster::ClusterMetrics;
use super::limits::{self, Limit};
use super::samples;
use super::state::AdminState;
use super::stats::{self, Table};
use crate::lifecycle::checkpoint::CheckpointStats;
use crore_shard_loop::counters::{LatencyHistogram, MetricHistogram, ShardCounters, bucket_end_us};

/// The upper bounds of the histogram's buckets: powers of two in microseconds, from 16 us to 16 s.
const LATENCY_BITS: std::ops::RangeInclusive<u32> = 4..=24;

/// A metric.
#[derive(Clone, Copy)]
pub struct Metric {
    name: &'static str,
    kind: Kind,
    /// The names of the metric's labels, separated by ", ".
    labels: &'static str,
    help: &'static str,
    /// The possible values of the metric's label, in Markdown. Empty for most metrics.
    values: &'static str,
    read: MetricSource,
}

/// The source of a metric's values.
#[derive(Clone, Copy)]
enum MetricSource {
    /// The sum over all shards.
    Sum(fn(&ShardCounters) -> u64),
    /// The sum of a counter.
    Counter(fn(&crore_broker::Stats) -> u64),
    /// The sums of a counter with a label, one for each value of the label.
    LabelledCounter(fn(&crore_broker::Stats) -> Vec<(&'static str, u64)>),
    /// The sum of a gauge.
    Gauge(fn(&Accounts) -> u64),
    /// A gauge of each shard.
    ShardGauge(fn(&Accounts) -> u64),
    /// A value of each shard.
    Shard(fn(&ShardCounters) -> f64),
    /// One value.
    One(fn(&Scrape) -> f64),
    /// A value for each set of labels.
    Each(fn(&Scrape) -> LabelledValues),
    Histogram(fn(&Scrape) -> MetricHistogram),
}

/// Values, each with the values of its labels.
type LabelledValues = Vec<(Vec<String>, f64)>;

const fn row(
    kind: Kind,
    name: &'static str,
    labels: &'static str,
    read: MetricSource,
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        help,
        values: "",
        read,
    }
}

fn bool_value(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Samples of a metric with the label `result`.
fn by_result(counts: [(&str, u64); 2]) -> LabelledValues {
    let counts = counts.into_iter();
    counts
        .map(|(result, count)| (vec![result.into()], count as f64))
        .collect()
}

fn delivery_histogram(latency: &LatencyHistogram) -> MetricHistogram {
    let (mut buckets, mut from) = (Vec::new(), 0);
    for bits in LATENCY_BITS {
        let to = latency.counts[from..]
            .iter()
            .enumerate()
            .take_while(|(n, _)| bucket_end_us(from + n) <= 1 << bits)
            .count()
            + from;
        let count = latency.counts[from..to].iter().sum();
        buckets.push((f64::from(1 << bits) / 1e6, count));
        from = to;
    }
    buckets.push((f64::INFINITY, latency.counts[from..].iter().sum()));
    MetricHistogram {
        buckets,
        sum: latency.sum_us as f64 / 1e6,
        count: latency.count(),
    }
}

/// Metrics
///
/// Prometheus' text format, or OpenMetrics where `Accept` asks for it; not part of the API's version.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses((status = 200, description = "All metrics", content((String = "text/plain"), (String = "application/openmetrics-text"))))
)]
pub async fn metrics(State(state): State<AdminState>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let form = match accept::prefers_open_metrics(accepted.map(|value| value.as_bytes())) {
        true => TextFormat::OpenMetrics,
        false => TextFormat::Prometheus,
    };
    let shards = state.counters.read_all();
    let cluster = ClusterMetrics::collect(&state.lifecycle, &state.peer_nodes).await;
    let scrape = Scrape {
        limits: limits::all(&state, &shards, None),
        tables: stats::tables(&shards),
        latency: samples::latency(&shards),
        log: state.lifecycle.log_state().unwrap_or_default(),
        shards: shards.into(),
        cluster,
        state,
    };
    let mut text = MetricWriter::new(form);
    for metric in rows::all() {
        metric.write(&scrape, &mut text);
    }
    ([(header::CONTENT_TYPE, form.content_type())], text.end()).into_response()
}

/// The values for one scrape.
struct Scrape {
    state: AdminState,
    shards: Arc<[ShardCounters]>,
    limits: Vec<Limit>,
    tables: Vec<Table>,
    latency: LatencyHistogram,
    log: crore_disk::EngineState,
    cluster: ClusterMetrics,
}

impl Scrape {
    fn checkpoints(&self) -> &CheckpointStats {
        self.state.lifecycle.checkpoints()
    }

    fn sum_of(&self, value: impl Fn(&ShardCounters) -> u64) -> u64 {
        self.shards.iter().map(value).sum()
    }

    fn sum(&self, value: impl Fn(&ShardCounters) -> u64) -> LabelledValues {
        vec![(vec![], self.sum_of(value) as f64)]
    }

    fn by_shard(&self, value: impl Fn(&ShardCounters) -> f64) -> LabelledValues {
        let shards = self.shards.iter().enumerate();
        shards
            .map(|(id, shard)| (vec![id.to_string()], value(shard)))
            .collect()
    }

    /// One sum over all shards for each kind. `kinds` has the name and the index of each.
    fn by_kind(
        &self,
        kinds: impl IntoIterator<Item = (&'static str, usize)>,
        count: fn(&ShardCounters, usize) -> u64,
    ) -> LabelledValues {
        let sum = |n| self.sum_of(|s| count(s, n));
        let kinds = kinds.into_iter();
        kinds
            .map(|(name, n)| (vec![name.into()], sum(n) as f64))
            .collect()
    }

    /// One sum over all shards for each value of a label.
    fn by_label(
        &self,
        value: fn(&crore_broker::Stats) -> Vec<(&'static str, u64)>,
    ) -> LabelledValues {
        let mut sums: Vec<(&str, u64)> = Vec::new();
        for shard in self.shards.iter() {
            let counts = value(&shard.stats);
            sums.resize(counts.len(), ("", 0));
            for (sum, (name, count)) in sums.iter_mut().zip(counts) {
                *sum = (name, sum.1 + count);
            }
        }
        let labelled = |(name, sum): (&str, u64)| (vec![name.into()], sum as f64);
        sums.into_iter().map(labelled).collect()
    }

    /// Refusals by reason and transport, without the pairs whose count is 0.
    fn refusals(&self) -> LabelledValues {
        let pairs = Reason::ALL
            .iter()
            .flat_map(|reason| Transport::ALL.map(|transport| (*reason, transport)));
        let counts = pairs.map(|(reason, transport)| {
            let labels = vec![reason.row().name.into(), transport.name().into()];
            let count = |s: &ShardCounters| s.stats.refusals.of_transport(reason, transport);
            (labels, self.sum_of(count) as f64)
        });
        counts.filter(|(_, count)| *count > 0.0).collect()
    }

    fn by_limit(&self, value: fn(&Limit) -> u64) -> LabelledValues {
        let labels = |it: &Limit| vec![it.name.into(), it.unit.into()];
        let limits = self.limits.iter();
        limits.map(|it| (labels(it), value(it) as f64)).collect()
    }
}

impl Metric {
    /// Sets the possible values of the label.
    const fn with_values(mut self, values: &'static str) -> Metric {
        self.values = values;
        self
    }

    /// The help in Markdown.
    fn help(&self) -> String {
        [self.help, self.values].concat()
    }

    /// The help as plain text: the links of Markdown are replaced by their text.
    fn plain_help(&self) -> String {
        let help = self.help();
        let mut parts = help.split("](");
        let mut plain = parts.next().unwrap_or_default().to_string();
        for part in parts {
            plain.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
        }
        plain.replace(['[', '`'], "")
    }

    fn write(&self, scrape: &Scrape, out: &mut MetricWriter) {
        out.family(self.name, self.kind, &self.plain_help());
        let samples = match self.read {
            MetricSource::Histogram(value) => return out.histogram(self.name, &value(scrape)),
            MetricSource::Sum(value) => scrape.sum(value),
            MetricSource::Counter(value) => scrape.sum(|shard| value(&shard.stats)),
            MetricSource::LabelledCounter(value) => scrape.by_label(value),
            MetricSource::Gauge(value) => scrape.sum(|shard| value(&shard.accounts)),
            MetricSource::Shard(value) => scrape.by_shard(value),
            MetricSource::ShardGauge(value) => {
                scrape.by_shard(|shard| value(&shard.accounts) as f64)
            }
            MetricSource::One(value) => vec![(vec![], value(scrape))],
            MetricSource::Each(value) => value(scrape),
        };
        for (values, value) in samples {
            let labels: Vec<(&str, String)> = self.labels.split(", ").zip(values).collect();
            out.sample(self.name, &labels, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const PAGE: &str = "docs/OPERATIONS.md";

    fn path(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(name)
    }

    fn document(name: &str) -> String {
        std::fs::read_to_string(path(name)).expect("a page of the project")
    }

    /// Compares the table in `docs/OPERATIONS.md` with the rows. With `INSTA_UPDATE=always` the test rewrites the table.
    #[test]
    fn page_has_the_table_of_metrics() {
        let row = |it: Metric| {
            let kind = it.kind.name();
            let labels = format!("{} ", it.labels);
            let labels = labels.trim_start();
            format!("| `{}` | {kind} | {labels}| {} |\n", it.name, it.help())
        };
        let rows: String = rows::all().map(row).collect();
        let page = document(PAGE);
        let is_row = |line: &&str| line.starts_with("| `crore_");
        let table: String = page.split_inclusive('\n').filter(is_row).collect();
        if table != rows && std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
            std::fs::write(path(PAGE), page.replace(&table, &rows)).expect("written");
            return;
        }
        assert_eq!(table, rows, "INSTA_UPDATE=always writes {PAGE}");
    }

    #[test]
    fn pages_dashboard_and_alerts_name_metrics_that_exist() {
        let mut names: BTreeSet<String> = BTreeSet::new();
        for metric in rows::all() {
            names.insert(metric.name.into());
            if let MetricSource::Histogram(_) = metric.read {
                names
                    .extend(["bucket", "count", "sum"].map(|end| format!("{}_{end}", metric.name)));
            }
        }
        let pages = [
            "ACCESS",
            "CLUSTER",
            "DURABILITY",
            "internals/MEMORY",
            "MQTT",
            "OPERATIONS",
            "REASONS",
            "SETTINGS",
            "TLS",
        ];
        let mut unknown = Vec::new();
        for page in pages
            .map(|page| format!("docs/{page}.md"))
            .into_iter()
            .chain(
                ["grafana/crore.json", "prometheus/crore.rules.yml"]
                    .map(|it| format!("examples/{it}")),
            )
        {
            let text = document(&page);
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let ours = words.filter(|word| word.starts_with("crore_") && *word != "crore_token");
            let strange = ours.filter(|word| !names.contains(*word));
            unknown.extend(strange.map(|word| format!("{page}: {word}")));
        }
        assert_eq!(unknown, [""; 0]);
    }

    /// The labels that a query or a legend uses: the words after `by`, before a comparison, and in braces.
    fn labels_of(text: &str) -> Vec<String> {
        let after = |mark: &str, end: char| -> Vec<String> {
            let parts = text.split(mark).skip(1);
            parts
                .filter_map(|rest| rest.split(end).next())
                .flat_map(|list| list.split(','))
                .map(|label| {
                    label
                        .split(['=', '!'])
                        .next()
                        .unwrap_or_default()
                        .trim()
                        .into()
                })
                .collect()
        };
        let in_legend = text.contains("{{");
        if in_legend {
            return after("{{", '}');
        }
        [after("by (", ')'), after("{", '}')].concat()
    }

    #[test]
    fn dashboard_has_panels_of_cluster_sessions_and_refusals_and_all_its_labels_exist() {
        let page = document("examples/grafana/crore.json");
        let dashboard: serde_json::Value = serde_json::from_str(&page).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let mut shown = BTreeSet::new();
        for panel in panels {
            for target in panel["targets"].as_array().expect("targets") {
                let text = |key: &str| target[key].as_str().expect("text");
                let (query, legend) = (text("expr"), text("legendFormat"));
                let metrics: Vec<Metric> = rows::all()
                    .filter(|metric| query.contains(metric.name))
                    .collect();
                assert!(!metrics.is_empty(), "{query}");
                shown.extend(metrics.iter().map(|metric| metric.name));
                for label in [labels_of(query), labels_of(legend)].concat() {
                    let exists = ["job", "instance", "le"].contains(&&*label)
                        || metrics
                            .iter()
                            .any(|it| it.labels.split(", ").any(|name| name == label));
                    assert!(exists, "{}: {label} in {query} {legend}", panel["title"]);
                }
            }
        }
        for wanted in [
            "crore_cluster_nodes",
            "crore_cluster_lag",
            "crore_cluster_hears",
            "crore_sessions",
            "crore_refusals_total",
            "crore_denied_requests_total",
        ] {
            assert!(shown.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn help_is_plain_text_without_links() {
        let metric = row(
            Kind::Gauge,
            "crore_x",
            "",
            MetricSource::One(|_| 0.0),
            "One of [the `parts`](PAGE.md#of), now",
        );
        assert_eq!(metric.plain_help(), "One of the parts, now");
    }
}
