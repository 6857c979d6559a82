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

/// The maximum length of a message that is compressed at this level. With this limit no message takes more than 25 ms. Higher levels search longer
/// for each byte: the worst input takes some 100 ns a byte at level 6, and 400 ns at level 9.
const fn message_bytes_max(level: u8) -> usize {
    match level {
        ..=1 => 1 << 20,
        2..=6 => 256 << 10,
        7.. => 64 << 10,
    }
}

/// The bytes that are compressed at this level in the time of one step (a unit of work, `base/work.rs`).
const fn bytes_per_step(level: u8) -> usize {
    match level {
        ..=1 => 32,
        2..=6 => 2,
        7.. => 1,
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
    pub(super) fn push_record(
        &mut self,
        topics: &TopicTable,
        topic_id: u32,
        frames: &mut Frames,
        data_range: (u32, u32),
        message: &NewMessage<'_>,
        settings: &Settings,
    ) -> Record {
        let mut record = frames.push_record(data_range, message);
        let deflate = &settings.deflate;
        if topics.rows.get(topic_id).has(WANTS_DEFLATE) {
            let data = frames.data(&record);
            if (deflate.min_bytes..=message_bytes_max(deflate.level)).contains(&data.len()) {
                self.steps.add(data.len() / bytes_per_step(deflate.level));
                self.compressed.clear();
                self.compressor
                    .compress(data, deflate.level, &mut self.compressed);
                let opcode = opcode_of(message.headers.binary);
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
