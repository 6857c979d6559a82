//! Tests of everything that comes from the network, as plain functions of any bytes: each panics when a promise that Crore
//! makes about them is broken.
//!
//! Invariants: a target depends on its bytes alone, so that a kept input means the same for ever. The first two bytes of
//! most are for us: options, and where the rest is cut. Deliberately absent: clocks, sockets (but for a pair of them in
//! `tls`), and any dependence on the fuzzer that calls; `src/main.rs` does on the stable toolchain, `libfuzzer/` on
//! nightly.
#![forbid(unsafe_code)]

mod batch;
mod connection;
mod frames;
mod http;
mod mqtt;
pub mod mutate;
mod ndjson;
mod node;
mod requests;
mod shards;
mod snapshot;
mod text;
mod tls;

pub use batch::batch;
pub use connection::connection;
pub use frames::{deflate, frames};
pub use http::{body, fields, head};
pub use mqtt::mqtt;
pub use ndjson::ndjson;
pub use requests::requests;
pub use snapshot::snapshot;
pub use text::{position, sse, topic};
pub use tls::tls;

/// A target: its name, which is also that of its corpus; the function; and the building blocks of its inputs.
pub struct Target {
    /// As the command line and the directories call it.
    pub name: &'static str,
    /// Panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Words that a mutation inserts.
    pub words: &'static [&'static str],
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "head",
        run: head,
        words: http::WORDS,
    },
    Target {
        name: "body",
        run: body,
        words: http::CHUNK_WORDS,
    },
    Target {
        name: "fields",
        run: fields,
        words: http::FIELD_WORDS,
    },
    Target {
        name: "frames",
        run: frames,
        words: frames::WORDS,
    },
    Target {
        name: "mqtt",
        run: mqtt,
        words: mqtt::WORDS,
    },
    Target {
        name: "deflate",
        run: deflate,
        words: &[],
    },
    Target {
        name: "sse",
        run: sse,
        words: text::SSE_WORDS,
    },
    Target {
        name: "position",
        run: position,
        words: text::POSITION_WORDS,
    },
    Target {
        name: "topic",
        run: topic,
        words: text::TOPIC_WORDS,
    },
    Target {
        name: "ndjson",
        run: ndjson,
        words: ndjson::WORDS,
    },
    Target {
        name: "requests",
        run: requests,
        words: requests::WORDS,
    },
    Target {
        name: "connection",
        run: connection,
        words: &[],
    },
    Target {
        name: "snapshot",
        run: snapshot,
        words: &[],
    },
    Target {
        name: "batch",
        run: batch,
        words: batch::WORDS,
    },
    Target {
        name: "tls",
        run: tls,
        words: &[],
    },
];

/// An input's parts.
pub(crate) struct Input<'a> {
    /// Each target gives this byte a meaning of its own.
    pub options: u8,
    cuts: u8,
    /// The rest.
    pub bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// `None` for inputs that are too short.
    pub fn of(data: &'a [u8]) -> Option<Input<'a>> {
        let [options, cuts, bytes @ ..] = data else {
            return None;
        };
        Some(Input {
            options: *options,
            cuts: *cuts,
            bytes,
        })
    }

    /// The bytes in pieces, none of them empty: one by one for every 16th input, else of mixed sizes.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rng = crore_rng::Rng::new(self.cuts.into());
        let longest = match self.cuts & 15 {
            0 => 1,
            more => 4 * usize::from(more),
        };
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (piece, left) = rest.split_at(rest.len().min(rng.range(1, longest)));
            rest = left;
            (!piece.is_empty()).then_some(piece)
        })
    }
}
