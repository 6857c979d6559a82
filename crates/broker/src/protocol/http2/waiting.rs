//! The end of a turn for links of HTTP/2: writes their frames to their sockets, and continues with answers that waited for a flow control window.
//!
//! Invariant: streams that wait take turns of one frame each, so a stream with much to send holds up no other.

use alloc::vec::Vec;

use crore_wire::http2::frame::PAYLOAD_MAX;

use crate::client::row::HELD;
use crate::client::send::handle_writable;
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Front, Queues};
use crate::store::slab::NONE;

/// Sends the frames of all links, and continues with answers that waited, while the turn's budget lasts.
pub(crate) fn flush_links<I: Io>(front: &mut Front, io: &mut I) {
    let mut later = Vec::new();
    while let Some(slot) = front.clients.conns.links.next_dirty() {
        flush(&mut front.clients, &mut front.queues, slot, io);
        if front.clients.conns.links.take_waiting(slot) && write_in_rounds(front, slot, io) {
            later.push(slot);
        }
        front.clients.conns.weigh_link(slot);
    }
    for slot in later {
        front.clients.conns.links.wake_streams(slot);
    }
}

/// Writes a link's frames to its socket. If the socket was full and takes all of them now, the link and its streams continue.
fn flush<I: Io>(clients: &mut Clients, queues: &mut Queues, slot: u32, io: &mut I) {
    let links = &clients.conns.links;
    let was_full = links.get(slot).is_some_and(|link| link.is_full);
    let frames = clients.conns.links.take_frames(slot);
    if !frames.is_empty() {
        clients.send_bytes(slot, &frames, io);
        let is_full = clients.conns.get(slot).link.outbox != NONE;
        clients.conns.links.set_full(slot, is_full);
        if was_full && !is_full {
            resume_link_later(clients, queues, slot);
        }
    }
    clients.conns.links.recycle(frames);
}

/// Resumes a link whose socket takes bytes again: its streams may write, and the frames that it holds are read.
pub(super) fn resume_link_later(clients: &mut Clients, queues: &mut Queues, slot: u32) {
    clients.conns.links.set_full(slot, false);
    clients.conns.links.wake_streams(slot);
    queues.resume_later(clients, clients.conns.id_of(slot));
}

/// Writes the outboxes of the link's streams, in rounds of one frame each, as far as the windows, the socket and the turn's budget
/// allow. Returns true if only the budget stopped it. There is at least one round, so that each turn makes progress.
fn write_in_rounds<I: Io>(front: &mut Front, link: u32, io: &mut I) -> bool {
    loop {
        let streams = writable_streams(&front.clients.conns, link);
        let mut has_progress = false;
        for (stream, slot) in streams {
            let before = waiting_bytes(&front.clients.conns, slot);
            handle_writable(front, slot, PAYLOAD_MAX, io);
            let has_written = waiting_bytes(&front.clients.conns, slot) < before;
            has_progress |= has_written;
            let Some(shared) = front.clients.conns.links.get_mut(link) else {
                return false;
            };
            if has_written {
                shared.cursor = stream;
            }
            if shared.is_full {
                // The next flush may find that the socket takes the rest.
                front.clients.conns.links.wake_streams(link);
                return false;
            }
        }
        if !has_progress {
            return false;
        }
        if front.clients.meter.work.is_spent() {
            return true;
        }
    }
}

/// The streams that have bytes to write and a window for them, beginning after the last stream of the last round.
fn writable_streams(conns: &Connections, link: u32) -> Vec<(u32, u32)> {
    let Some(link) = conns.links.get(link) else {
        return Vec::new();
    };
    let is_writable = |&(stream, slot): &(u32, u32)| {
        slot != NONE && {
            let row = conns.get(slot);
            row.link.outbox != NONE && !row.link.has(HELD) && link.codec.capacity(stream) > 0
        }
    };
    let mut streams: Vec<_> = link.codec.slots().filter(is_writable).collect();
    let first = streams.partition_point(|(stream, _)| *stream <= link.cursor);
    streams.rotate_left(first);
    streams
}

fn waiting_bytes(conns: &Connections, slot: u32) -> usize {
    let outbox = conns.outbox(slot);
    outbox.map_or(0, |outbox| outbox.waiting_bytes())
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::format;
    use alloc::vec;

    use crore_wire::http2::frame::{ACK, END_HEADERS, END_STREAM, Header, Kind, PREFACE};

    use super::*;
    use crate::base::ids::{ConnId, ShardId, SocketId};
    use crate::base::settings::Settings;
    use crate::base::time::Now;
    use crate::budget::world::World;
    use crate::io::{CloseMode, Input};
    use crate::mail::Mail;
    use crate::shard::Shard;
    use crate::store::shared::OutputPart;

    const NOW: Now = Now { s: 1, unix_s: 9 };
    const LARGE: usize = 100_000;

    /// Sockets whose next writes take as many bytes as `rooms` says. Further writes take all bytes.
    #[derive(Default)]
    struct Sockets {
        rooms: VecDeque<usize>,
        sent: Vec<u8>,
    }

    impl Io for Sockets {
        fn start_reading(&mut self, _: SocketId, _: ConnId) {}
        fn send(&mut self, _: SocketId, parts: &[OutputPart<'_>]) -> usize {
            let room = self.rooms.pop_front().unwrap_or(usize::MAX);
            let before = self.sent.len();
            let bytes = parts.iter().flat_map(AsRef::as_ref);
            self.sent.extend(bytes.take(room));
            self.sent.len() - before
        }
        fn set_interest(&mut self, _: SocketId, _: ConnId, _: bool, _: bool) {}
        fn close(&mut self, _: SocketId, _: CloseMode) {}
        fn post(&mut self, _: ShardId, _: Mail) {}
    }

    fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let header = Header::new(kind, flags, stream, payload.len()).bytes();
        [&header[..], payload].concat()
    }

    /// A request without a body.
    fn get(stream: u32, path: &str) -> Vec<u8> {
        let mut block = b"\x82\x86\x01\x09localhost\x04".to_vec();
        block.push(path.len() as u8);
        block.extend(path.bytes());
        frame(Kind::Headers, END_HEADERS | END_STREAM, stream, &block)
    }

    fn window(stream: u32, bytes: u32) -> Vec<u8> {
        frame(Kind::WindowUpdate, 0, stream, &bytes.to_be_bytes())
    }

    fn initial_window(bytes: u32) -> Vec<u8> {
        let payload = [&[0, 4][..], &bytes.to_be_bytes()].concat();
        frame(Kind::Settings, 0, 0, &payload)
    }

    /// A shard with a large message, and a link.
    struct Linked {
        shard: Shard,
        io: Sockets,
        link: ConnId,
    }

    impl Linked {
        fn new(first: &[u8]) -> Linked {
            let mut settings = Settings::default();
            settings.http.h2_cleartext = true;
            let mut shard = Shard::new(0, World::for_tests(settings, 1), NOW);
            let mut io = Sockets::default();
            for socket in [5, 6] {
                let peer = [127, 0, 0, 1].into();
                shard.handle(Input::Accepted(SocketId(socket), peer), NOW, &mut io);
            }
            let ids = [0, 1].map(|slot| shard.front().clients.conns.id_of(slot));
            let mut world = Linked {
                shard,
                io,
                link: ids[0],
            };
            let head = format!(
                "POST /pub/big HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LARGE}\r\n\r\n"
            );
            world.receive(ids[1], [head.as_bytes(), &vec![b'x'; LARGE]].concat());
            let hello = [PREFACE, first, &frame(Kind::Settings, ACK, 0, &[])].concat();
            world.receive(ids[0], hello);
            world.io.sent.clear();
            world
        }

        fn receive(&mut self, conn: ConnId, mut bytes: Vec<u8>) {
            let input = Input::Received(conn, &mut bytes);
            self.shard.handle(input, NOW, &mut self.io);
            while self.shard.flush(NOW, &mut self.io) {}
        }

        fn say(&mut self, bytes: Vec<u8>) {
            self.receive(self.link, bytes);
        }

        /// The headers of the frames that were sent whole.
        fn sent(&self) -> Vec<Header> {
            let (mut rest, mut headers) = (&self.io.sent[..], Vec::new());
            while let Some(header) = Header::read(rest) {
                let Some(after) = rest.get(9 + header.len as usize..) else {
                    break;
                };
                headers.push(header);
                rest = after;
            }
            headers
        }

        /// The numbers of the streams whose answers are complete, and the bytes of their bodies.
        fn answers(&self) -> Vec<(u32, usize)> {
            let sent = self.sent();
            let data = |it: &&Header| it.kind == Kind::Data as u8;
            let ends = sent.iter().filter(data).filter(|it| it.has(END_STREAM));
            let body = |stream| {
                let of = sent.iter().filter(data).filter(|it| it.stream == stream);
                of.map(|it| it.len as usize).sum()
            };
            let mut ended: Vec<_> = ends.map(|it| (it.stream, body(it.stream))).collect();
            ended.sort_unstable();
            ended
        }
    }

    #[test]
    fn streams_go_on_after_a_write_that_the_socket_took_in_part() {
        let mut world = Linked::new(&initial_window(0));
        world.say(
            [
                get(1, "/sub/big?since=oldest"),
                get(3, "/sub/big?since=oldest"),
            ]
            .concat(),
        );
        assert_eq!(world.answers(), []);
        // The first write has the answer to the settings. The next one takes a part, and the one after it all.
        world.io.rooms.extend([usize::MAX, 1_000]);
        world.say([window(0, 1 << 20), initial_window(1 << 20)].concat());
        assert_eq!(world.answers(), [(1, LARGE), (3, LARGE)]);
    }

    #[test]
    fn requests_behind_a_large_answer_go_on_after_a_write_that_the_socket_took_in_part() {
        let mut world = Linked::new(&initial_window(1 << 20));
        world.say(window(0, 1 << 20));
        world.io.rooms.push_back(1_000);
        world.say([get(1, "/sub/big?since=oldest"), get(3, "/history/none")].concat());
        let streams: Vec<u32> = world.answers().iter().map(|(stream, _)| *stream).collect();
        assert_eq!(streams, [1, 3]);
    }

    #[test]
    fn streams_wait_for_the_socket_and_each_gets_its_turn() {
        let mut world = Linked::new(&initial_window(0));
        let all: Vec<u8> = (0..5)
            .flat_map(|n| get(2 * n + 1, "/sub/big?since=oldest"))
            .collect();
        world.say(all);
        // The socket takes nothing for some time.
        world.io.rooms.extend([usize::MAX, 1_000, 0]);
        world.say([window(0, 1 << 20), initial_window(1 << 20)].concat());
        assert_eq!(world.answers(), []);
        for _ in 0..100 {
            let writable = Input::Writable(world.link, usize::MAX);
            world.shard.handle(writable, NOW, &mut world.io);
            while world.shard.flush(NOW, &mut world.io) {}
        }
        // No stream was served before the others: each of the first frames belongs to another stream.
        let data = world.sent().into_iter();
        let data = data.filter(|it| it.kind == Kind::Data as u8);
        let first: Vec<u32> = data.take(5).map(|it| it.stream).collect();
        assert_eq!(first, [1, 3, 5, 7, 9]);
        assert_eq!(world.answers().len(), 5);
    }

    #[test]
    fn streams_share_the_window_of_the_connection_in_turns() {
        let mut world = Linked::new(&initial_window(1 << 20));
        let all: Vec<u8> = (0..3)
            .flat_map(|n| get(2 * n + 1, "/sub/big?since=oldest"))
            .collect();
        // The first answer uses the connection's whole window.
        world.say(all);
        world.io.sent.clear();
        let mut served = Vec::new();
        for _ in 0..6 {
            world.say(window(0, PAYLOAD_MAX as u32));
            let sent = world.sent();
            assert_eq!(sent.len(), 1, "{sent:?}");
            served.push(sent[0].stream);
            world.io.sent.clear();
        }
        assert_eq!(served, [1, 3, 5, 1, 3, 5]);
    }

    #[test]
    fn an_answer_that_is_cut_does_not_end_as_a_whole_one() {
        let mut world = Linked::new(&initial_window(0));
        world.say(get(1, "/sub/big?since=oldest"));
        let clients = &mut world.shard.front().clients;
        let link = clients.conns.links.get(world.link.slot).expect("a link");
        let (_, slot) = link.codec.slots().next().expect("a stream");
        clients.drop_connection(slot, CloseMode::Now);
        world.io.sent.clear();
        while world.shard.flush(NOW, &mut world.io) {}
        let header = Header::read(&world.io.sent).map(|it| (it.kind, it.stream));
        assert_eq!(header, Some((Kind::ResetStream as u8, 1)));
    }
}
