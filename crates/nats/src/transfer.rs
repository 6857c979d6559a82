//! Transfers checkpoints: reads an object, writes an object, and reads the batches that follow a checkpoint. All calls may block, and every wait has a
//! timeout.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::object_store::{Object, ObjectMetadata, ObjectStore};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::driver::Driver;
use crate::error::{Error, chain};

/// The maximum time without progress in a transfer.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a chunk: less than `max_payload` of NATS. NATS syncs each chunk before the next one is sent.
pub const CHUNK_BYTES: usize = 1 << 20;
/// The maximum number of chunks that wait to be sent.
const CHUNKS_AHEAD: usize = 4;

/// Reads an object. If its bytes differ from those that were written, reading ends with an error of the kind `InvalidData`.
pub struct Download {
    driver: Driver,
    object: Object,
}

impl Download {
    pub(crate) fn new(driver: Driver, object: Object) -> Download {
        Download { driver, object }
    }
}

impl Read for Download {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let object = &mut self.object;
        let read = async { timeout(PROGRESS_TIMEOUT, object.read(into)).await };
        // NATS sends nothing more of an object that is removed meanwhile, so the wait needs a timeout.
        self.driver
            .block_on(read)
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

enum Piece {
    Chunk(Bytes),
    /// The object is complete.
    End,
}

/// Writes an object. The object exists as a whole once [`end`](Upload::end) returns. If the upload is dropped before that, the object never
/// exists.
pub struct Upload {
    driver: Driver,
    chunk: Vec<u8>,
    pieces: mpsc::Sender<Piece>,
    /// The task that writes the object.
    writer: JoinHandle<Result<(), String>>,
}

impl Upload {
    pub(crate) fn new(driver: Driver, bucket: ObjectStore, metadata: ObjectMetadata) -> Upload {
        let (pieces, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let mut piece_reader = PieceReader {
            receiver,
            rest: Bytes::new(),
            has_ended: false,
        };
        let metadata = ObjectMetadata {
            chunk_size: Some(CHUNK_BYTES),
            ..metadata
        };
        let write = async move {
            let result = bucket.put(metadata, &mut piece_reader).await;
            result.map(drop).map_err(|error| chain(&error))
        };
        Upload {
            writer: driver.spawn(write),
            driver,
            chunk: Vec::with_capacity(CHUNK_BYTES),
            pieces,
        }
    }

    fn send(&mut self, piece: Piece) -> io::Result<()> {
        let sent = self.pieces.blocking_send(piece);
        // The call of `end` returns the reason.
        sent.map_err(|_| io::Error::other("NATS takes no more of it"))
    }

    /// Completes the object.
    ///
    /// # Errors
    /// The reason why the object does not exist.
    pub fn end(mut self) -> Result<(), Error> {
        let written = self.flush().and_then(|()| self.send(Piece::End));
        let Upload {
            driver,
            pieces,
            writer,
            ..
        } = self;
        drop(pieces);
        let result = driver.block_on(writer);
        let failed = |why: String| Error::transient(format!("a checkpoint: {why}"));
        result
            .map_err(|error| failed(error.to_string()))?
            .map_err(failed)?;
        written.map_err(|error| failed(error.to_string()))
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.chunk.len();
        let accepted = &bytes[..bytes.len().min(room)];
        self.chunk.extend_from_slice(accepted);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(accepted.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(CHUNK_BYTES);
        let chunk = std::mem::replace(&mut self.chunk, next);
        self.send(Piece::Chunk(chunk.into()))
    }
}

/// Reads the pieces of an object as one stream of bytes.
struct PieceReader {
    receiver: mpsc::Receiver<Piece>,
    rest: Bytes,
    has_ended: bool,
}

impl AsyncRead for PieceReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() && !self.has_ended {
            match ready!(self.receiver.poll_recv(context)) {
                Some(Piece::Chunk(chunk)) => self.rest = chunk,
                Some(Piece::End) => self.has_ended = true,
                None => return Poll::Ready(Err(io::Error::other("the upload was dropped"))),
            }
        }
        let count = self.rest.len().min(into.remaining());
        into.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}

/// Reads batches of a partition, in the order of the log.
pub struct Batches {
    driver: Driver,
    messages: pull::Stream,
    next_sequence: u64,
    last_sequence: u64,
}

/// A batch in the log.
pub struct StoredBatch {
    /// The sequence of the batch.
    pub sequence: u64,
    /// When NATS stored the batch, in seconds since 1970, by the clock of NATS.
    pub unix_s: u32,
    /// The batch.
    pub bytes: Bytes,
}

impl Batches {
    pub(crate) fn new(
        driver: Driver,
        messages: pull::Stream,
        sequences: std::ops::RangeInclusive<u64>,
    ) -> Batches {
        Batches {
            driver,
            messages,
            next_sequence: *sequences.start(),
            last_sequence: *sequences.end(),
        }
    }

    /// Reads the next batch; `None` after the last one.
    ///
    /// # Errors
    /// If the batch does not arrive.
    pub fn read(&mut self) -> Result<Option<StoredBatch>, Error> {
        if self.next_sequence > self.last_sequence {
            return Ok(None);
        }
        let messages = &mut self.messages;
        let receive = async { timeout(PROGRESS_TIMEOUT, messages.next()).await };
        let sequence = self.next_sequence;
        let failed = |why: &str| Error::transient(format!("batch {sequence} does not come: {why}"));
        let message = match self.driver.block_on(receive) {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => return Err(failed(&chain(&error))),
            Ok(None) => return Err(failed("the consumer has ended")),
            Err(_) => return Err(failed("NATS does not answer")),
        };
        let info = message.info().map_err(|error| failed(&error.to_string()))?;
        if info.stream_sequence != sequence {
            return Err(failed(&format!("batch {} comes", info.stream_sequence)));
        }
        let unix_s = u32::try_from(info.published.unix_timestamp()).unwrap_or(0);
        self.next_sequence += 1;
        Ok(Some(StoredBatch {
            sequence,
            unix_s,
            bytes: message.message.payload,
        }))
    }
}
