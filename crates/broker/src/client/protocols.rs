//! The trait [`Protocol`]: what the clients' side of a shard, and the shard itself, ask the protocol of a connection. A protocol implements it once, and
//! writes only the functions in which it differs. The defaults are those of a protocol whose clients subscribe and unsubscribe on an open connection,
//! through its [`Codec`].
//!
//! [`protocol_of`] is the only place that knows which protocol serves a connection: one `match` over the [state](crate::client::row::State).

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::budget::stats::Transport;
use crate::client::codec::Codec;
use crate::client::delivery::{Addressee, Matched};
use crate::client::front::Front;
use crate::client::list::filters::filter_page;
use crate::client::list::live::{live_matches, live_messages};
use crate::client::list::page::page_of_topic;
use crate::client::parts::{Clients, Connections, Queues};
use crate::client::progress::Allowance;
use crate::client::row::{MULTI, Row};
use crate::client::types::{ProtocolTypes, Spilled};
use crate::home::Home;
use crate::io::{Close, Io};
use crate::mail::{FilterPage, Frames, Outcome, Page, ReplyTo};
use crate::store::slab::NONE;

/// The kind of received bytes that are held for a connection.
pub(crate) enum Holds {
    /// A part of an input.
    Input,
    /// Pipelined requests behind a poll that waits for a message.
    Pipelined,
    /// Bytes that must not be dropped to make room.
    Other,
}

/// A page of a topic, with the bytes of its messages.
pub(crate) type TopicPage<'a> = (&'a Page, &'a Frames);
/// A page for filters, with the bytes of its messages.
pub(crate) type MatchPage<'a> = (&'a FilterPage, &'a Frames);
/// Messages of a run for filters: for whom, the messages, and their bytes.
pub(crate) type Matches<'a> = (&'a [Addressee], &'a [Matched], &'a Frames);

/// Asks the protocol of a connection in this state: `protocol_of!(P, state, second(clients, slot, io))` is the answer of its [`Protocol::second`].
macro_rules! protocol_of {
    ($P:ty, $state:expr, $question:ident($($argument:expr),* $(,)?)) => {{
        use $crate::client::protocols::{Protocol, Protocols};
        use $crate::client::row::State;
        match $state {
            State::Proxy | State::Http | State::Waiting | State::Poll | State::Draining => {
                <<$P as Protocols>::Request as Protocol<$P>>::$question($($argument),*)
            }
            State::Sse | State::WebSocket => {
                <<$P as Protocols>::Stream as Protocol<$P>>::$question($($argument),*)
            }
            State::Mqtt => <<$P as Protocols>::Mqtt as Protocol<$P>>::$question($($argument),*),
            State::Centrifugo => {
                <<$P as Protocols>::Centrifugo as Protocol<$P>>::$question($($argument),*)
            }
            State::Http2 => <<$P as Protocols>::Http2 as Protocol<$P>>::$question($($argument),*),
        }
    }};
}
pub(crate) use protocol_of;

/// The protocols of a server.
pub(crate) trait Protocols: ProtocolTypes {
    /// Requests, with those that wait for a message, and what no other protocol serves: the bytes before and after a connection's protocol.
    type Request: Protocol<Self>;
    /// Event streams, and WebSockets that began with a request.
    type Stream: Protocol<Self>;
    /// MQTT.
    type Mqtt: Protocol<Self>;
    /// Centrifugo's client protocol.
    type Centrifugo: Protocol<Self>;
    /// HTTP/2: links whose streams are connections of the other protocols.
    type Http2: Protocol<Self>;

    /// Encodes the current run in this encoding, unless it was encoded for another subscriber.
    fn encode_once(front: &mut Front<Self>, encoding: Self::Encoding, topic: u32, frames: &Frames);

    /// Called when a connection ends, before its subscriptions end: ends what only a protocol knows about them, and releases what is counted elsewhere. The
    /// server may have sent its last bytes, so the state does not tell the protocol any more.
    fn connection_ends(front: &mut Front<Self>, slot: u32);
}

/// One protocol, as the code that all protocols share asks it. Each function is for one connection, by its number.
pub(crate) trait Protocol<P: Protocols> {
    /// How it writes about subscriptions that change. [`NoCodec`](crate::client::codec::NoCodec) if they do not.
    type Codec: Codec<P>;

    /// The transport that the connection is counted for.
    fn transport(row: &Row) -> Transport;

    /// Whether its bytes are WebSocket frames.
    fn has_frames(_row: &Row) -> bool {
        false
    }

    /// Processes received bytes, which may be none if held bytes can go on.
    fn received<I: Io>(
        front: &mut Front<P>,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    );

    /// Processes the data of a WebSocket frame. False if the connection takes no more frames.
    fn frame<I: Io>(
        _front: &mut Front<P>,
        _slot: u32,
        _data: &[u8],
        _is_binary: bool,
        _home: &mut Option<Home>,
        _io: &mut I,
    ) -> bool {
        false
    }

    /// The bytes of a frame that are not counted in the size limit of a message.
    fn frame_beside_bytes(_clients: &Clients<P>) -> usize {
        0
    }

    /// Continues what the connection has begun: held bytes, a batch, pages (bounded runs of past messages).
    fn resume<I: Io>(_front: &mut Front<P>, _conn: ConnId, _home: &mut Option<Home>, _io: &mut I) {}

    /// Called when the socket has accepted all waiting bytes.
    fn outbox_drained(front: &mut Front<P>, slot: u32) {
        let conn = front.clients.conns.id_of(slot);
        front.queues.resume_later(&front.clients, conn);
    }

    /// The peer has closed its side.
    fn peer_ended<I: Io>(clients: &mut Clients<P>, slot: u32, _io: &mut I) {
        clients.drop_conn(slot, Close::Now);
    }

    /// Called each second, if the input is not too slow and the deadline has not passed.
    fn second<I: Io>(_clients: &mut Clients<P>, _slot: u32, _io: &mut I) {}

    /// The second up to which the client may be silent from now on, or 0 without a limit.
    fn silent_until_s(_clients: &Clients<P>, _slot: u32) -> u32 {
        0
    }

    /// Handles a passed deadline of a connection whose outbox is empty.
    fn deadline_passed<I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) {
        front.clients.end_connection(slot, Reason::TooSlow, io);
    }

    /// Whether received bytes may still have to be processed.
    fn is_held(conns: &Connections<P>, slot: u32) -> bool {
        conns.spill(slot).is_some_and(Spilled::is_held)
    }

    /// The kind of received bytes that the connection holds.
    fn holds(_row: &Row) -> Holds {
        Holds::Input
    }

    /// The partly received input that the protocol itself holds: its bytes, and how many bytes it is behind (see `progress.rs`).
    fn partial(_conns: &Connections<P>, _slot: u32) -> (usize, u64) {
        (0, 0)
    }

    /// Whether there may be a partly received input.
    fn has_begun_input(conns: &Connections<P>, slot: u32) -> bool {
        conns.get(slot).link.spill != NONE
    }

    /// Counts a second of a partly received input. Returns whether the input is too slow. False while the server does not read the connection.
    fn input_lags(clients: &mut Clients<P>, slot: u32, allowance: Allowance) -> bool {
        let spill = clients.conns.spill_mut(slot);
        spill.is_some_and(|spill| spill.lags(allowance))
    }

    /// Drops [pipelined requests](Holds::Pipelined) to make room. The client sends them again.
    fn drop_pipelined<I: Io>(
        _conns: &mut Connections<P>,
        _queues: &Queues,
        _slot: u32,
        _io: &mut I,
    ) {
    }

    /// Handles the verdict (accepted with an identity, or refused) on the client's credential.
    fn verdict(_clients: &mut Clients<P>, _queues: &mut Queues, _conn: ConnId, _who: Identity) {}

    /// Applies new settings: ends the connection if it would now be refused what it has. False if the connection stays.
    fn settings_changed<I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) -> bool {
        let denied = front.clients.may_keep(&front.subs, slot);
        denied.is_err_and(|denied| Self::try_end(front, slot, denied, io))
    }

    /// Ends the connection and tells the client the reason, as [`Clients::end_connection`] does.
    fn end<I: Io>(clients: &mut Clients<P>, slot: u32, reason: Reason, io: &mut I);

    /// Whether the connection stays when a topic of it or its credential ends for this reason.
    fn outlives(_reason: Reason) -> bool {
        false
    }

    /// Ends what a connection subscribes to or waits for, and tells the client the reason. The connection ends too, unless another request may follow. False
    /// if nothing ends.
    fn try_end<I: Io>(front: &mut Front<P>, slot: u32, reason: Reason, io: &mut I) -> bool {
        let ends = !Self::outlives(reason);
        if ends {
            Self::end(&mut front.clients, slot, reason, io);
        }
        ends
    }

    /// Ends the connection, or its pipelined requests, because its client holds most of the memory.
    fn relieve<I: Io>(clients: &mut Clients<P>, _queues: &Queues, slot: u32, io: &mut I) {
        clients.end_connection(slot, Reason::MemoryFull, io);
    }

    /// Moves the client off a server that is about to stop: asks it to reconnect, here or elsewhere, and ends the connection. False if the connection stays.
    fn move_off<I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) -> bool {
        Self::end(&mut front.clients, slot, Reason::Restart, io);
        true
    }

    /// The outcome of a publish or a topic request of the connection.
    fn outcome<I: Io>(_front: &mut Front<P>, _to: ReplyTo, _outcome: Outcome, _io: &mut I) {}

    /// A home (a part of a shard that keeps topics) has handled all requests before the connection's fence.
    fn fenced<I: Io>(_front: &mut Front<P>, _to: ReplyTo, _io: &mut I) {}

    /// Handles a page for the subscription `of` (connection, topic, index in the list), or the refusal to subscribe. The protocol also reports lost messages.
    fn page<I: Io>(front: &mut Front<P>, of: (u32, u32, u32), page: TopicPage<'_>, io: &mut I) {
        page_of_topic::<Self::Codec, P, I>(front, (of.0, of.2), page, io);
    }

    /// Takes a page that answers a question of the connection, and not a subscription. False if it is for a subscription.
    fn answer<I: Io>(
        _front: &mut Front<P>,
        _to: ReplyTo,
        _page: TopicPage<'_>,
        _io: &mut I,
    ) -> bool {
        false
    }

    /// Handles a page for a group of filters, `of` (connection, serial number), for one partition.
    fn match_page<I: Io>(front: &mut Front<P>, of: (u32, u32), page: MatchPage<'_>, io: &mut I) {
        filter_page::<Self::Codec, P, I>(front, of, page, io);
    }

    /// Delivers the live messages of the current run to the subscription `of`, as in [`Protocol::page`]. Returns the encoding instead if the
    /// subscriber gets the whole run as all others with this encoding do: then the caller sends it.
    #[inline]
    fn live<I: Io>(
        front: &mut Front<P>,
        of: (u32, u32, u32),
        frames: &Frames,
        io: &mut I,
    ) -> Option<P::Encoding> {
        let (slot, _, part) = of;
        let row = front.clients.conns.get(slot);
        if !row.wants(MULTI) {
            if let Some(encoding) = Self::Codec::shared_encoding(row) {
                return Some(encoding);
            }
            front.clients.expand(slot);
        }
        live_messages::<Self::Codec, P, I>(front, (slot, part), frames, io);
        None
    }

    /// Delivers the messages of a run that match filters of the connection, in order, if the filters are live in the message's partition.
    fn live_matched<I: Io>(front: &mut Front<P>, slot: u32, matches: Matches<'_>, io: &mut I) {
        live_matches::<Self::Codec, P, I>(front, slot, matches, io);
    }
}
