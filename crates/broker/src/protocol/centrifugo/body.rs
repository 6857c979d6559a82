//! Transports whose way to the client is the body of an answer that does not end. The first commands come with the request.

use crore_wire::http::head::Head;

use crate::home::Home;
use crate::io::Io;
use crate::protocol::centrifugo::commands::{Place, begin_centrifugo};
use crate::protocol::centrifugo::emulation::is_protobuf;
use crate::protocol::centrifugo::one_way::connect_as;
use crate::protocol::centrifugo::options::{ONE_WAY, PROTOBUF};
use crate::protocol::front::Front;
use crate::protocol::http::answer::stream_head;
use crate::protocol::http::judge::note_reader;
use crate::protocol::http::options::EVENTS;
use crate::protocol::http::parameters::parameter;
use crate::protocol::http::task::Flow;

const EVENT_STREAM: &[u8] = b"text/event-stream";
const LINES: &[u8] = b"application/x-ndjson";
const MESSAGES: &[u8] = b"application/octet-stream";

/// Begins the answer, and connects the client. The body of the request, or the parameter `cf_connect`, is a frame of commands; at a place that only goes to
/// the client it is the connect command alone.
pub(crate) fn begin_body<I: Io>(
    front: &mut Front,
    slot: u32,
    (head, body): (&Head<'_>, &[u8]),
    place: Place,
    home: &mut Option<Home>,
    io: &mut I,
) -> Flow {
    let (content_type, options) = match place {
        Place::OneWayEvents => (EVENT_STREAM, ONE_WAY | EVENTS),
        Place::OneWayLines => (LINES, ONE_WAY),
        Place::Events => (EVENT_STREAM, EVENTS),
        _ if is_protobuf(head) => (MESSAGES, PROTOBUF),
        _ => (LINES, 0),
    };
    note_reader(&mut front.clients, slot, head);
    stream_head(&mut front.clients, slot, content_type);
    begin_centrifugo(&mut front.clients, slot, options);
    let named = parameter(head.query, b"cf_connect");
    let first = match body {
        b"" => named.as_deref().unwrap_or_default(),
        body => body,
    };
    match options & ONE_WAY {
        0 => front.centrifugo_frame(slot, first, home, io),
        _ => connect_as(front, slot, first, home, io),
    };
    Flow::Wait
}
