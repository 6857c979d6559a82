//! Reads the values of a recorded result, and formats the numbers of the page.

use serde_json::Value;

use super::html::escape;

/// A recorded result.
pub struct Record {
    /// The name of the file.
    pub name: String,
    /// The content of the file.
    pub value: Value,
}

impl Record {
    /// A record of a file with this name and content. `None` if the content is not the result of a scenario.
    pub fn from_file(name: String, value: Value) -> Option<Record> {
        let is_result = value["scenario"].is_string() && value["result"].is_object();
        is_result.then_some(Record { name, value })
    }

    /// The `result` object: what the scenario measured.
    pub fn result(&self) -> &Value {
        &self.value["result"]
    }

    /// The scenario.
    pub fn scenario(&self) -> &str {
        self.value["scenario"].as_str().unwrap_or_default()
    }

    /// Whether each connection had a topic of its own: in the scenario `million`, and in `hold` with the preset `million`.
    pub fn has_topic_per_connection(&self) -> bool {
        match self.scenario() {
            "Million" => true,
            "Hold" => self.result()["preset"] == "million",
            _ => false,
        }
    }

    /// A number of the result, by JSON pointer.
    pub fn number(&self, pointer: &str) -> Option<f64> {
        self.result().pointer(pointer)?.as_f64()
    }

    /// Bytes that an idle connection needs in the server process, and in the kernel. `None` if they were not measured, or measured wrongly.
    pub fn bytes_per_connection(&self) -> Option<[f64; 2]> {
        let sockets = |moment: &str| self.number(&format!("/{moment}/kernel/slabs/TCP"));
        if sockets("empty").unwrap_or(0.0) > sockets("open").unwrap_or(f64::MAX) / 100.0 {
            // When the run began, the kernel still had sockets of an earlier run. New sockets reused the memory of those sockets, so the
            // computed cost would be too low.
            return None;
        }
        let cost = "/per_connection_open";
        let process = self.number(&format!("{cost}/server_pss_bytes"))?;
        let one_end = |kind: &str| {
            let kernel_bytes = |name: &str| self.number(&format!("{cost}/kernel_{name}_bytes"));
            // If clients and server share a kernel, the figure covers both ends of a connection.
            kernel_bytes(kind)
                .or_else(|| kernel_bytes(&format!("both_ends_{kind}")).map(|both| both / 2.0))
        };
        Some([process, one_end("slab")? + one_end("buffer").unwrap_or(0.0)])
    }

    /// The protocol of the clients.
    pub fn protocol(&self) -> &str {
        self.result()["protocol"].as_str().unwrap_or_default()
    }

    /// The heading of the record's section of the page: file name, connections and protocol.
    pub fn title(&self) -> String {
        let connections = self.number("/connections");
        let protocol = self.protocol();
        match connections {
            Some(connections) => format!("{}: {} × {protocol}", self.name, count(connections)),
            None => self.name.clone(),
        }
    }

    /// A paragraph with machine, date and command, and a notice if the run failed.
    pub fn origin(&self) -> String {
        let machine = &self.value["machine"];
        let text = |value: &Value| value.as_str().map(String::from);
        let gib = text(&machine["memory"]).and_then(|memory| {
            let kib: f64 = memory.split(' ').next()?.parse().ok()?;
            Some(format!("{:.0} GiB", kib / 1024.0 / 1024.0))
        });
        let parts = [
            machine["cores"]
                .as_u64()
                .map(|cores| format!("{cores} cores")),
            text(&machine["cpu"]),
            gib,
            text(&machine["kernel"]).map(|kernel| format!("Linux {kernel}")),
            Some(text(&self.value["date"]).unwrap_or_else(|| "date not recorded".into())),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let command = text(&self.value["command"]).unwrap_or_default();
        let failure_notice = match self.result()["clean"].as_bool() {
            Some(false) => "<br><strong class=\"bad\">This run has failed.</strong>",
            _ => "",
        };
        format!(
            "<p class=\"of\">{}<br><code>{}</code>{failure_notice}</p>\n",
            escape(&parts.join(" · ")),
            escape(&command)
        )
    }
}

/// A number with thousands separators.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number in a few characters, such as `1.5M`.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", decimals(v / 1e6)),
        v if v >= 1e3 => format!("{}k", decimals(v / 1e3)),
        v => decimals(v),
    }
}

/// A number with at most three decimals, without zeros at the end.
pub fn decimals(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// A number of bytes, with separators and the unit.
pub fn bytes(value: f64) -> String {
    format!("{} B", count(value))
}
