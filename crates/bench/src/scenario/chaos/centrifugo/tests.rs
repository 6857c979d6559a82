//! Tests that the client follows its subscriptions, with the replies that the server's own encoder writes.

use crore_wire::centrifugo::{
    Answer, ConnectResult, ErrorReply, Payload, Publication, Push, Reply, SubscribeResult, encode,
};

use super::*;

const EPOCH: &str = "0000abcd";
const ACCEPTED: &[u8] =
    b"HTTP/1.1 101 S\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

const NO_DATA: Payload<'_> = Payload::Value(b"");

fn publication(offset: u64, data: &str) -> Publication<'_> {
    Publication {
        data: Payload::Text(data.as_bytes()),
        info: None,
        offset,
        tags: &[],
        delta: false,
    }
}

fn subscribed<'a>(recovered: bool, offset: u64, publications: &'a [Publication<'a>]) -> Answer<'a> {
    Answer::Subscribe(SubscribeResult {
        ttl: None,
        recoverable: true,
        epoch: EPOCH,
        publications,
        recovered,
        offset,
        positioned: true,
        data: NO_DATA,
        was_recovering: false,
        delta: false,
    })
}

/// A client of the channels `a` and `b`, and what it was told.
struct Peer {
    format: Format,
    client: Subscriptions,
    events: Vec<String>,
}

impl Peer {
    fn new(format: Format) -> Peer {
        let client = Subscriptions::new(format, ["a", "b"].into_iter());
        let events = Vec::new();
        let mut peer = Peer {
            format,
            client,
            events,
        };
        peer.connect();
        peer
    }

    fn connect(&mut self) {
        self.client.start_connection();
        self.receive(ACCEPTED).expect("the upgrade");
        let connected = Answer::Connect(ConnectResult {
            client: "c",
            version: "1",
            ttl: None,
            data: NO_DATA,
            subs: &[],
            ping: 25,
            pong: true,
            session: "",
            node: "",
        });
        let id = self.client.last_id;
        self.answer(id, connected).expect("the connect");
    }

    /// Passes the bytes in pieces of one byte.
    fn receive(&mut self, bytes: &[u8]) -> Result {
        for byte in bytes {
            self.client
                .handle_bytes(std::slice::from_ref(byte), &mut |event| {
                    self.events.push(match event {
                        ServerEvent::Message { position, data, .. } => {
                            format!("{position} {}", data.escape_ascii())
                        }
                        ServerEvent::Gap(Gap::Topic(Some(name))) => {
                            format!("gap {}", name.escape_ascii())
                        }
                        other => format!("{other:?}"),
                    });
                    Ok(())
                })?;
        }
        Ok(())
    }

    fn receive_item(
        &mut self,
        write: impl FnOnce(crore_wire::centrifugo::Format, &mut Vec<u8>),
    ) -> Result {
        let (format, opcode) = match self.format {
            Format::Json => (crore_wire::centrifugo::Format::Json, 0x81),
            Format::Protobuf => (crore_wire::centrifugo::Format::Protobuf, 0x82),
        };
        let mut payload = Vec::new();
        write(format, &mut payload);
        let mut frame = vec![opcode, 126];
        frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&payload);
        self.receive(&frame)
    }

    fn answer(&mut self, id: u32, answer: Answer<'_>) -> Result {
        self.receive_item(|format, out| {
            encode::reply(format, &Reply { id, answer }, out).expect("text");
        })
    }

    fn push(&mut self, push: Push<'_>) -> Result {
        self.receive_item(|format, out| encode::push(format, &push, out).expect("text"))
    }

    /// What it was told since the last call.
    fn told(&mut self) -> String {
        std::mem::take(&mut self.events).join(", ")
    }

    fn progress(&self) -> [Progress; 2] {
        [0, 1].map(|index| self.client.channels[index].progress)
    }
}

const FORMATS: [Format; 2] = [Format::Json, Format::Protobuf];

#[test]
fn recovers_each_channel_after_its_last_message() {
    for format in FORMATS {
        let mut peer = Peer::new(format);
        assert_eq!(peer.progress(), [Progress::Begins(2), Progress::Begins(3)]);
        assert_eq!(peer.answer(2, subscribed(false, 7, &[])), Ok(()));
        assert_eq!(peer.answer(3, subscribed(false, 0, &[])), Ok(()));
        assert_eq!(
            peer.told(),
            "Position(Some(\"a\")), Position(Some(\"b\")), Answer { resumes: false }"
        );
        assert_eq!(
            peer.push(Push::Publication("a", publication(9, "nine"))),
            Ok(())
        );
        assert_eq!(peer.told(), "10000abcd-9 nine");
        peer.connect();
        let recovered = [publication(11, "eleven")];
        let (first, second) = (peer.client.last_id - 1, peer.client.last_id);
        assert_eq!(peer.answer(first, subscribed(true, 11, &recovered)), Ok(()));
        assert_eq!(peer.answer(second, subscribed(false, 4, &[])), Ok(()));
        assert_eq!(
            peer.told(),
            "10000abcd-11 eleven, gap b, Answer { resumes: true }"
        );
        let offsets = [0, 1].map(|index: usize| {
            let position = peer.client.channels[index].position.as_ref();
            position.map(|position| position.offset)
        });
        assert_eq!(offsets, [Some(11), Some(4)]);
    }
}

#[test]
fn a_message_after_the_answer_to_unsubscribe_is_a_fault() {
    for format in FORMATS {
        let mut peer = Peer::new(format);
        peer.answer(2, subscribed(false, 7, &[])).expect("a");
        peer.answer(3, subscribed(false, 7, &[])).expect("b");
        peer.client.channels[0].is_wanted = false;
        assert_eq!(peer.client.follow_wanted(), 1);
        assert_eq!(peer.progress()[0], Progress::Ends(4));
        assert_eq!(
            peer.push(Push::Publication("a", publication(8, "x"))),
            Ok(())
        );
        assert_eq!(peer.answer(4, Answer::Unsubscribe), Ok(()));
        assert!(
            peer.push(Push::Publication("a", publication(9, "y")))
                .is_err()
        );
        assert!(
            peer.push(Push::Publication("c", publication(9, "y")))
                .is_err()
        );
    }
}

#[test]
fn ended_and_refused_subscriptions_begin_again_in_the_next_round() {
    for format in FORMATS {
        let mut peer = Peer::new(format);
        let busy = ErrorReply {
            code: 111,
            message: "busy",
            temporary: true,
        };
        assert_eq!(peer.answer(2, Answer::Error(busy)), Ok(()));
        peer.answer(3, subscribed(false, 7, &[])).expect("b");
        let ended = |code| Push::Unsubscribe {
            channel: "b",
            code,
            reason: "",
        };
        assert_eq!(peer.push(ended(2500)), Ok(()));
        assert_eq!(peer.progress(), [Progress::Ended; 2]);
        assert_eq!(peer.client.follow_wanted(), 2);
        assert_eq!(peer.progress(), [Progress::Begins(4), Progress::Begins(5)]);
        let denied = ErrorReply {
            code: 103,
            message: "no",
            temporary: false,
        };
        assert!(peer.answer(4, Answer::Error(denied)).is_err());
        assert!(peer.push(ended(2000)).is_err());
    }
}
