//! The limits of a connection, and the rate limits for frames that cost the server more than the client.

use super::violation::Violation;

/// What a client may do. SETTINGS announces the first two limits and the window of a stream; WINDOW_UPDATE announces the window of the
/// connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent streams.
    pub streams: u32,
    /// Bytes of all fields of a request, plus 32 for each field (RFC 9113 section 10.5.1). A larger request gets the response 431.
    pub header_list_bytes: u32,
    /// Bytes of an encoded field block. A block in a single frame is also limited by [`PAYLOAD_MAX`](super::frame::PAYLOAD_MAX).
    pub header_block_bytes: u32,
    /// CONTINUATION frames of one field block.
    pub continuations: u32,
    /// Bytes of one body that a client may send before the server has processed them; at least 65,535.
    pub stream_window: u32,
    /// Bytes of all bodies of a connection that a client may send before the server has processed them; at least 65,535.
    pub connection_window: u32,
    /// Streams that the client resets, or that the server resets because of a violation (CVE-2023-44487, CVE-2025-8671). A page that is
    /// reloaded resets up to `streams`, so the default is a little less than two full reloads. This limit and all limits below are allowances for [`PERIOD_S`]. A client may use one in a single burst.
    pub resets: u16,
    /// SETTINGS frames.
    pub settings: u16,
    /// PING frames.
    pub pings: u16,
    /// Frames without an effect: DATA without data, PRIORITY, frames of unknown types, and frames for ended streams.
    pub empty_frames: u16,
    /// DATA frames of less than `SMALL_DATA_BYTES` that follow data of another stream. The first small frame of each stream is not counted.
    pub small_frames: u16,
    /// WINDOW_UPDATE frames, not counting two for each DATA frame that the server sent.
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
            resets: 250,
            settings: 50,
            pings: 200,
            empty_frames: 500,
            small_frames: 1_000,
            window_updates: 1_000,
        }
    }
}

/// How many times the rates of one client the connection of a proxy has.
const CLIENTS_OF_PROXY: u16 = 16;

impl Limits {
    /// The limits of a connection that a trusted proxy shares among its clients. One client's resets must not end the requests of all, and the unread
    /// bodies of some must not stop the bodies of the others. So the rates are higher, and the window of the connection fits the windows of all
    /// streams.
    #[must_use]
    pub fn for_proxy(self) -> Limits {
        let rate = |of_client: u16| of_client.saturating_mul(CLIENTS_OF_PROXY);
        Limits {
            connection_window: (self.stream_window.saturating_mul(self.streams))
                .max(self.connection_window),
            resets: rate(self.resets),
            empty_frames: rate(self.empty_frames),
            small_frames: rate(self.small_frames),
            window_updates: rate(self.window_updates),
            ..self
        }
    }
}

/// A DATA frame with fewer bytes that does not end its request costs more work than it is worth.
pub const SMALL_DATA_BYTES: u32 = 64;

/// The time after which a used-up limit is fully available again.
pub const PERIOD_S: u32 = 10;

/// The counted kinds of frames.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rate {
    Resets,
    Settings,
    Pings,
    EmptyFrames,
    SmallFrames,
    WindowUpdates,
}

/// Leaky buckets: during [`PERIOD_S`] each count falls by its limit.
#[derive(Debug, Default)]
pub(super) struct Rates {
    /// The time up to which the counts have fallen, in seconds.
    at_s: u32,
    counts: [u16; 6],
}

impl Rates {
    pub fn advance(&mut self, now_s: u32, limits: &Limits) {
        let passed_s = now_s.saturating_sub(self.at_s).min(PERIOD_S);
        if passed_s == 0 {
            return;
        }
        self.at_s = now_s;
        for (count, (limit, _)) in self.counts.iter_mut().zip(rows(limits)) {
            // Rounded up, because rounded down the count of a low limit would never fall.
            let fallen = (u32::from(limit) * passed_s).div_ceil(PERIOD_S);
            *count = count.saturating_sub(fallen as u16);
        }
    }

    /// Counts one event.
    ///
    /// # Errors
    /// The violation, if the limit is exceeded.
    pub fn count(&mut self, rate: Rate, limits: &Limits) -> Result<(), Violation> {
        let (limit, violation) = rows(limits)[rate as usize];
        let count = &mut self.counts[rate as usize];
        if *count >= limit {
            return Err(violation);
        }
        *count += 1;
        Ok(())
    }

    /// Allows this many additional events.
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
