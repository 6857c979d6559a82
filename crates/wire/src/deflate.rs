//! The data format of permessage-deflate without context takeover (RFC 7692 §7.2): every message is
//! a raw DEFLATE stream of its own, sync-flushed, with the flush's last four bytes left out.
//!
//! Invariant: inflating stops at its limit, so that a small message never becomes a large one.
//! Contexts that outlive a message are deliberately not supported: they cost memory for idle
//! connections, and a broadcast could not be compressed once for all.

use alloc::boxed::Box;
use alloc::vec::Vec;
use miniz_oxide::DataFormat;
use miniz_oxide::deflate::core::{
    CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress_to_output,
};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// The end of a sync flush, which senders leave out and receivers put back (RFC 7692 §7.2.1, §7.2.2).
const FLUSH_TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];

/// The bytes that end the stream here: the flush's tail and an empty final block. They read as the end only if the message
/// stopped at a block's boundary, so that a truncated message is noticed.
const END: [u8; 9] = [0x00, 0x00, 0xFF, 0xFF, 0x01, 0x00, 0x00, 0xFF, 0xFF];

/// An empty message compresses to this (RFC 7692 §7.2.3.6).
const EMPTY: u8 = 0x00;

/// DEFLATE's largest window, 2^15 bytes.
const WINDOW_BITS: u8 = 15;

/// The first size of an inflated message's buffer, in bytes; it doubles from there.
const INFLATE_START: usize = 512;

/// Compresses messages, each by itself. The tables, about 300 KB, are allocated by the first message
/// and kept: one compressor per shard is enough.
#[derive(Default)]
pub struct Compressor {
    state: Option<State>,
}

struct State {
    level: u8,
    deflate: Box<CompressorOxide>,
}

impl Compressor {
    /// A compressor that occupies nothing until its first message.
    pub const fn new() -> Compressor {
        Compressor { state: None }
    }

    /// Appends the compressed form of one message to `out`. `level` is 1 (fast) to 9 (small).
    pub fn compress(&mut self, data: &[u8], level: u8, out: &mut Vec<u8>) {
        if data.is_empty() {
            out.push(EMPTY);
            return;
        }
        let deflate = self.prepared(level);
        let (status, consumed) = compress_to_output(deflate, data, TDEFLFlush::Sync, |bytes| {
            out.extend_from_slice(bytes);
            true
        });
        assert!(status == TDEFLStatus::Okay && consumed == data.len());
        assert!(out.ends_with(&FLUSH_TAIL), "a sync flush ends in its tail");
        out.truncate(out.len() - FLUSH_TAIL.len());
    }

    fn prepared(&mut self, level: u8) -> &mut CompressorOxide {
        match &mut self.state {
            Some(state) if state.level == level => state.deflate.reset(),
            state => {
                let strategy = CompressionStrategy::Default;
                let deflate =
                    CompressorOxide::with_params(DataFormat::Raw, level, strategy, WINDOW_BITS);
                *state = Some(State {
                    level,
                    deflate: Box::new(deflate),
                });
            }
        }
        let state = self.state.as_mut().expect("was just made");
        &mut state.deflate
    }
}

impl core::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Compressor")
            .field("level", &self.state.as_ref().map(|state| state.level))
            .finish()
    }
}

/// Why a message did not inflate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InflateError {
    /// It would be longer than the limit.
    TooBig,
    /// It is not DEFLATE data, or is cut off.
    Malformed,
}

/// Appends the inflated message to `out`, at most `limit` bytes. Messages of several blocks, final
/// ones among them, are fine (RFC 7692 §7.2.3.4, §7.2.3.5).
///
/// # Errors
///
/// [`InflateError`]; `out` then has unspecified bytes at its end.
pub fn inflate(data: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), InflateError> {
    if data.is_empty() {
        return Ok(()); // not even the byte that an empty message has, but clear enough
    }
    let start = out.len();
    let mut inflater = Inflater {
        state: DecompressorOxide::new(),
        start,
        filled: start,
        limit,
    };
    let mut rest = data;
    while !rest.is_empty() {
        match inflater.run(rest, out)? {
            // The message ended with a final block and nothing after it.
            Some([]) => return inflater.finish(out),
            // More blocks follow a final one.
            Some(left) => rest = left,
            None => break,
        }
    }
    match inflater.run(&END, out)? {
        Some([]) => inflater.finish(out),
        _ => Err(InflateError::Malformed),
    }
}

struct Inflater {
    state: DecompressorOxide,
    /// Where the message begins in the output.
    start: usize,
    /// Where the output's inflated bytes end; past it lie zeros to write over.
    filled: usize,
    limit: usize,
}

impl Inflater {
    /// Inflates `input`: `Some` with the bytes behind its final block, or `None` when all was taken and the stream goes on.
    fn run<'i>(
        &mut self,
        mut input: &'i [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<&'i [u8]>, InflateError> {
        const FLAGS: u32 = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        loop {
            // Positions count from the message's start, so that it cannot refer to bytes before it.
            let message = &mut out[self.start..];
            let at = self.filled - self.start;
            let (status, read, written) = decompress(&mut self.state, input, message, at, FLAGS);
            input = &input[read..];
            self.filled += written;
            match status {
                TINFLStatus::Done => {
                    self.state.init();
                    return Ok(Some(input));
                }
                TINFLStatus::NeedsMoreInput => return Ok(None),
                TINFLStatus::HasMoreOutput => self.grow(out)?,
                _ => return Err(InflateError::Malformed),
            }
        }
    }

    /// Makes room for more output: up to one byte over the limit, to tell an exact fit from too much.
    fn grow(&self, out: &mut Vec<u8>) -> Result<(), InflateError> {
        let size = out.len() - self.start;
        if self.filled - self.start > self.limit {
            return Err(InflateError::TooBig);
        }
        let most = self.limit.saturating_add(1);
        out.resize(
            self.start + (size * 2).clamp(INFLATE_START.min(most), most),
            0,
        );
        Ok(())
    }

    fn finish(self, out: &mut Vec<u8>) -> Result<(), InflateError> {
        if self.filled - self.start > self.limit {
            return Err(InflateError::TooBig);
        }
        out.truncate(self.filled);
        Ok(())
    }
}
