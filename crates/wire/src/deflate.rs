//! The data format of permessage-deflate without context takeover (RFC 7692 §7.2): every message is
//! a raw DEFLATE stream of its own, sync-flushed, with the flush's last four bytes left out.
//!
//! Invariants: inflating stops at its limit, so that a small message never becomes a large one; and it stops when the work that its caller
//! allows is done, with a message of any form, to go on later.
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
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY,
    TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
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

/// The work of a block besides its content, in bytes: its tables are built anew.
const BLOCK_WORK: usize = 2 << 10;

/// Bytes of output that are made in one go.
const OUTPUT_AT_ONCE: usize = 32 << 10;

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

/// Inflates a whole message into `out`, at most `limit` bytes.
///
/// # Errors
///
/// [`InflateError`].
pub fn inflate(data: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), InflateError> {
    let mut inflater = Inflater::new(limit);
    let mut work = usize::MAX;
    let done = inflater.go_on(data, &mut work)?;
    debug_assert!(done, "the work is not bounded");
    out.append(&mut inflater.into_plain());
    Ok(())
}

/// A message that is inflated in as many steps as its caller wants. Messages of several blocks, final ones among them, are
/// fine (RFC 7692 §7.2.3.4, §7.2.3.5).
pub struct Inflater {
    state: Box<DecompressorOxide>,
    /// The inflated bytes, and zeros to write over.
    out: Vec<u8>,
    /// Where the inflated bytes end.
    filled: usize,
    limit: usize,
    /// Bytes of the message that were read, and of [`END`] behind it.
    read: usize,
    /// The message ended with a final block, and nothing followed so far.
    ended: bool,
}

impl core::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inflater")
            .field("read", &self.read)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

impl Inflater {
    /// Begins a message that may have so many bytes.
    pub fn new(limit: usize) -> Inflater {
        Inflater {
            state: Box::default(),
            out: Vec::new(),
            filled: 0,
            limit,
            read: 0,
            ended: false,
        }
    }

    /// The inflated bytes so far.
    pub fn plain(&self) -> &[u8] {
        &self.out[..self.filled]
    }

    /// The inflated message.
    pub fn into_plain(mut self) -> Vec<u8> {
        self.out.truncate(self.filled);
        self.out
    }

    /// Bytes of heap that it occupies.
    pub fn bytes(&self) -> usize {
        size_of::<DecompressorOxide>() + self.out.capacity()
    }

    /// Goes on with `data`, always the whole compressed message, until it is inflated (true) or the work is used up. `work` is in
    /// bytes: of input and of output, and `BLOCK_WORK` for each block, since a block without data takes a few bytes of
    /// input and makes as much work as thousands. At most a block or `OUTPUT_AT_ONCE` is done past it.
    ///
    /// # Errors
    ///
    /// [`InflateError`].
    pub fn go_on(&mut self, data: &[u8], work: &mut usize) -> Result<bool, InflateError> {
        if data.is_empty() {
            return Ok(true); // not even the byte that an empty message has, but clear enough
        }
        loop {
            if self.ended && self.read == data.len() || self.read == data.len() + END.len() {
                return match self.ended && self.filled <= self.limit {
                    true => Ok(true),
                    false if self.ended => Err(InflateError::TooBig),
                    false => Err(InflateError::Malformed),
                };
            }
            if *work == 0 {
                return Ok(false);
            }
            let input = match data.get(self.read..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &END[self.read - data.len()..],
            };
            let did = self.some(input)?;
            *work = work.saturating_sub(did);
            if self.ended && self.read > data.len() && self.read < data.len() + END.len() {
                return Err(InflateError::Malformed); // the bytes that were put back ended a block that was cut off
            }
        }
    }

    /// Inflates some of the input; returns the work that it was.
    fn some(&mut self, input: &[u8]) -> Result<usize, InflateError> {
        const FLAGS: u32 = TINFL_FLAG_HAS_MORE_INPUT
            | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF
            | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
        self.ended = false;
        let at = self.filled;
        let end = self.out.len().min(at + OUTPUT_AT_ONCE);
        let (status, read, written) =
            decompress(&mut self.state, input, &mut self.out[..end], at, FLAGS);
        self.read += read;
        self.filled += written;
        let mut work = read + written;
        match status {
            TINFLStatus::Done => {
                self.state.init();
                self.ended = true;
                work += BLOCK_WORK;
            }
            TINFLStatus::BlockBoundary => work += BLOCK_WORK,
            TINFLStatus::NeedsMoreInput => {}
            TINFLStatus::HasMoreOutput if self.filled < self.out.len() => {}
            TINFLStatus::HasMoreOutput => self.grow()?,
            _ => return Err(InflateError::Malformed),
        }
        Ok(work)
    }

    /// Makes room for more output: up to one byte over the limit, to tell an exact fit from too much.
    fn grow(&mut self) -> Result<(), InflateError> {
        if self.filled > self.limit {
            return Err(InflateError::TooBig);
        }
        let most = self.limit.saturating_add(1);
        let size = (self.out.len() * 2).clamp(INFLATE_START.min(most), most);
        self.out.resize(size, 0);
        Ok(())
    }
}
