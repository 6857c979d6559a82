//! Transfers of checkpoints: reads an object, writes an object, and reads the batches that follow a checkpoint. For threads that may block;
//! every wait has a timeout.

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
        // A timeout, because NATS sends nothing more of an object that is removed meanwhile.
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
    put: JoinHandle<Result<(), String>>,
}

impl Upload {
    pub(crate) fn new(driver: Driver, bucket: ObjectStore, of: ObjectMetadata) -> Upload {
        let (pieces, come) = mpsc::channel(CHUNKS_AHEAD);
        let mut pieces_in = PieceReader {
            come,
            rest: Bytes::new(),
            ended: false,
        };
        let of = ObjectMetadata {
            chunk_size: Some(CHUNK_BYTES),
            ..of
        };
        let put = async move {
            let put = bucket.put(of, &mut pieces_in).await;
            put.map(drop).map_err(|error| chain(&error))
        };
        Upload {
            put: driver.spawn(put),
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
            put,
            ..
        } = self;
        drop(pieces);
        let done = driver.block_on(put);
        let failed = |why: String| Error::transient(format!("a checkpoint: {why}"));
        done.map_err(|error| failed(error.to_string()))?
            .map_err(failed)?;
        written.map_err(|error| failed(error.to_string()))
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.chunk.len();
        let some = &bytes[..bytes.len().min(room)];
        self.chunk.extend_from_slice(some);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(some.len())
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
    come: mpsc::Receiver<Piece>,
    rest: Bytes,
    ended: bool,
}

impl AsyncRead for PieceReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() && !self.ended {
            match ready!(self.come.poll_recv(context)) {
                Some(Piece::Chunk(chunk)) => self.rest = chunk,
                Some(Piece::End) => self.ended = true,
                None => return Poll::Ready(Err(io::Error::other("it was given up"))),
            }
        }
        let most = self.rest.len().min(into.remaining());
        into.put_slice(&self.rest.split_to(most));
        Poll::Ready(Ok(()))
    }
}

/// Reads batches of a partition, in the order of the log.
pub struct Batches {
    driver: Driver,
    messages: pull::Stream,
    next: u64,
    to: u64,
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
        places: std::ops::RangeInclusive<u64>,
    ) -> Batches {
        Batches {
            driver,
            messages,
            next: *places.start(),
            to: *places.end(),
        }
    }

    /// The next batch; none after the last one.
    ///
    /// # Errors
    /// If the batch does not arrive.
    pub fn read(&mut self) -> Result<Option<StoredBatch>, Error> {
        if self.next > self.to {
            return Ok(None);
        }
        let messages = &mut self.messages;
        let come = async { timeout(PROGRESS_TIMEOUT, messages.next()).await };
        let sequence = self.next;
        let failed = |why: &str| Error::transient(format!("batch {sequence} does not come: {why}"));
        let message = match self.driver.block_on(come) {
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
        self.next += 1;
        Ok(Some(StoredBatch {
            sequence,
            unix_s,
            bytes: message.message.payload,
        }))
    }
}
