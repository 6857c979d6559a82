//! Lists the published experiments with which the project compares itself, with the figures of their authors.

/// A published result, with the figures that its author gave.
pub struct Published {
    /// The author and the year.
    pub name: &'static str,
    /// The URL of the publication.
    pub source: Option<&'static str>,
    /// How the clients were connected.
    pub transport: &'static str,
    /// The number of connections.
    pub connections: u64,
    /// Bytes per connection in the process and in the kernel. The kernel's are 0 if the author did not give them.
    pub bytes: Option<[f64; 2]>,
    /// Messages a second, and the messages' latency in milliseconds: mean, standard deviation and maximum.
    pub served: Option<(f64, [f64; 3])>,
    /// Cores that were busy.
    pub cores: Option<f64>,
}

const MIGRATORY_DATA_URL: Option<&str> =
    Some("https://migratorydata.com/blog/websockets-benchmark-12-million-concurrent-users/");

const fn migratory_data(
    connections: u64,
    rate: f64,
    latency_ms: [f64; 3],
    cores: f64,
) -> Published {
    Published {
        name: "MigratoryData 2013, 12 cores",
        source: MIGRATORY_DATA_URL,
        transport: "WebSocket",
        connections,
        bytes: None,
        served: Some((rate, latency_ms)),
        cores: Some(cores),
    }
}

const fn memory_experiment(
    name: &'static str,
    source: Option<&'static str>,
    transport: &'static str,
    connections: u64,
    bytes: [f64; 2],
) -> Published {
    Published {
        name,
        source,
        transport,
        connections,
        bytes: Some(bytes),
        served: None,
        cores: None,
    }
}

/// All experiments, the oldest first.
pub const ALL: [Published; 9] = [
    memory_experiment(
        "nginx push module 2009",
        Some("https://rsms.me/archive/2009/10k-comet-connections"),
        "long-poll",
        10_000,
        [6_840.0, 0.0],
    ),
    memory_experiment(
        "Node.js 2012",
        Some("https://blog.caustik.com/2012/08/19/node-js-w1m-concurrent-connections/"),
        "long-poll",
        1_000_000,
        [16_000.0, 0.0],
    ),
    migratory_data(3_000_000, 50_000.0, [5.0, 36.0, 640.0], 1.7),
    migratory_data(6_000_000, 100_000.0, [35.0, 123.0, 951.0], 2.9),
    migratory_data(9_000_000, 150_000.0, [92.0, 263.0, 1_292.0], 4.7),
    Published {
        bytes: Some([4_500.0, 3_000.0]),
        ..migratory_data(12_000_000, 200_000.0, [268.0, 424.0, 2_024.0], 6.8)
    },
    memory_experiment(
        "Tornado 2014, an end of raw TCP",
        None,
        "TCP",
        10_000_000,
        [10_500.0, 0.0],
    ),
    memory_experiment(
        "Tornado 2014, an end of a WebSocket",
        None,
        "WebSocket",
        10_000_000,
        [15_500.0, 0.0],
    ),
    memory_experiment(
        "Centrifugo 2026, default",
        None,
        "WebSocket",
        1_000_000,
        [27_000.0, 4_000.0],
    ),
];
