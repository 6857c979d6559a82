//! Congestion control: Reno with appropriate byte counting (RFC 5681, RFC 3465, RFC 6928).
//!
//! It was chosen since a push server sends little to each of many peers: the window rarely limits it, and two numbers by connection are
//! enough. CUBIC gains on fast paths with a long round trip, where one connection sends for minutes. It needs fractional powers and more
//! state. BBR would need paced sending, that is a timer for each connection that sends.

/// The congestion window of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    /// Bytes that may be in flight.
    pub window: u32,
    /// Below this window the growth is exponential.
    pub threshold: u32,
    /// The sequence number at which a recovery from loss ends.
    pub recovery: Option<u32>,
    /// Acknowledged bytes that have not grown the window yet.
    credit: u32,
}

/// The window of a new connection (RFC 6928).
pub fn initial_window(segment_bytes: u32) -> u32 {
    (10 * segment_bytes).min(14_600.max(2 * segment_bytes))
}

impl Congestion {
    /// A window with these two numbers.
    pub fn new(window: u32, threshold: u32) -> Congestion {
        Congestion {
            window,
            threshold,
            recovery: None,
            credit: 0,
        }
    }

    /// Bytes were acknowledged while the window limited the sender. The window grows by bytes and not by acknowledgements, so it is of no
    /// use to a peer to divide them.
    pub fn acknowledged(&mut self, bytes: u32, segment_bytes: u32) {
        if self.recovery.is_some() {
            return;
        }
        if self.window < self.threshold {
            self.window = self.window.saturating_add(bytes.min(2 * segment_bytes));
            return;
        }
        self.credit = self.credit.saturating_add(bytes);
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = self.window.saturating_add(segment_bytes);
        }
    }

    /// A segment was lost. Losses before `end` belong to the same congestion.
    pub fn lost(&mut self, in_flight: u32, end: u32, segment_bytes: u32) {
        if self.recovery.is_none() {
            self.threshold = (in_flight / 2).max(2 * segment_bytes);
            self.window = self.threshold;
            self.recovery = Some(end);
            self.credit = 0;
        }
    }

    /// Nothing was acknowledged in time. What was in flight is lost, but the window may grow again at once.
    pub fn timed_out(&mut self, in_flight: u32, segment_bytes: u32, is_first: bool) {
        if is_first {
            self.threshold = (in_flight / 2).max(2 * segment_bytes);
        }
        self.window = segment_bytes;
        self.recovery = None;
        self.credit = 0;
    }
}
