//! Tests shared subscriptions with a slow engine (the writer of the log) that loses batches.

use proptest::prelude::*;

use super::{TestServer, message, subscribe};

#[derive(Clone, Debug)]
enum Step {
    /// A member joins.
    Join(usize),
    /// A member's connection fails, with unacknowledged messages.
    Cut(usize),
    Publish,
    /// The engine commits its waiting batches, or loses them.
    Engine(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0usize..3).prop_map(Step::Join),
        2 => (0usize..3).prop_map(Step::Cut),
        5 => Just(Step::Publish),
        5 => any::<bool>().prop_map(Step::Engine),
    ]
}

/// Appends the data of the messages that a member received to `given`.
fn take(server: &mut TestServer, conn: usize, given: &mut Vec<String>) {
    let packets = server.told(conn).into_iter();
    let messages = packets.filter_map(|packet| Some(packet.split_once("t/")?.1.to_string()));
    given.extend(messages.filter_map(|rest| Some(rest.rsplit_once(' ')?.1.to_string())));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Each acknowledged publish must be delivered to a member at least once, and exactly once if that member did not leave. The first
    /// member never leaves, so that the group stays alive.
    #[test]
    fn each_acknowledged_message_is_delivered_to_a_member(steps in prop::collection::vec(step(), 1..40)) {
        let mut server = TestServer::new(2, |_| {});
        let mut members: [Option<usize>; 3] = [None; 3];
        let stays = server.mqtt("stays", 0);
        server.0.send(stays, subscribe("$share/g/t/+"));
        server.commit();
        let publisher = server.mqtt("publisher", 0);
        let (mut given, mut cut, mut sent) = (Vec::new(), false, 0);
        let mut next = 0;
        for step in steps {
            match step {
                Step::Join(n) if members[n].is_none() => {
                    let conn = server.mqtt(&format!("member{n}"), 0);
                    server.0.send(conn, subscribe("$share/g/t/+"));
                    members[n] = Some(conn);
                }
                Step::Cut(n) => {
                    if let Some(conn) = members[n].take() {
                        take(&mut server, conn, &mut given);
                        server.0.cut(conn);
                        cut = true;
                    }
                }
                Step::Join(_) => {}
                Step::Publish if sent < 12 => {
                    sent += 1;
                    next += 1;
                    let topic = format!("t/{}", next % 4);
                    server.0.send(publisher, message(&topic, &format!("m{next}"), next, false));
                }
                Step::Publish => {}
                Step::Engine(true) => server.commit(),
                Step::Engine(false) => server.lose(),
            }
        }
        server.commit();
        for conn in members.into_iter().flatten().chain([stays]) {
            take(&mut server, conn, &mut given);
        }
        let all = given.len();
        given.sort();
        given.dedup();
        prop_assert_eq!(given.len(), usize::from(next));
        prop_assert!(cut || all == given.len());
        for conn in members.into_iter().flatten().chain([stays]) {
            server.0.cut(conn);
        }
        server.lose();
        server.commit();
        let groups: u32 = server.0.shards.iter().map(|shard| shard.accounts().groups).sum();
        prop_assert_eq!(groups, 0);
    }
}

/// A group exists as long as a session subscribes to it, even without a connection.
#[test]
fn a_group_ends_with_the_session_that_subscribes_to_it() {
    let groups = |server: &TestServer| -> u32 {
        let shards = server.0.shards.iter();
        shards.map(|shard| shard.accounts().groups).sum()
    };
    let mut server = TestServer::new(2, |_| {});
    let member = server.mqtt("member", 10);
    server.0.send(member, subscribe("$share/g/t/+"));
    server.commit();
    server.0.cut(member);
    server.commit();
    assert_eq!(groups(&server), 2, "one at each home");
    server.0.advance_and_tick_s(20);
    server.commit();
    server.0.advance_and_tick_s(1);
    server.commit();
    assert_eq!(groups(&server), 0);
}
