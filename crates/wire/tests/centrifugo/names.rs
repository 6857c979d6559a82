//! Tests the names of channels whose `:` stands for the `/` of topics: each channel has a topic of its own, and each topic a channel.

use std::collections::BTreeMap;

use crore_wire::centrifugo::Format::{self, Json, Protobuf};
use crore_wire::centrifugo::{ChannelNames, Commands, Request, Scratch, decode};
use crore_wire::topic::check_name;
use proptest::prelude::*;
use serde_json::json;

use crate::LIMITS;
use crate::proto::{bytes, delimited, number};

const NAMES: ChannelNames = ChannelNames::ColonForSlash;
/// More than any name here has.
const NAME_BYTES: usize = 1_000;

/// Names with many colons and slashes, which are often alike.
fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => Just(":".to_string()),
        4 => Just("/".to_string()),
        3 => prop_oneof![Just("a"), Just("b"), Just("$"), Just("+"), Just("."), Just("\u{0}")].prop_map(str::to_string),
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

/// A subscribe to the channel, as a command with the id 7.
fn subscribe(format: Format, channel: &str) -> Vec<u8> {
    match format {
        Json => json!({"id": 7, "subscribe": {"channel": channel}})
            .to_string()
            .into_bytes(),
        Protobuf => {
            let (mut request, mut command, mut frame) = (Vec::new(), Vec::new(), Vec::new());
            bytes(1, channel.as_bytes(), &mut request);
            number(1, 7, &mut command);
            bytes(5, &request, &mut command);
            delimited(&command, &mut frame);
            frame
        }
    }
}

/// The topic of the channel of a subscribe command.
fn topic_of_subscribe(format: Format, channel: &str) -> String {
    let frame = subscribe(format, channel);
    let mut scratch = Scratch::new(NAMES);
    let command = Commands::new(format, &frame, LIMITS).next(&mut scratch);
    match command.expect("a command").expect("it is valid").request {
        Request::Subscribe(subscribe) => subscribe.channel.to_string(),
        other => panic!("{other:?} is no subscribe"),
    }
}

proptest! {
    #[test]
    fn channel_of_its_topic_is_the_channel(channel in name()) {
        let topic = NAMES.exchange(&channel).into_owned();
        prop_assert_eq!(&*NAMES.exchange(&topic), &*channel);
        prop_assert_eq!(&*NAMES.exchange_bytes(channel.as_bytes()), topic.as_bytes());
        prop_assert_eq!(ChannelNames::Same.exchange(&channel), &*channel);
        // A channel is valid if its topic is, and reserved if its topic is.
        let is_valid = |name: &str| check_name(name.as_bytes(), NAME_BYTES).is_ok();
        prop_assert_eq!(is_valid(&channel), is_valid(&topic));
        prop_assert_eq!(channel.starts_with('$'), topic.starts_with('$'));
        prop_assert_eq!(channel.matches(':').count(), topic.matches('/').count());
    }

    #[test]
    fn no_two_channels_have_one_topic(channels in proptest::collection::vec(name(), 2..40)) {
        let mut channel_of = BTreeMap::new();
        for channel in channels {
            let topic = NAMES.exchange(&channel).into_owned();
            let other = channel_of.insert(topic, channel.clone());
            prop_assert!(other.is_none_or(|other| other == channel));
        }
    }

    #[test]
    fn commands_and_claims_name_the_topic_of_their_channel(channel in name(), other in name()) {
        let topic = NAMES.exchange(&channel);
        for format in [Json, Protobuf] {
            prop_assert_eq!(&*topic_of_subscribe(format, &channel), &*topic);
        }
        let claims = json!({"channels": [channel, other], "subs": {&*channel: {}}}).to_string();
        let mut scratch = Scratch::new(NAMES);
        let claims = decode::connect_claims(claims.as_bytes(), &mut scratch, 4).expect("claims");
        let mut found: Vec<String> = claims.subs.iter().map(|it| it.channel.to_string()).collect();
        let mut expected = vec![topic.to_string(), topic.to_string(), NAMES.exchange(&other).into_owned()];
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}
