//! The limits of a connection, and the rates of frames that cost the server more than the client.

use super::violation::Violation;

/// What a client may do. All limits of the windows and sizes are announced in SETTINGS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams at a time.
    pub streams: u32,
    /// Bytes of all fields of a request, with 32 for each (RFC 9113 section 10.5.1). A larger request is answered 431.
    pub header_list_bytes: u32,
    /// Bytes of an encoded field block, at most [`PAYLOAD_MAX`](super::frame::PAYLOAD_MAX) for one in a single frame.
    pub header_block_bytes: u32,
    /// CONTINUATION frames of a field block.
    pub continuations: u32,
    /// Bytes of a body that a client may send before the server has taken them.
    pub stream_window: u32,
    /// Bytes of all bodies of a connection that a client may send before the server has taken them; at least 65,535.
    pub connection_window: u32,
    /// Streams that the client resets, or that the server resets for a violation (CVE-2023-44487, CVE-2025-8671). This and the following
    /// limits hold within [`PERIOD_S`], and at once.
    pub resets: u16,
    /// SETTINGS frames.
    pub settings: u16,
    /// PING frames.
    pub pings: u16,
    /// Frames that do nothing: DATA without data, PRIORITY, frames of unknown types, and of streams that have ended.
    pub empty_frames: u16,
    /// Frames with little of a body (`SMALL_DATA_BYTES`) that come back to a stream after data of another one.
    pub small_frames: u16,
    /// WINDOW_UPDATE frames beyond two for each DATA frame that the server sent.
    pub window_updates: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            streams: 128,
            header_list_bytes: 16 * 1024,
            header_block_bytes: 16 * 1024,
            continuations: 8,
            stream_window: 65_535,
            connection_window: 256 * 1024,
            resets: 500,
            settings: 50,
            pings: 200,
            empty_frames: 500,
            small_frames: 1_000,
            window_updates: 1_000,
        }
    }
}

/// A frame of DATA with less than this that does not end its request costs more than it brings.
pub const SMALL_DATA_BYTES: u32 = 64;

/// The time in which a full rate is granted again.
pub const PERIOD_S: u32 = 10;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rate {
    Resets,
    Settings,
    Pings,
    EmptyFrames,
    SmallFrames,
    WindowUpdates,
}

/// Leaky buckets: each count falls by its limit in [`PERIOD_S`].
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// The second up to which the counts have fallen.
    at_s: u32,
    counts: [u16; 6],
}

impl Rates {
    /// Lets the counts fall until `now_s`.
    pub fn advance(&mut self, now_s: u32, limits: &Limits) {
        let passed_s = now_s.saturating_sub(self.at_s).min(PERIOD_S);
        if passed_s == 0 {
            return;
        }
        self.at_s = now_s;
        for (count, (limit, _)) in self.counts.iter_mut().zip(rows(limits)) {
            // Rounded up, or a low limit would never be granted again.
            let fallen = (u32::from(limit) * passed_s).div_ceil(PERIOD_S);
            *count = count.saturating_sub(fallen as u16);
        }
    }

    /// Counts one event.
    ///
    /// # Errors
    /// The violation, if there are more than the limit.
    pub fn count(&mut self, rate: Rate, limits: &Limits) -> Result<(), Violation> {
        let (limit, violation) = rows(limits)[rate as usize];
        let count = &mut self.counts[rate as usize];
        if *count >= limit {
            return Err(violation);
        }
        *count += 1;
        Ok(())
    }

    /// Grants this many events more.
    pub fn grant(&mut self, rate: Rate, events: u16) {
        let count = &mut self.counts[rate as usize];
        *count = count.saturating_sub(events);
    }
}

/// The limit of each rate, and its violation, in the order of [`Rate`].
fn rows(limits: &Limits) -> [(u16, Violation); 6] {
    [
        (limits.resets, Violation::ResetFlood),
        (limits.settings, Violation::SettingsFlood),
        (limits.pings, Violation::PingFlood),
        (limits.empty_frames, Violation::EmptyFlood),
        (limits.small_frames, Violation::SmallFlood),
        (limits.window_updates, Violation::UpdateFlood),
    ]
}
