//! Fuzz targets for all input from the network. Each is a plain function of bytes that panics if Crore breaks a promise about them.
//!
//! Invariant: a target depends only on its bytes, so a kept input always repeats the same run. In most targets the first two bytes are the
//! options and the seed of the cuts: the places at which the remaining bytes are split into pieces. Deliberately absent: clocks, sockets
//! (except a pair of them in `tls`), and any dependence on the fuzzer that calls the target (`src/main.rs` on the stable toolchain,
//! `libfuzzer/` on nightly).
#![forbid(unsafe_code)]

mod batch;
mod centrifugo;
mod connection;
mod frames;
mod http;
mod http2;
mod mqtt;
pub mod mutate;
mod ndjson;
mod node;
mod pusher;
mod requests;
mod shards;
mod snapshot;
mod tcp;
mod text;
mod tls;

pub use batch::batch;
pub use centrifugo::centrifugo;
pub use connection::connection;
pub use frames::{deflate, frames};
pub use http::{body, fields, head};
pub use http2::http2;
pub use mqtt::mqtt;
pub use ndjson::ndjson;
pub use pusher::pusher;
pub use requests::requests;
pub use snapshot::snapshot;
pub use tcp::tcp;
pub use text::{position, sse, topic};
pub use tls::tls;

/// A fuzz target.
pub struct Target {
    /// The target's name, on the command line and as the directory of its corpus.
    pub name: &'static str,
    /// The function, which panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Words that the mutator inserts into inputs.
    pub words: &'static [&'static str],
}

/// All targets.
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
        name: "http2",
        run: http2,
        words: http2::WORDS,
    },
    Target {
        name: "mqtt",
        run: mqtt,
        words: mqtt::WORDS,
    },
    Target {
        name: "centrifugo",
        run: centrifugo,
        words: centrifugo::WORDS,
    },
    Target {
        name: "pusher",
        run: pusher,
        words: pusher::WORDS,
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
        name: "tcp",
        run: tcp,
        words: &[],
    },
    Target {
        name: "tls",
        run: tls,
        words: &[],
    },
];

/// The parts of an input.
pub(crate) struct Input<'a> {
    /// The meaning of this byte depends on the target.
    pub options: u8,
    cuts: u8,
    /// The rest of the input.
    pub bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Splits an input into its parts. `None` if it is too short.
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

    /// The bytes in pieces, none of them empty. For one in 16 values of `cuts` each piece has one byte; for the others sizes vary.
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
