//! Writes metrics in two text formats: Prometheus (version 0.0.4, which most other systems read too) and OpenMetrics 1.0. OpenMetrics omits
//! `_total` and `_info` from the name of a family, has the kind `info` for constant facts, states units, and ends with `# EOF`.

use std::borrow::Cow;
use std::fmt::Write as _;

use crore_shard_loop::counters::MetricHistogram;

/// The text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    Prometheus,
    OpenMetrics,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl Kind {
    /// The name in OpenMetrics.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }
}

impl TextFormat {
    pub const fn content_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A writer of metrics.
pub struct MetricWriter {
    form: TextFormat,
    out: String,
}

impl MetricWriter {
    pub fn new(form: TextFormat) -> MetricWriter {
        let out = String::with_capacity(64 << 10);
        MetricWriter { form, out }
    }

    /// Begins a metric. Its samples must be written next.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let (mut family, mut kind_name) = (name, kind.name());
        match self.form {
            TextFormat::OpenMetrics => {
                for end in ["_total", "_info"] {
                    family = family.strip_suffix(end).unwrap_or(family);
                }
            }
            TextFormat::Prometheus if kind == Kind::Info => kind_name = Kind::Gauge.name(),
            TextFormat::Prometheus => {}
        }
        let help = escaped(help, self.form == TextFormat::OpenMetrics);
        let _ = writeln!(
            self.out,
            "# HELP {family} {help}\n# TYPE {family} {kind_name}"
        );
        let unit = ["bytes", "seconds"].into_iter().find(|unit| {
            let before = family.strip_suffix(unit);
            before.is_some_and(|before| before.ends_with('_'))
        });
        if let (TextFormat::OpenMetrics, Some(unit)) = (self.form, unit) {
            let _ = writeln!(self.out, "# UNIT {family} {unit}");
        }
    }

    /// Writes one value.
    pub fn sample(&mut self, name: &str, labels: &[(&str, String)], value: f64) {
        self.out.push_str(name);
        let mut before = '{';
        for (label, value) in labels {
            let _ = write!(self.out, "{before}{label}=\"{}\"", escaped(value, true));
            before = ',';
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// Writes a histogram, whose last bucket is unbounded.
    pub fn histogram(&mut self, name: &str, histogram: &MetricHistogram) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (end, count) in &histogram.buckets {
            below += count;
            let end = match end.is_finite() {
                true => end.to_string(),
                false => "+Inf".into(),
            };
            self.sample(&bucket, &[("le", end)], below as f64);
        }
        self.sample(&format!("{name}_sum"), &[], histogram.sum);
        self.sample(&format!("{name}_count"), &[], histogram.count as f64);
    }

    /// Ends the text and returns it.
    pub fn end(mut self) -> String {
        if self.form == TextFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// Escapes line breaks and backslashes, and with `quotes` also quotation marks.
fn escaped(text: &str, quotes: bool) -> Cow<'_, str> {
    if !text.contains(['\\', '\n', '"']) {
        return text.into();
    }
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    match quotes {
        true => text.replace('"', "\\\"").into(),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: TextFormat) -> String {
        let mut text = MetricWriter::new(form);
        text.family("crore_build_info", Kind::Info, "The \"version\"");
        text.sample("crore_build_info", &[("version", "a\"b\\c\nd".into())], 1.0);
        text.family("crore_sent_bytes_total", Kind::Counter, "Sent");
        text.sample("crore_sent_bytes_total", &[], 1e15);
        text.family("crore_load", Kind::Gauge, "Load");
        text.sample(
            "crore_load",
            &[("shard", "0".into()), ("of", "x".into())],
            0.25,
        );
        text.family("crore_delivery_seconds", Kind::Histogram, "Delivery");
        let buckets = MetricHistogram {
            buckets: vec![(0.000016, 2), (1.0, 3), (f64::INFINITY, 1)],
            sum: 4.5,
            count: 6,
        };
        text.histogram("crore_delivery_seconds", &buckets);
        text.end()
    }

    #[test]
    fn each_form_names_kinds_and_families_as_its_readers_expect() {
        assert_eq!(
            written(TextFormat::Prometheus),
            r#"# HELP crore_build_info The "version"
# TYPE crore_build_info gauge
crore_build_info{version="a\"b\\c\nd"} 1
# HELP crore_sent_bytes_total Sent
# TYPE crore_sent_bytes_total counter
crore_sent_bytes_total 1000000000000000
# HELP crore_load Load
# TYPE crore_load gauge
crore_load{shard="0",of="x"} 0.25
# HELP crore_delivery_seconds Delivery
# TYPE crore_delivery_seconds histogram
crore_delivery_seconds_bucket{le="0.000016"} 2
crore_delivery_seconds_bucket{le="1"} 5
crore_delivery_seconds_bucket{le="+Inf"} 6
crore_delivery_seconds_sum 4.5
crore_delivery_seconds_count 6
"#
        );
        assert_eq!(
            written(TextFormat::OpenMetrics),
            r#"# HELP crore_build The \"version\"
# TYPE crore_build info
crore_build_info{version="a\"b\\c\nd"} 1
# HELP crore_sent_bytes Sent
# TYPE crore_sent_bytes counter
# UNIT crore_sent_bytes bytes
crore_sent_bytes_total 1000000000000000
# HELP crore_load Load
# TYPE crore_load gauge
crore_load{shard="0",of="x"} 0.25
# HELP crore_delivery_seconds Delivery
# TYPE crore_delivery_seconds histogram
# UNIT crore_delivery_seconds seconds
crore_delivery_seconds_bucket{le="0.000016"} 2
crore_delivery_seconds_bucket{le="1"} 5
crore_delivery_seconds_bucket{le="+Inf"} 6
crore_delivery_seconds_sum 4.5
crore_delivery_seconds_count 6
# EOF
"#
        );
    }
}
