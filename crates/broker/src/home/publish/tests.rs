//! Tests publishes of a client at its limit of kept bytes, and the reservations of records in flight.

use alloc::vec::Vec;

use crate::base::placement::Placement;
use crate::base::reason::Reason;
use crate::base::rules::Rules;
use crate::base::settings::{RetentionMode, Rule, Settings};
use crate::base::time::Now;
use crate::budget::admission::{Admission, Client, Party};
use crate::filters::matching::Matching;
use crate::home::{GroupJoin, Home, HomeContext, Reservation};
use crate::mail::lanes::Lanes;
use crate::mail::message::{DedupKey, Headers, Publish};
use crate::mail::{Change, Fact, Outcome, ReplyTo};

const NOW: Now = Now { s: 1, unix_s: 1000 };
const FULL: Outcome = Outcome::NoRoom(Reason::LogOfAddress);
/// More than the limit of one client.
const LARGE: [u8; 2000] = [b'x'; 2000];

struct Fixture {
    home: Home,
    settings: Settings,
    rules: Rules,
    lanes: Lanes,
    client: Client,
}

impl Fixture {
    /// Topics `kept/#` keep ten messages, `latest/#` the newest of each key, others none. A client may keep `most` bytes.
    fn new(most: usize, change: impl FnOnce(&mut Settings)) -> Fixture {
        let rule = |filter: &str, log_messages, keep| Rule {
            filter: filter.into(),
            log_messages,
            keep,
            ..Rule::default()
        };
        let mut settings = Settings {
            rules: alloc::vec![
                rule("kept/#", 10, RetentionMode::Log),
                rule("latest/#", 10, RetentionMode::Latest),
                rule("#", 0, RetentionMode::Log),
            ],
            ..Settings::default()
        };
        settings.limits.log_bytes_per_address_max = most;
        change(&mut settings);
        let rules = Rules::new(&settings.rules);
        let admission = Admission::new(&settings, 42);
        let home = Home::new(&settings, &rules, admission, 7, Placement::new(1, 1), 0, 42);
        Fixture {
            home,
            settings,
            rules,
            lanes: Lanes::new(0, 1),
            client: Client::from_address([10, 0, 0, 1].into(), 7),
        }
    }

    fn message<'a>(&self, name: &'a str, data: &'a [u8], retain: bool) -> Publish<'a> {
        Publish {
            hash: self.home.topics.hash_of(name.as_bytes()),
            name: name.as_bytes(),
            data,
            headers: Headers {
                retain,
                ..Headers::default()
            },
            dedup: None,
            client: self.client,
        }
    }

    fn publish(&mut self, name: &str, data: &[u8], retain: bool) -> Outcome {
        let message = self.message(name, data, retain);
        self.with(|home, context| home.admit_and_apply(&Fact::Publish(&message), context))
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Home, &mut HomeContext<'_>) -> T) -> T {
        let mut context = HomeContext {
            settings: &self.settings,
            rules: &self.rules,
            local_filters: &Matching::new(1, 1, &Default::default()),
            now: NOW,
            lanes: &mut self.lanes,
        };
        act(&mut self.home, &mut context)
    }

    fn reserve(&mut self, fact: &Fact<'_>) -> Result<Reservation, Outcome> {
        self.with(|home, context| home.reserve(fact, context))
    }

    fn is_taken(&mut self, name: &str, data: &[u8], retain: bool) -> bool {
        match self.publish(name, data, retain) {
            Outcome::Done(_) => true,
            other => {
                assert_eq!(other, FULL);
                false
            }
        }
    }

    fn count_qos_subscription(&mut self, name: &str, on: bool) {
        let hash = self.home.topics.hash_of(name.as_bytes());
        self.home
            .count_qos_subscription(hash, name.as_bytes(), on, NOW);
    }
}

#[test]
fn client_at_its_log_limit_may_publish_messages_that_are_not_kept() {
    let mut fixture = Fixture::new(1000, |_| {});
    assert!(fixture.is_taken("plain", &LARGE, false));
    assert!(
        !fixture.is_taken("plain", &LARGE, true),
        "it would be retained"
    );
    assert!(!fixture.is_taken("kept/a", &LARGE, false));
    assert!(!fixture.is_taken("latest/a", &LARGE, false));
    // The topics were created by messages of another client.
    fixture.client = Client::from_address([10, 0, 0, 2].into(), 7);
    assert!(
        fixture.is_taken("kept/a", b"small", false) && fixture.is_taken("plain", b"small", true)
    );
    fixture.client = Client::from_address([10, 0, 0, 1].into(), 7);
    assert!(!fixture.is_taken("kept/a", &LARGE, false));
    assert!(fixture.is_taken("plain", &LARGE, false));
}

#[test]
fn an_empty_message_that_removes_the_retained_one_is_not_kept() {
    let mut fixture = Fixture::new(2020, |_| {});
    let client = core::mem::replace(
        &mut fixture.client,
        Client::from_address([10, 0, 0, 2].into(), 7),
    );
    assert!(
        fixture.is_taken("plain", b"small", true) && fixture.is_taken("latest/a", b"small", true)
    );
    fixture.client = client;
    // The message and its row exceed the limit, so afterwards not even an empty message may be kept.
    assert!(fixture.is_taken("kept/a", &LARGE, false) && !fixture.is_taken("kept/a", b"", false));
    assert!(
        !fixture.is_taken("plain/other", b"", true),
        "nothing is retained there"
    );
    assert!(fixture.is_taken("plain", b"", true));
    assert!(!fixture.is_taken("plain", b"", true), "it was removed");
    assert!(fixture.is_taken("latest/a", b"", true));
    assert!(!fixture.is_taken("latest/a", b"", false));
}

#[test]
fn messages_that_a_session_or_group_needs_are_kept() {
    let steps: [(&str, &str); 2] = [("plain/a", "plain/a"), ("plain/+", "plain/a")];
    for (needed, name) in steps {
        let mut fixture = Fixture::new(1000, |_| {});
        fixture.count_qos_subscription(needed, true);
        assert!(!fixture.is_taken(name, &LARGE, false), "{needed}");
        assert!(fixture.is_taken("other", &LARGE, false));
        fixture.count_qos_subscription(needed, false);
        assert!(fixture.is_taken(name, &LARGE, false), "{needed}");
    }
    let mut fixture = Fixture::new(1000, |_| {});
    // The topic exists before its messages are kept.
    assert!(fixture.is_taken("plain/a", b"small", false));
    fixture.count_qos_subscription("plain/a", true);
    assert!(!fixture.is_taken("plain/a", &LARGE, false));
    let mut fixture = Fixture::new(1000, |_| {});
    let to = ReplyTo {
        slot: 1,
        generation: 1,
        request: 0,
        part: 0,
    };
    let join = GroupJoin {
        filter: b"plain/+",
        name: b"g",
        member: (0, to),
        credit: 1,
        party: Party::of_address(Client::NOBODY),
        is_new: true,
        recorded_for: None,
    };
    fixture.home.join_group(&join, &mut fixture.lanes, NOW);
    assert!(!fixture.is_taken("plain/a", &LARGE, false));
    assert!(fixture.is_taken("other", &LARGE, false));
}

#[test]
fn sessions_that_may_have_no_messages_kept_need_none() {
    let mut fixture = Fixture::new(1000, |settings| settings.mqtt.session_messages = 0);
    fixture.count_qos_subscription("plain/+", true);
    assert!(fixture.is_taken("plain/a", &LARGE, false));
}

#[test]
fn message_in_flight_reserves_the_bytes_that_it_will_need() {
    let mut fixture = Fixture::new(3000, |_| {});
    let reserve = |fixture: &mut Fixture, name| {
        let message = fixture.message(name, &LARGE, false);
        fixture.reserve(&Fact::Publish(&message))
    };
    let unkept = (0..3).map(|_| reserve(&mut fixture, "plain").expect("it is not kept"));
    let unkept = unkept.collect::<Vec<_>>();
    let kept = reserve(&mut fixture, "kept/a").expect("it is the first");
    assert!(matches!(reserve(&mut fixture, "kept/a"), Err(FULL)));
    for reserved in unkept {
        fixture.home.release(reserved, NOW);
    }
    assert!(matches!(reserve(&mut fixture, "kept/a"), Err(FULL)));
    fixture.home.release(kept, NOW);
    reserve(&mut fixture, "kept/a").expect("the other is gone");
}

#[test]
fn a_topic_under_way_has_room_reserved_once() {
    let mut fixture = Fixture::new(0, |settings| settings.limits.topics_per_shard = 2);
    let reserve = |fixture: &mut Fixture, change, name: &str| {
        let fact = Fact::Topic {
            change,
            hash: fixture.home.topics.hash_of(name.as_bytes()),
            name: name.as_bytes(),
            client: fixture.client,
        };
        fixture.reserve(&fact)
    };
    assert!(fixture.is_taken("there", b"x", false));
    // Room is reserved only for a record that will create its topic.
    for (change, name) in [
        (Change::Create, "there"),
        (Change::Delete, "nowhere"),
        (Change::ForgetLatest, "nowhere"),
        (Change::Create, "new"),
        (Change::Create, "new"),
    ] {
        reserve(&mut fixture, change, name).expect("there is room for one");
    }
    let refused = reserve(&mut fixture, Change::Create, "newer");
    assert!(matches!(refused, Err(Outcome::NoRoom(Reason::TopicsFull))));
}

#[test]
fn keys_run_out_while_other_records_are_under_way() {
    let mut fixture = Fixture::new(0, |settings| settings.publish.idempotency_window_s = 10);
    let under_way = fixture.message("plain", b"x", false);
    fixture.reserve(&Fact::Publish(&under_way)).expect("it may");
    let keyed = |fixture: &Fixture, key| Publish {
        dedup: Some(DedupKey {
            key,
            publisher: Party::of_address(Client::NOBODY),
        }),
        ..fixture.message("plain", b"x", false)
    };
    let (old, new) = (keyed(&fixture, b"old"), keyed(&fixture, b"new"));
    let at = |unix_s| {
        move |home: &mut Home, context: &mut HomeContext<'_>, fact: &Fact<'_>| {
            context.now.unix_s = unix_s;
            home.apply_admitted(fact, Some(u64::from(unix_s)), context)
        }
    };
    for (message, unix_s) in [(&old, 1000), (&new, 1005)] {
        fixture.with(|home, context| at(unix_s)(home, context, &Fact::Publish(message)));
    }
    let keys = |fixture: &Fixture| {
        fixture
            .home
            .retries
            .answers
            .as_ref()
            .map_or(0, |answers| answers.len())
    };
    // A record in flight may be a retry from second 1010. In that second the answer of second 1000 is still valid.
    fixture.home.tick(1010);
    assert_eq!(keys(&fixture), 2);
    fixture.home.tick(1011);
    assert_eq!(keys(&fixture), 1);
    let again = fixture.with(|home, context| at(1012)(home, context, &Fact::Publish(&new)));
    assert!(matches!(again, Outcome::Replayed(_)));
}
