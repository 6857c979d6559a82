//! Compresses and inflates messages for permessage-deflate without context takeover (RFC 7692 §7.2). Every message is a separate raw
//! DEFLATE stream. It ends in a sync flush, without the last four bytes of the flush.
//!
//! Invariants: an inflated message is never longer than its limit. Inflating always pauses when the work that the caller allows is done.
//!
//! Context takeover is deliberately not supported: a context would cost memory on idle connections, and a message could not be compressed
//! once for all subscribers.

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

/// The end of a sync flush. Senders remove it and receivers append it (RFC 7692 §7.2.1, §7.2.2).
const FLUSH_TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];

/// The inflater appends these bytes to a message: the end of the flush and an empty final block. They end the stream only after the
/// boundary of a block, so a truncated message is detected.
const END: [u8; 9] = [0x00, 0x00, 0xFF, 0xFF, 0x01, 0x00, 0x00, 0xFF, 0xFF];

/// The compressed form of an empty message (RFC 7692 §7.2.3.6).
const EMPTY: u8 = 0x00;

/// DEFLATE's largest window, 2^15 bytes.
const WINDOW_BITS: u8 = 15;

/// The work of building the tables of a block, as the number of bytes with the same cost.
const BLOCK_WORK: usize = 8 << 10;

/// The maximum number of output bytes of one step.
const OUTPUT_AT_ONCE: usize = 32 << 10;

/// The first size in bytes of the buffer for an inflated message. A full buffer doubles.
const INFLATE_START: usize = 512;

/// Compresses messages separately. The first message allocates tables of about 300 KB, which stay allocated. One compressor for each shard
/// is enough.
#[derive(Default)]
pub struct Compressor {
    state: Option<State>,
}

struct State {
    level: u8,
    deflate: Box<CompressorOxide>,
}

impl Compressor {
    /// A compressor that allocates nothing until its first message.
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

/// Why a message was not inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InflateError {
    /// The message would be longer than the limit.
    TooBig,
    /// The message is not DEFLATE data, or is truncated.
    Malformed,
}

/// Inflates a whole message of at most `limit` inflated bytes into `out`.
///
/// # Errors
///
/// [`InflateError`].
pub fn inflate(data: &[u8], limit: usize, out: &mut Vec<u8>) -> Result<(), InflateError> {
    let mut inflater = Inflater::new(limit);
    let mut work = usize::MAX;
    let done = inflater.advance(data, &mut work)?;
    debug_assert!(done, "the work is not bounded");
    out.append(&mut inflater.into_plain());
    Ok(())
}

/// Inflates a message in steps. A message may have several blocks, and several final blocks (RFC 7692 §7.2.3.4, §7.2.3.5).
pub struct Inflater {
    state: Box<DecompressorOxide>,
    /// The inflated bytes, followed by zeros that the next output overwrites.
    out: Vec<u8>,
    /// The end of the inflated bytes in `out`.
    filled: usize,
    limit: usize,
    /// Number of bytes read of the message and of [`END`] after it.
    read: usize,
    /// The last block read was a final block.
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
    /// An inflater for a message of at most `limit` bytes.
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

    /// Bytes of heap that the inflater occupies.
    pub fn bytes(&self) -> usize {
        size_of::<DecompressorOxide>() + self.out.capacity()
    }

    /// Continues until the message is inflated (true) or `work` is used up (false). `data` must be the whole compressed message in every
    /// call. Subtracted from `work` are the bytes of input and output, and `BLOCK_WORK` for each block, because even an empty block costs
    /// as much as thousands of bytes. A call may exceed `work` by one block or `OUTPUT_AT_ONCE`.
    ///
    /// # Errors
    ///
    /// [`InflateError`].
    pub fn advance(&mut self, data: &[u8], work: &mut usize) -> Result<bool, InflateError> {
        if data.is_empty() {
            return Ok(true); // lenient: even an empty message should have one byte
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
            let did = self.inflate_some(input)?;
            *work = work.saturating_sub(did);
            if self.ended && self.read > data.len() && self.read < data.len() + END.len() {
                return Err(InflateError::Malformed); // a truncated block ended within `END`
            }
        }
    }

    /// Inflates a piece of the input; returns the work done.
    fn inflate_some(&mut self, input: &[u8]) -> Result<usize, InflateError> {
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

    /// Enlarges the output buffer, up to one byte over the limit. This byte shows that a message is too long.
    fn grow(&mut self) -> Result<(), InflateError> {
        if self.filled > self.limit {
            return Err(InflateError::TooBig);
        }
        let size_max = self.limit.saturating_add(1);
        let size = (self.out.len() * 2).clamp(INFLATE_START.min(size_max), size_max);
        self.out.resize(size, 0);
        Ok(())
    }
}
