//! Compresses a message once, at its topic's home (the part of a shard that keeps the topic), for all subscribers that take compressed
//! messages.

use alloc::vec::Vec;

use crore_wire::deflate::Compressor;
use crore_wire::websocket::frame::{self, Opcode};

use super::topic_row::WANTS_DEFLATE;
use super::topics::TopicTable;
use crate::base::settings::Settings;
use crate::base::work::Steps;
use crate::budget::admission::Admission;
use crate::mail::message::NewMessage;
use crate::mail::{Frames, Record};

/// The home's compressor and the compressor's buffer.
pub(super) struct MessageCompressor {
    compressor: Compressor,
    compressed: Vec<u8>,
    admission: Admission,
    steps: Steps,
}

pub(super) fn opcode_of(binary: bool) -> Opcode {
    match binary {
        true => Opcode::Binary,
        false => Opcode::Text,
    }
}

/// Returns two numbers: longer messages than the first are not compressed at this level; the second is how many bytes are compressed in the time of
/// one step (a unit of work, `base/work.rs`). With this limit no message takes more than 25 ms. Higher levels search longer for each byte: the worst
/// input takes some 100 ns a byte at level 6, and 400 ns at level 9.
const fn level_limits(level: u8) -> (usize, usize) {
    match level {
        ..=1 => (1 << 20, 32),
        2..=6 => (256 << 10, 2),
        7.. => (64 << 10, 1),
    }
}

impl MessageCompressor {
    pub(super) fn new(admission: Admission, steps: &Steps) -> MessageCompressor {
        MessageCompressor {
            compressor: Compressor::default(),
            compressed: Vec::new(),
            admission,
            steps: steps.clone(),
        }
    }

    /// Builds the record that is sent to each shard with subscribers of the topic. It has a compressed frame, too, if a subscriber may take
    /// compressed messages and the message is neither too short nor too long.
    pub(super) fn record(
        &mut self,
        topics: &TopicTable,
        id: u32,
        frames: &mut Frames,
        span: (u32, u32),
        new: &NewMessage<'_>,
        settings: &Settings,
    ) -> Record {
        let mut record = frames.push_record(span, new);
        let deflate = &settings.deflate;
        if topics.rows.get(id).has(WANTS_DEFLATE) {
            let data = frames.data(&record);
            let (bytes_max, bytes_per_step) = level_limits(deflate.level);
            if data.len() >= deflate.min_bytes && data.len() <= bytes_max {
                self.steps.add(data.len() / bytes_per_step);
                self.compressed.clear();
                self.compressor
                    .compress(data, deflate.level, &mut self.compressed);
                let opcode = opcode_of(new.headers.binary);
                let (header, len) = frame::header(opcode, true, self.compressed.len());
                frames.push_compressed(
                    &mut record,
                    &header[..len],
                    &self.compressed,
                    &self.admission,
                );
            }
        }
        record
    }
}
