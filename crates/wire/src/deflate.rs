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
const MESSAGE_END: [u8; 9] = [0x00, 0x00, 0xFF, 0xFF, 0x01, 0x00, 0x00, 0xFF, 0xFF];

/// The compressed form of an empty message (RFC 7692 §7.2.3.6).
const EMPTY_MESSAGE: u8 = 0x00;

/// DEFLATE's largest window, 2^15 bytes.
const WINDOW_BITS: u8 = 15;

/// The work of building the tables of a block, as the number of bytes with the same cost.
const BLOCK_WORK: usize = 8 << 10;

/// The maximum number of output bytes of one step.
const STEP_OUTPUT_BYTES: usize = 32 << 10;

/// The first size in bytes of the buffer for an inflated message. A full buffer doubles.
const FIRST_BUFFER_BYTES: usize = 512;

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
            out.push(EMPTY_MESSAGE);
            return;
        }
        let deflate = self.prepare(level);
        let (status, consumed) = compress_to_output(deflate, data, TDEFLFlush::Sync, |bytes| {
            out.extend_from_slice(bytes);
            true
        });
        assert!(status == TDEFLStatus::Okay && consumed == data.len());
        assert!(out.ends_with(&FLUSH_TAIL), "a sync flush ends in its tail");
        out.truncate(out.len() - FLUSH_TAIL.len());
    }

    fn prepare(&mut self, level: u8) -> &mut CompressorOxide {
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
    let is_complete = inflater.advance(data, &mut work)?;
    debug_assert!(is_complete, "the work is not bounded");
    out.append(&mut inflater.into_plain());
    Ok(())
}

/// Inflates a message in steps. A message may have several blocks, and several final blocks (RFC 7692 §7.2.3.4, §7.2.3.5).
pub struct Inflater {
    state: Box<DecompressorOxide>,
    /// The inflated bytes, followed by zeros that the next output overwrites.
    out: Vec<u8>,
    /// The end of the inflated bytes in `out`.
    plain_bytes: usize,
    limit: usize,
    /// Number of bytes read of the message and of [`MESSAGE_END`] after it.
    read_bytes: usize,
    /// The last block read was a final block.
    has_ended: bool,
}

impl core::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inflater")
            .field("read_bytes", &self.read_bytes)
            .field("plain_bytes", &self.plain_bytes)
            .finish_non_exhaustive()
    }
}

impl Inflater {
    /// An inflater for a message of at most `limit` bytes.
    pub fn new(limit: usize) -> Inflater {
        Inflater {
            state: Box::default(),
            out: Vec::new(),
            plain_bytes: 0,
            limit,
            read_bytes: 0,
            has_ended: false,
        }
    }

    /// The inflated bytes so far.
    pub fn plain(&self) -> &[u8] {
        &self.out[..self.plain_bytes]
    }

    /// The inflated message.
    pub fn into_plain(mut self) -> Vec<u8> {
        self.out.truncate(self.plain_bytes);
        self.out
    }

    /// Bytes of heap that the inflater occupies.
    pub fn bytes(&self) -> usize {
        size_of::<DecompressorOxide>() + self.out.capacity()
    }

    /// Continues until the message is inflated (true) or `work` is used up (false). `data` must be the whole compressed message in every
    /// call. The bytes of input and output are subtracted from `work`, and `BLOCK_WORK` for each block, because even an empty block costs
    /// as much as thousands of bytes. A call may exceed `work` by one block or `STEP_OUTPUT_BYTES`.
    ///
    /// # Errors
    ///
    /// [`InflateError`].
    pub fn advance(&mut self, data: &[u8], work: &mut usize) -> Result<bool, InflateError> {
        if data.is_empty() {
            return Ok(true); // lenient: even an empty message should have one byte
        }
        loop {
            if self.has_ended && self.read_bytes == data.len()
                || self.read_bytes == data.len() + MESSAGE_END.len()
            {
                return match self.has_ended && self.plain_bytes <= self.limit {
                    true => Ok(true),
                    false if self.has_ended => Err(InflateError::TooBig),
                    false => Err(InflateError::Malformed),
                };
            }
            if *work == 0 {
                return Ok(false);
            }
            let input = match data.get(self.read_bytes..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &MESSAGE_END[self.read_bytes - data.len()..],
            };
            let step_work = self.inflate_step(input)?;
            *work = work.saturating_sub(step_work);
            if self.has_ended
                && self.read_bytes > data.len()
                && self.read_bytes < data.len() + MESSAGE_END.len()
            {
                return Err(InflateError::Malformed); // a truncated block ended within `MESSAGE_END`
            }
        }
    }

    /// Inflates a piece of the input; returns the work done.
    fn inflate_step(&mut self, input: &[u8]) -> Result<usize, InflateError> {
        const FLAGS: u32 = TINFL_FLAG_HAS_MORE_INPUT
            | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF
            | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
        self.has_ended = false;
        let start = self.plain_bytes;
        let end = self.out.len().min(start + STEP_OUTPUT_BYTES);
        let (status, read, written) =
            decompress(&mut self.state, input, &mut self.out[..end], start, FLAGS);
        self.read_bytes += read;
        self.plain_bytes += written;
        let mut work = read + written;
        match status {
            TINFLStatus::Done => {
                self.state.init();
                self.has_ended = true;
                work += BLOCK_WORK;
            }
            TINFLStatus::BlockBoundary => work += BLOCK_WORK,
            TINFLStatus::NeedsMoreInput => {}
            TINFLStatus::HasMoreOutput if self.plain_bytes < self.out.len() => {}
            TINFLStatus::HasMoreOutput => self.grow()?,
            _ => return Err(InflateError::Malformed),
        }
        Ok(work)
    }

    /// Enlarges the output buffer, up to one byte over the limit. This byte shows that a message is too long.
    fn grow(&mut self) -> Result<(), InflateError> {
        if self.plain_bytes > self.limit {
            return Err(InflateError::TooBig);
        }
        let len_max = self.limit.saturating_add(1);
        let new_len = (self.out.len() * 2).clamp(FIRST_BUFFER_BYTES.min(len_max), len_max);
        self.out.resize(new_len, 0);
        Ok(())
    }
}
