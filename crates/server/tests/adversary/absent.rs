//! Attackers that leave large MQTT sessions behind: with large wills, with long filters, and in many groups. The sessions outlive their
//! connections.

use std::fmt::Write as _;
use std::sync::Arc;

use crore_wire::mqtt::{Connect, PropertyWriter, Qos, Version, Will, encode};

use crate::http::ask;
use crate::mqtt::{encoded, subscribe_to};
use crate::random::Random;
use crate::script::{Protocol, Script, Step};

/// Session expiry in seconds: as long as the server allows.
const EXPIRY_S: u32 = 3600;
/// Filters and groups of one session: fewer than a connection may have.
const SUBSCRIPTIONS: usize = 60;
/// Levels of a filter: as many as the server accepts.
const LEVELS: usize = 16;
/// Connections of a crowd (connections that all do the same): few, so that each connects in time, over TLS too.
const CROWD: usize = 20;
/// Number of crowds of one script. Each begins when the one before has ended.
const CROWDS: usize = 12;

/// A CONNECT without a client id. The server makes up an id, so each connection of a crowd leaves its own session.
fn connect_step(will_bytes: usize) -> Step {
    let (mut connect_properties, mut will_properties) =
        (PropertyWriter::new(), PropertyWriter::new());
    connect_properties.session_expiry_interval_s(EXPIRY_S);
    will_properties.will_delay_interval_s(EXPIRY_S);
    let payload = vec![b'w'; will_bytes];
    let will = Will {
        qos: Qos::AtMostOnce,
        retain: false,
        properties: will_properties.properties(),
        topic: "evil/will",
        payload: &payload,
    };
    let packet = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive_s: 60,
        properties: connect_properties.properties(),
        client_id: "",
        will: (will_bytes > 0).then_some(will),
        user_name: None,
        password: None,
    };
    let label = format!("CONNECT with a lasting session and a will of {will_bytes}");
    Step::Send(encoded(label, |out| encode::connect(out, &packet)))
}

/// Crowds of connections that end as soon as they have a session, each with a large will that is due in an hour.
pub fn wills(random: &mut Random) -> Script {
    let size = random.pick(&[20_000, 60_000, 65_000]);
    let crowd = |then| Script {
        sockets: CROWD,
        linger_ms: 0,
        then,
        ..Script::new(
            "",
            Protocol::Mqtt(Version::V5),
            vec![connect_step(size), Step::Await(1, 2_000), Step::Reset],
        )
    };
    (1..CROWDS).fold(crowd(None), |next, _| crowd(Some(Arc::new(next))))
}

/// The steps of a connection that makes a session with these subscriptions and leaves at once.
fn subscribe_and_reset(names: &[String]) -> Vec<Step> {
    let mut steps = vec![connect_step(0)];
    for (n, batch) in names.chunks(20).enumerate() {
        let batch: Vec<&str> = batch.iter().map(|name| &name[..]).collect();
        steps.push(Step::Send(subscribe_to(Version::V5, n + 1, &batch, 1)));
    }
    steps.extend([Step::Await(4, 2_000), Step::Reset]);
    steps
}

/// One connection or a crowd that makes sessions with subscriptions of these names and leaves at once.
fn sessions_left_behind(random: &mut Random, name: impl Fn(usize, usize) -> String) -> Script {
    let seed = random.below(usize::MAX / 2);
    let names: Vec<String> = (0..SUBSCRIPTIONS).map(|index| name(seed, index)).collect();
    Script {
        sockets: random.pick(&[1, 1, CROWD]),
        linger_ms: 0,
        ..Script::new("", Protocol::Mqtt(Version::V5), subscribe_and_reset(&names))
    }
}

/// Sessions with long filters, each with the maximum of levels.
pub fn filters(random: &mut Random) -> Script {
    // The longest filter has a little less than the 255 bytes that the server accepts.
    let size = random.pick(&[1, 4]);
    sessions_left_behind(random, |seed, index| {
        let mut filter = String::from("evil");
        for level in 2..LEVELS {
            let _ = write!(filter, "/{seed:x}.{index:x}.{level:0size$x}");
        }
        filter + "/+"
    })
}

/// Sessions in groups with long names, half of them on one filter. Or sessions in groups that all share one filter, so that a message goes
/// to each group.
pub fn groups(random: &mut Random) -> Script {
    if random.one_in(2) {
        return groups_of_one_filter(random);
    }
    // The longest group name has a little less than the 255 bytes that the server accepts.
    let size = random.pick(&[10, 230]);
    sessions_left_behind(random, |seed, index| {
        let filter = if index % 2 == 0 { index } else { seed };
        format!(
            "$share/{seed:x}.{index:x}{}/evil/{filter:x}/+",
            "s".repeat(size)
        )
    })
}

/// Sessions one after the other, each the only member of its groups, then some messages that go to each of the groups. All scripts use the
/// same filter.
fn groups_of_one_filter(random: &mut Random) -> Script {
    let seed = random.below(usize::MAX / 2);
    let publish = ask("POST", "/pub/evil/groups/1", &[], b"x");
    let count = random.pick(&[1, 10, 50]);
    let publishes = vec![Step::Send(publish.times(count)), Step::Await(count, 5_000)];
    let sessions = random.between(20, 80);
    (0..sessions).fold(
        Script::new("", Protocol::Http, publishes),
        |next, session| {
            let name = |index| format!("$share/{seed:x}.{session:x}.{index:x}/evil/groups/+");
            let names: Vec<String> = (0..SUBSCRIPTIONS).map(name).collect();
            Script {
                linger_ms: 0,
                then: Some(Arc::new(next)),
                ..Script::new("", Protocol::Mqtt(Version::V5), subscribe_and_reset(&names))
            }
        },
    )
}
