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

/// A look at this many waiting streams counts as one step.
const STREAMS_PER_STEP: usize = 16;

/// The links that go on in the next turn, because the budget of this one is spent.
#[derive(Default)]
pub(crate) struct PausedLinks {
    served: Vec<u32>,
    unserved: Vec<u32>,
    /// A link has written what waited, in this turn.
    has_progress: bool,
}

impl PausedLinks {
    /// Lets the links go on in the next turn. Those that have written in this turn come last.
    pub(crate) fn wake(self, conns: &mut Connections) {
        for slot in self.unserved.into_iter().chain(self.served) {
            conns.links.wake_streams(slot);
        }
    }
}

/// Sends the frames of all links, and continues with answers that waited, while the turn's budget lasts. In each turn one link may write although the budget
/// is spent, so that each turn makes progress.
pub(crate) fn flush_links<I: Io>(front: &mut Front, paused: &mut PausedLinks, io: &mut I) {
    while let Some(slot) = front.clients.conns.links.next_dirty() {
        flush(&mut front.clients, &mut front.queues, slot, io);
        if front.clients.conns.links.take_waiting(slot) {
            if front.clients.meter.work.is_spent() && paused.has_progress {
                paused.unserved.push(slot);
            } else {
                paused.has_progress = true;
                if write_in_rounds(front, slot, io) {
                    paused.served.push(slot);
                }
            }
        }
        front.clients.conns.weigh_link(slot);
    }
}

/// Writes a link's frames to its socket. If the socket was full and takes all of them now, the link and its streams continue.
fn flush<I: Io>(clients: &mut Clients, queues: &mut Queues, slot: u32, io: &mut I) {
    let links = &clients.conns.links;
    let was_full = links.get(slot).is_some_and(|link| link.is_full);
    let frames = clients.conns.links.take_frames(slot);
    if !frames.is_empty() {
        let was_read = clients.conns.is_read(slot);
        clients.send_bytes(slot, &frames, io);
        if clients.conns.is_read(slot) != was_read {
            clients.conns.update_interest(slot, io);
        }
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
/// allow, and at least one round. Returns true if only the budget stopped it.
fn write_in_rounds<I: Io>(front: &mut Front, link: u32, io: &mut I) -> bool {
    let now_s = front.clients.ctx.now.s;
    loop {
        let streams = writable_streams(&front.clients.conns, link);
        let work = &mut front.clients.meter.work;
        work.steps.add(streams.len() / STREAMS_PER_STEP);
        let mut has_progress = false;
        for (stream, slot) in streams {
            // Those before it may have used up the window of the connection.
            let conns = &front.clients.conns;
            if (conns.links.get(link)).is_none_or(|link| link.codec.capacity(stream) == 0) {
                continue;
            }
            let before = front.clients.conns.waiting_bytes(slot);
            handle_writable(front, slot, PAYLOAD_MAX, io);
            let has_written = front.clients.conns.waiting_bytes(slot) < before;
            has_progress |= has_written;
            let Some(shared) = front.clients.conns.links.get_mut(link) else {
                return false;
            };
            if has_written {
                shared.cursor = stream;
                shared.served_s = now_s;
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
    use crate::base::turn_limits::TurnLimits;
    use crate::budget::world::World;
    use crate::client::links::UNSENT_BYTES_MAX;
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
        /// Whether the sockets are read, in the order of the changes.
        reads: Vec<bool>,
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
        fn set_interest(&mut self, _: SocketId, _: ConnId, reads: bool, _: bool) {
            self.reads.push(reads);
        }
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

    /// This number of requests for event streams that begin with the large message.
    fn get_large(streams: u32) -> Vec<u8> {
        (0..streams)
            .flat_map(|n| get(2 * n + 1, "/sub/big?since=oldest"))
            .collect()
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
        now: Now,
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
                now: NOW,
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
            self.shard.handle(input, self.now, &mut self.io);
            self.finish();
        }

        fn finish(&mut self) {
            while self.shard.flush(self.now, &mut self.io) {}
        }

        /// Lets this many seconds pass, and checks all connections.
        fn pass(&mut self, seconds: u32) {
            self.now.s += seconds;
            self.now.unix_s += seconds;
            for _ in 0..4 {
                self.shard.handle(Input::Tick, self.now, &mut self.io);
                self.finish();
            }
        }

        fn set_steps_per_turn(&mut self, steps_per_turn: u32) {
            self.shard.set_turn_limits(TurnLimits {
                steps_per_turn,
                ..TurnLimits::default()
            });
            self.finish();
        }

        fn has_sent(&self, text: &str) -> bool {
            let mut parts = self.io.sent.windows(text.len());
            parts.any(|part| part == text.as_bytes())
        }

        fn count(&self, kind: Kind) -> usize {
            let sent = self.sent().into_iter();
            sent.filter(|it| it.kind == kind as u8).count()
        }

        fn say(&mut self, bytes: Vec<u8>) {
            self.receive(self.link, bytes);
        }

        /// The link's socket takes bytes again.
        fn writable(&mut self) {
            let writable = Input::Writable(self.link, usize::MAX);
            self.shard.handle(writable, self.now, &mut self.io);
            self.finish();
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
                let data_frames = sent.iter().filter(data).filter(|it| it.stream == stream);
                data_frames.map(|it| it.len as usize).sum()
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
    fn a_client_whose_socket_is_full_is_still_read() {
        let mut world = Linked::new(&initial_window(1 << 20));
        world.say(window(0, 1 << 20));
        world.io.rooms.push_back(1_000);
        world.io.rooms.extend([0; 9]);
        world.say([get(1, "/sub/big?since=oldest"), get(3, "/sub/none")].concat());
        world.say(frame(Kind::ResetStream, 0, 1, &8u32.to_be_bytes()));
        world.say(frame(Kind::Ping, 0, 0, b"12345678"));
        assert!(world.io.reads.iter().all(|reads| *reads));
        world.io.rooms.clear();
        world.writable();
        // The rest of the answer was dropped when the reset came.
        let sent = world.sent();
        let data = |it: &&Header| it.kind == Kind::Data as u8 && it.stream == 1;
        let body: u32 = sent.iter().filter(data).map(|it| it.len).sum();
        assert!(body > 0 && (body as usize) < LARGE, "{body}");
        let last = sent.last().expect("frames");
        assert_eq!((last.kind, last.has(ACK)), (Kind::Ping as u8, true));
    }

    #[test]
    fn a_client_is_not_read_while_too_many_bytes_wait_for_its_socket() {
        let mut world = Linked::new(&initial_window(1 << 20));
        world.say(window(0, 1 << 20));
        world.io.rooms.push_back(1_000);
        world.io.rooms.extend([0; 9]);
        world.say(get(1, "/sub/big?since=oldest"));
        // Answers without a body need no window.
        let head = |stream| {
            let block = b"\x02\x04HEAD\x86\x01\x09localhost\x04\x0d/history/none";
            frame(Kind::Headers, END_HEADERS | END_STREAM, stream, block)
        };
        let mut asked = 0;
        while world.io.reads.last() == Some(&true) && asked < 20_000 {
            let next = (asked..asked + 100).flat_map(|n| head(2 * n + 3)).collect();
            world.say(next);
            asked += 100;
        }
        let waiting = world
            .shard
            .front()
            .clients
            .conns
            .waiting_bytes(world.link.slot);
        assert!(
            (UNSENT_BYTES_MAX..UNSENT_BYTES_MAX + 30_000).contains(&waiting),
            "{waiting} bytes, {asked} requests"
        );
        assert_eq!(world.io.reads.last(), Some(&false));
        // The first bytes make room, and the rest goes on.
        world.io.rooms.clear();
        world.io.rooms.push_back(waiting / 2);
        world.writable();
        assert_eq!(world.io.reads.last(), Some(&true));
        world.writable();
        let ends = |it: &&Header| it.kind == Kind::Headers as u8 && it.has(END_STREAM);
        assert_eq!(world.sent().iter().filter(ends).count(), asked as usize);
    }

    #[test]
    fn streams_wait_for_the_socket_and_each_gets_its_turn() {
        let mut world = Linked::new(&initial_window(0));
        let requests = get_large(5);
        world.say(requests);
        // The socket takes nothing for some time.
        world.io.rooms.extend([usize::MAX, 1_000, 0]);
        world.say([window(0, 1 << 20), initial_window(1 << 20)].concat());
        assert_eq!(world.answers(), []);
        for _ in 0..100 {
            world.writable();
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
        let requests = get_large(3);
        // The first answer uses the connection's whole window.
        world.say(requests);
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
        world.finish();
        let header = Header::read(&world.io.sent).map(|it| (it.kind, it.stream));
        assert_eq!(header, Some((Kind::ResetStream as u8, 1)));
    }

    fn request(stream: u32, block: &[&[u8]], ends: bool) -> Vec<u8> {
        let end_stream = if ends { END_STREAM } else { 0 };
        let flags = END_HEADERS | end_stream;
        frame(Kind::Headers, flags, stream, &block.concat())
    }

    const AUTHORITY: &[u8] = b"\x86\x01\x09localhost";

    #[test]
    fn links_that_wait_keep_to_the_budget_of_a_turn() {
        let mut world = Linked::new(&initial_window(0));
        let peer = [127, 0, 0, 1].into();
        let (now, link) = (world.now, world.link);
        let accepted = Input::Accepted(SocketId(7), peer);
        world.shard.handle(accepted, now, &mut world.io);
        let other = world.shard.front().clients.conns.id_of(2);
        let hello = [
            PREFACE.to_vec(),
            initial_window(0),
            frame(Kind::Settings, ACK, 0, &[]),
        ];
        world.receive(other, hello.concat());
        let requests = get_large(4);
        world.receive(link, requests.clone());
        world.receive(other, requests);
        // A frame costs 64 steps.
        world.set_steps_per_turn(64);
        world.io.sent.clear();
        for conn in [link, other] {
            let mut bytes = [window(0, 1 << 20), initial_window(1 << 20)].concat();
            let input = Input::Received(conn, &mut bytes);
            world.shard.handle(input, now, &mut world.io);
        }
        let mut sent = Vec::new();
        while world.shard.flush(now, &mut world.io) {
            sent.push(core::mem::take(&mut world.io.sent).len());
        }
        // One link had its round.
        let most = sent.iter().max().copied().unwrap_or(0);
        assert!(most < 5 * PAYLOAD_MAX, "{sent:?}");
        assert!(sent.iter().sum::<usize>() + world.io.sent.len() > 8 * LARGE);
    }

    #[test]
    fn a_byte_of_window_is_charged_for_the_streams_that_wait_for_it() {
        let steps_of_update = |streams: u32| {
            let mut world = Linked::new(&initial_window(1 << 20));
            let requests = get_large(streams);
            world.say(requests);
            let before = world.shard.steps();
            world.say(window(0, 1));
            world.shard.steps() - before
        };
        let (few, many) = (steps_of_update(2), steps_of_update(96));
        assert!(many >= few + 5, "{few}, {many}");
    }

    #[test]
    fn streams_that_wait_for_others_of_their_client_are_not_slow() {
        let mut world = Linked::new(&initial_window(1 << 20));
        let requests = get_large(3);
        world.say(requests);
        world.io.sent.clear();
        // Each stream has its turn in 45 seconds, and `timeouts.body_s` is 20.
        for _ in 0..9 {
            world.pass(15);
            world.say(window(0, PAYLOAD_MAX as u32));
        }
        assert_eq!(world.count(Kind::ResetStream), 0);
        let data = world.sent().into_iter();
        let data = data.filter(|it| it.kind == Kind::Data as u8);
        assert_eq!(
            data.map(|it| it.len as usize).sum::<usize>(),
            9 * PAYLOAD_MAX
        );
        // The first stream has ended. Then the client reads nothing.
        for _ in 0..5 {
            world.pass(15);
        }
        assert_eq!(world.count(Kind::ResetStream), 2);
    }

    #[test]
    fn a_stream_whose_own_window_is_shut_is_slow() {
        let mut world = Linked::new(&initial_window(0));
        world.say([window(0, 1 << 20), get(1, "/sub/big?since=oldest")].concat());
        world.say([get(3, "/sub/big?since=oldest"), window(3, 50_000)].concat());
        world.io.sent.clear();
        for _ in 0..3 {
            world.pass(15);
            world.say(window(3, 100));
        }
        let sent = world.sent();
        let resets = sent.iter().filter(|it| it.kind == Kind::ResetStream as u8);
        assert_eq!(resets.map(|it| it.stream).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn frames_of_open_requests_keep_to_the_budget_of_a_turn() {
        let mut world = Linked::new(&initial_window(1 << 16));
        world.set_steps_per_turn(64);
        let post = |stream| request(stream, &[b"\x83", AUTHORITY, b"\x04\x06/pub/a"], false);
        let data = |stream, flags| frame(Kind::Data, flags, stream, &[b'x'; 64]);
        let mut bytes = [post(1), post(3)].concat();
        for _ in 0..200 {
            bytes.extend([data(1, 0), data(3, 0)].concat());
        }
        bytes.extend([data(1, END_STREAM), data(3, END_STREAM)].concat());
        let before = world.shard.steps();
        let input = Input::Received(world.link, &mut bytes);
        world.shard.handle(input, world.now, &mut world.io);
        let steps = world.shard.steps() - before;
        assert!(steps < 100, "{steps}");
        world.finish();
        assert_eq!(world.answers().len(), 2);
    }

    #[test]
    fn large_fields_end_their_request_only() {
        let cookies = |count| {
            let cookie = [b"\x0f\x11\x6e".to_vec(), vec![b'c'; 110]].concat();
            [&b"\x82"[..], AUTHORITY, b"\x04\x0d/history/none"]
                .concat()
                .into_iter()
                .chain(cookie.repeat(count))
                .collect::<Vec<u8>>()
        };
        // As HTTP/1.1 counts it is below `limits.head_bytes`, though each cookie is a field here.
        let mut world = Linked::new(&initial_window(1 << 16));
        let block = cookies(60);
        world.say(frame(Kind::Headers, END_HEADERS | END_STREAM, 1, &block));
        assert!(!world.has_sent("431"));
        assert_eq!(world.count(Kind::Headers), 1);
        // More than a frame.
        let block = cookies(180);
        let (first, rest) = block.split_at(PAYLOAD_MAX);
        world.say(
            [
                frame(Kind::Headers, END_STREAM, 3, first),
                frame(Kind::Continuation, END_HEADERS, 3, rest),
            ]
            .concat(),
        );
        assert!(world.has_sent("431"));
        assert_eq!(world.count(Kind::GoAway), 0);
    }

    #[test]
    fn put_whose_body_turns_out_empty_makes_a_topic() {
        let mut world = Linked::new(&initial_window(1 << 20));
        let put = |stream| {
            request(
                stream,
                &[b"\x02\x03PUT", AUTHORITY, b"\x04\x06/pub/a"],
                false,
            )
        };
        world.say([put(1), frame(Kind::Data, END_STREAM, 1, &[])].concat());
        assert!(world.has_sent("201"));
        world.say([put(3), frame(Kind::Data, END_STREAM, 3, b"x")].concat());
        assert!(world.has_sent("PUT makes a topic"));
    }

    #[test]
    fn a_link_before_its_first_request_may_be_idle_as_one_after_it() {
        let mut world = Linked::new(&initial_window(1 << 16));
        for _ in 0..7 {
            world.pass(10);
        }
        assert_eq!(world.count(Kind::GoAway), 0);
        world.pass(10);
        assert_eq!(world.count(Kind::GoAway), 1);
    }
}
