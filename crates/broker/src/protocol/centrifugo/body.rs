//! Begins the transports that send to the client in the body of an answer that does not end. The first commands come with the request.

use crore_wire::http::head::Head;

use crate::home::Home;
use crate::io::Io;
use crate::protocol::centrifugo::commands::{CentrifugoEndpoint, begin_centrifugo};
use crate::protocol::centrifugo::emulation::is_protobuf;
use crate::protocol::centrifugo::one_way::connect_as;
use crate::protocol::centrifugo::options::{ONE_WAY, PROTOBUF};
use crate::protocol::front::Front;
use crate::protocol::http::answer::stream_head;
use crate::protocol::http::judge::note_reader;
use crate::protocol::http::options::AS_EVENTS;
use crate::protocol::http::parameters::parameter;
use crate::protocol::http::task::Flow;

const EVENT_STREAM: &[u8] = b"text/event-stream";
const LINES: &[u8] = b"application/x-ndjson";
const MESSAGES: &[u8] = b"application/octet-stream";

/// Begins the answer, and connects the client. The body of the request, or the parameter `cf_connect`, is a frame of commands. If the client sends no commands
/// later, it is only the connect command.
pub(crate) fn begin_body<I: Io>(
    front: &mut Front,
    slot: u32,
    (head, body): (&Head<'_>, &[u8]),
    endpoint: CentrifugoEndpoint,
    home: &mut Option<Home>,
    io: &mut I,
) -> Flow {
    let (content_type, options) = match endpoint {
        CentrifugoEndpoint::OneWayEvents => (EVENT_STREAM, ONE_WAY | AS_EVENTS),
        CentrifugoEndpoint::OneWayLines => (LINES, ONE_WAY),
        CentrifugoEndpoint::Events => (EVENT_STREAM, AS_EVENTS),
        _ if is_protobuf(head) => (MESSAGES, PROTOBUF),
        _ => (LINES, 0),
    };
    note_reader(&mut front.clients, slot, head);
    stream_head(&mut front.clients, slot, content_type);
    begin_centrifugo(&mut front.clients, slot, options);
    let connect_parameter = parameter(head.query, b"cf_connect");
    let first_frame = match body {
        b"" => connect_parameter.as_deref().unwrap_or_default(),
        body => body,
    };
    match options & ONE_WAY {
        0 => front.handle_centrifugo_frame(slot, first_frame, home, io),
        _ => connect_as(front, slot, first_frame, home, io),
    };
    Flow::Wait
}
