//! Why the server sent GOAWAY to a client of HTTP/2.

use crore_wire::http2::Violation;

use crate::base::labels::labels;
use crate::base::reason::Closed;

labels! {
    /// Why the server ended a connection of HTTP/2, or asked its client for no more streams: the label `reason` of
    /// `crore_http2_goaways_total`.
    pub enum GoAway {
        Drain, "drain", "the server drains, or the operator ended the connection";
        Idle, "idle", "it had no streams for `timeouts.keep_alive_s`";
        Full, "full", "a limit was reached";
        Slow, "slow", "the client did not read";
        Timeout, "timeout", "the client did not acknowledge the settings, or a deadline passed";
        Resets, "resets", "streams were reset too often";
        Settings, "settings", "SETTINGS came too often, or with too many parameters";
        Pings, "pings", "PING came too often";
        EmptyFrames, "empty_frames", "frames without effect came too often";
        SmallFrames, "small_frames", "frames with a few bytes of one body after another came too often";
        WindowUpdates, "window_updates", "WINDOW_UPDATE came too often";
        Fields, "fields", "a field block that was too long, in too many frames, or not valid HPACK";
        Windows, "windows", "more data than a window allows, or a window past its limit";
        Protocol, "protocol", "something else that breaks RFC 9113";
        Broken, "broken", "a fault of the server: tell us";
    }
}

impl From<Violation> for GoAway {
    fn from(violation: Violation) -> GoAway {
        match violation {
            Violation::ResetFlood => GoAway::Resets,
            Violation::SettingsFlood | Violation::ManySettings => GoAway::Settings,
            Violation::PingFlood => GoAway::Pings,
            Violation::EmptyFlood => GoAway::EmptyFrames,
            Violation::SmallFlood => GoAway::SmallFrames,
            Violation::UpdateFlood => GoAway::WindowUpdates,
            Violation::BlockTooLong
            | Violation::Continuations
            | Violation::Compression
            | Violation::TableSize => GoAway::Fields,
            Violation::WindowExceeded | Violation::WindowOverflow | Violation::InitialWindow => {
                GoAway::Windows
            }
            _ => GoAway::Protocol,
        }
    }
}

impl From<Closed> for GoAway {
    fn from(closed: Closed) -> GoAway {
        match closed {
            Closed::Timeout => GoAway::Timeout,
            Closed::Slow => GoAway::Slow,
            Closed::Full => GoAway::Full,
            Closed::Refused => GoAway::Protocol,
            Closed::Broken => GoAway::Broken,
            Closed::Peer | Closed::Done | Closed::Deleted | Closed::Operator => GoAway::Drain,
        }
    }
}
