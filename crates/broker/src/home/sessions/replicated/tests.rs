//! Tests of the sessions of a cluster (`replicated.rs`), record by record.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ROWS_PER_PIECE;
use crate::base::settings::Settings;
use crate::base::snapshot::{Block, FieldReader, kind};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::budget::stats::Accounts;
use crate::budget::world::World;
use crate::home::retired_tokens::{DueToken, RetiredTokens, WILL_KEPT_S, WILL_RETRY_S};
use crate::home::session_terms::{Consequences, DueInLog, LogPlace};
use crate::home::sessions::{FOREVER_S, Sessions};
use crate::mail::session::Will;
use crate::mail::session::patch::Outline;
use crate::mail::session::record::{
    ChangeAtHome, ChangedBy, Fence, RecordedPatch, RecordedState, SessionChange, SessionRecord,
    Terms,
};
use crate::mail::session::stored::{StoredSession, StoredSubscription, subscriptions, token_of};

/// The nodes that write the records.
const ME: u64 = 1;
const OTHER: u64 = 2;

struct Table {
    world: Arc<World>,
    sessions: Sessions,
    offset: u64,
    now_s: u32,
}

impl Table {
    fn new() -> Table {
        let mut settings = Settings::default();
        settings.mqtt.durable_sessions = true;
        settings.mqtt.sessions_per_user_max = 2;
        // With a limit, bytes are counted by party.
        settings.limits.memory_bytes = 64 << 20;
        Table {
            world: World::for_tests(settings, 1),
            sessions: Sessions::new(0, 1, true),
            offset: 0,
            now_s: 1000,
        }
    }

    fn now(&self) -> Now {
        Now {
            s: 1,
            unix_s: self.now_s,
        }
    }

    /// Applies a change of the session `name`, by this writer.
    fn apply(
        &mut self,
        name: &str,
        writer: u64,
        change: SessionChange<'_>,
        fence: Option<Fence>,
    ) -> Consequences {
        let record = SessionRecord {
            name: name.as_bytes(),
            change,
            fence,
        };
        self.apply_record(&record, writer)
    }

    /// Applies a change that a home has recorded.
    fn apply_at_home(
        &mut self,
        name: &str,
        writer: u64,
        change: ChangeAtHome,
        fence: Fence,
    ) -> Consequences {
        let mut bytes = Vec::new();
        let record = change.encode(name.as_bytes(), Some(fence));
        record.write(&mut bytes, 0);
        let record = SessionRecord::decode(&bytes).ok().flatten();
        self.apply_record(&record.expect("it was just encoded").1, writer)
    }

    fn apply_record(&mut self, record: &SessionRecord<'_>, writer: u64) -> Consequences {
        self.offset += 1;
        let place = LogPlace {
            offset: self.offset,
            writer,
            now: self.now(),
        };
        self.sessions.apply(record, &self.world, place).1
    }

    /// A connection of this writer claims the session. Returns the offset of the claim.
    fn claim(&mut self, name: &str, writer: u64, clean: bool, will: Option<Will>) -> u64 {
        let change = SessionChange::Claim {
            clean,
            expiry_s: 100,
            owner: Client::NOBODY,
            token: self.offset + 1,
            will: will.map(Box::new),
        };
        self.apply(name, writer, change, None);
        self.offset
    }

    /// The connection with this claim ends, and its session is away.
    fn leave(&mut self, name: &str, claim: u64, will: Option<Will>) {
        let session = StoredSession {
            token: claim,
            ..StoredSession::default()
        }
        .encode();
        let terms = Terms {
            owner: Client::NOBODY,
            is_held: false,
            expiry_s: 100,
            will: will.map(Box::new),
        };
        let state = RecordedState::new(&session, terms);
        let by = ChangedBy::Closing;
        let fence = Some(Fence {
            claim,
            changed_by: by,
        });
        let after = self.apply(name, ME, SessionChange::State(state), fence);
        assert!(!after.is_void);
    }

    fn next_due(&mut self) -> Option<DueInLog> {
        let now = self.now();
        self.sessions.next_due_in_log(now, &self.world.admission)
    }

    /// Takes all work that is due now.
    fn due(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while self.sessions.next_due_s() <= self.now_s {
            all.extend(self.next_due().map(told));
        }
        all
    }
}

fn told(due: DueInLog) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match due {
        DueInLog::Will(name, will) => format!("will {} of {}", will.token, text(&name)),
        DueInLog::End(name) => format!("end of {}", text(&name)),
        DueInLog::Retired(DueToken::Publish(will, _)) => format!("claimed will {}", will.token),
        DueInLog::Retired(DueToken::Release(token)) => format!("release of {token}"),
        DueInLog::Released(rows, _) => format!("{rows} rows"),
    }
}

fn will(token: u64, delay_s: u32) -> Will {
    Will {
        token,
        delay_s,
        topic: b"last/words".as_slice().into(),
        ..Will::default()
    }
}

#[test]
fn session_that_is_evicted_leaves_its_will() {
    let mut table = Table::new();
    table.sessions.set_steward(true);
    let claim = table.claim("sensor", ME, true, Some(will(77, 50)));
    table.leave("sensor", claim, Some(will(77, 50)));
    assert_eq!(table.due(), [""; 0]);
    let counts = &table.world.admission;
    let absent = table.sessions.evictable(0, counts).expect("it is away");
    assert!(table.sessions.evict(absent.id, counts));
    assert_eq!(table.due(), ["will 77 of sensor"]);
    let hash = table.sessions.rows.get(0).hash;
    let change = (table.sessions).change_by_steward((hash, b"sensor"), 77, table.now());
    let (change, fence) = change.expect("the will is published");
    assert!(matches!(change, ChangeAtHome::End(_)));
    let end = SessionChange::End { token: claim };
    assert!(!table.apply("sensor", ME, end, Some(fence)).is_void);
    assert_eq!(table.sessions.len(), 0);
}

#[test]
fn session_counts_as_away_while_no_connection_of_any_node_holds_it() {
    let mut table = Table::new();
    let away = |table: &Table| {
        let mut accounts = Accounts::default();
        table.sessions.account(&mut accounts);
        (accounts.sessions, accounts.away_sessions)
    };
    let claim = table.claim("sensor", ME, true, None);
    assert_eq!(away(&table), (1, 0));
    table.leave("sensor", claim, None);
    assert_eq!(away(&table), (1, 1));
    for clean in [false, true] {
        table.claim("sensor", OTHER, clean, None);
        assert_eq!(away(&table), (1, 0));
    }
    table.sessions.release_writer(OTHER, table.now(), true);
    assert_eq!(away(&table), (1, 1));
    let name = (table.sessions.rows.get(0).hash, &b"sensor"[..]);
    let (change, fence) = table.sessions.change_by_operator(name).expect("it is away");
    table.apply_at_home("sensor", OTHER, change, fence);
    assert_eq!(away(&table), (0, 0));
}

#[test]
fn session_of_a_user_gives_its_place_back_when_it_ends() {
    let mut table = Table::new();
    let names = ["a\0ann", "b\0ann"];
    for name in names {
        table.claim(name, ME, true, None);
        table.claim(name, ME, true, None);
    }
    let counts = table.world.admission.clone();
    assert!(!counts.may_enter_session(Client::NOBODY, b"c\0ann"));
    table.sessions.release_writer(ME, table.now(), true);
    for name in names {
        let hash = xxh3_64_with_seed(name.as_bytes(), table.world.seed) as u32;
        let ended = table.sessions.change_by_operator((hash, name.as_bytes()));
        let (change, fence) = ended.expect("it is away");
        table.apply_at_home(name, OTHER, change, fence);
    }
    for name in names {
        assert!(
            counts
                .enter_session(Client::NOBODY, name.as_bytes())
                .is_ok()
        );
    }
}

#[test]
fn session_that_an_operator_ends_at_any_node_leaves_its_will() {
    let mut table = Table::new();
    let claim = table.claim("sensor", ME, true, Some(will(77, 50)));
    let hash = table.sessions.rows.get(0).hash;
    let name = (hash, &b"sensor"[..]);
    assert!(
        table.sessions.change_by_operator(name).is_none(),
        "it is held"
    );
    table.leave("sensor", claim, Some(will(77, 50)));
    let change = table.sessions.change_by_operator(name);
    let (change, fence) = change.expect("it is away");
    assert!(!table.apply_at_home("sensor", OTHER, change, fence).is_void);
    assert_eq!(table.sessions.len(), 0);
    assert_eq!(table.due(), [""; 0], "another node is the steward");
    table.sessions.set_steward(true);
    assert_eq!(table.due(), ["claimed will 77"]);
}

#[test]
fn keys_of_what_has_ended_are_released_a_minute_later_and_at_other_nodes_too() {
    for (is_steward, release_s) in [(true, 60), (false, 90)] {
        let mut table = Table::new();
        table.sessions.set_steward(is_steward);
        let first = table.claim("sensor", ME, true, Some(will(77, 0)));
        table.claim("sensor", OTHER, true, None);
        let published = match is_steward {
            true => alloc::vec!["claimed will 77"],
            false => Vec::new(),
        };
        assert_eq!(table.due(), published);
        table.now_s += release_s - 1;
        assert_eq!(table.due(), [""; 0]);
        table.now_s += 1;
        assert_eq!(table.due(), [format!("release of {first}")]);
        // The steward may have to publish the will again.
        table.now_s += WILL_KEPT_S - 1;
        assert_eq!(table.due(), [""; 0]);
        table.now_s += 1;
        assert_eq!(table.due(), ["release of 77"]);
        assert_eq!(table.due(), [""; 0]);
    }
}

#[test]
fn party_of_a_session_pays_for_its_retired_will_and_keys_until_their_release() {
    let mut table = Table::new();
    let world = table.world.clone();
    let owner = Client::from_address([10, 0, 0, 1].into(), world.seed);
    let party = world.admission.party_of_session(b"sensor", owner);
    let charged = || world.admission.absent_bytes(party);
    let mut last_words = will(77, 0);
    last_words.data = [b'x'; 5000].into();
    let claim = |table: &mut Table, will: Option<Will>| {
        let change = SessionChange::Claim {
            clean: true,
            expiry_s: 100,
            owner,
            token: table.offset + 1,
            will: will.map(Box::new),
        };
        table.apply("sensor", ME, change, None);
    };
    claim(&mut table, Some(last_words));
    // The client has not released these QoS 2 messages.
    let session = StoredSession {
        token: 1,
        received: (1..=100).collect(),
        ..StoredSession::default()
    };
    let hash = xxh3_64_with_seed(b"sensor", world.seed) as u32;
    let patch = Outline::for_new_session(1).patch(&session, &Outline::from_session(&session));
    let by = Fence {
        claim: 1,
        changed_by: ChangedBy::Holder,
    };
    let change = SessionChange::Patch(RecordedPatch::new(&patch, None));
    assert!(!table.apply("sensor", ME, change, Some(by)).is_void);
    // The Clean Start ends the session.
    claim(&mut table, None);
    let id = table.sessions.find(hash, b"sensor").expect("a new session");
    let (_, alone) = table.sessions.party_and_bytes(id, &world.admission);
    let retired = charged() - alone;
    assert!(retired >= 5000 + 100 * 48, "{retired} bytes");
    table.now_s += 90;
    table.due();
    assert!(
        (alone + 5000..alone + 6000).contains(&charged()),
        "the keys are released"
    );
    table.now_s += WILL_KEPT_S;
    table.due();
    assert_eq!(charged(), alone, "the will is released");
}

#[test]
fn will_of_a_record_belongs_to_the_client_of_its_session() {
    let mut table = Table::new();
    let owner = Client::from_address([10, 0, 0, 1].into(), table.world.seed);
    for name in ["taken", "left"] {
        let change = SessionChange::Claim {
            clean: true,
            expiry_s: 100,
            owner,
            token: table.offset + 1,
            will: Some(Box::new(will(77, 0))),
        };
        table.apply(name, ME, change, None);
    }
    let session = StoredSession {
        token: 2,
        ..StoredSession::default()
    }
    .encode();
    let terms = Terms {
        owner,
        is_held: false,
        expiry_s: 100,
        will: Some(Box::new(will(78, 0))),
    };
    let fence = Some(Fence {
        claim: 2,
        changed_by: ChangedBy::Closing,
    });
    let state = SessionChange::State(RecordedState::new(&session, terms));
    table.apply("left", ME, state, fence);
    table.claim("taken", OTHER, true, None);
    table.sessions.set_steward(true);
    let mut wills = 0;
    while table.sessions.next_due_s() <= table.now_s {
        if let Some(DueInLog::Will(_, will) | DueInLog::Retired(DueToken::Publish(will, _))) =
            table.next_due()
        {
            assert_eq!(will.client, owner, "will {}", will.token);
            wills += 1;
        }
    }
    assert_eq!(wills, 2);
}

#[test]
fn wills_of_a_snapshot_belong_to_their_clients_and_are_charged_to_them() {
    let mut table = Table::new();
    let owner = Client::from_address([10, 0, 0, 1].into(), table.world.seed);
    for (name, token) in [("away", 77), ("back", 78), ("back", 79)] {
        let change = SessionChange::Claim {
            clean: true,
            expiry_s: 100,
            owner,
            token: table.offset + 1,
            will: Some(Box::new(will(token, 0))),
        };
        table.apply(name, ME, change, None);
    }
    let now = table.now();
    table.sessions.release_writer(ME, now, true);
    let mut bytes = Vec::new();
    let mut block = Block {
        bytes: &mut bytes,
        records: 0,
    };
    assert_eq!(table.sessions.save(0, now.unix_s, &mut block), None);
    assert_eq!(table.sessions.save_retired(0, &mut block), None);
    let mut next = Table::new();
    let mut from = FieldReader(&bytes);
    while !from.is_empty() {
        match from.byte() {
            Ok(kind::SESSION) => {
                let saved = Sessions::read(&mut from).expect("a session");
                let epochs = (next.world.epoch, next.world.epoch);
                let restored = (next.sessions).restore(saved, &next.world, epochs, now, 0);
                assert_eq!(restored, Ok(()));
            }
            _ => {
                assert_eq!(from.number16(), Ok(0));
                let saved = RetiredTokens::read(&mut from).expect("a token");
                next.sessions.restore_retired(saved, &next.world);
            }
        }
    }
    next.sessions.count_restored(&next.world.admission);
    let charged = |table: &Table| {
        let counts = &table.world.admission;
        counts.absent_bytes(counts.party_of_session(b"back", owner))
    };
    assert_eq!(charged(&next), charged(&table));
    next.sessions.set_steward(true);
    let mut tokens = Vec::new();
    while next.sessions.next_due_s() <= next.now_s {
        if let Some(DueInLog::Will(_, will) | DueInLog::Retired(DueToken::Publish(will, _))) =
            next.next_due()
        {
            assert_eq!(will.client, owner, "will {}", will.token);
            tokens.push(will.token);
        }
    }
    assert_eq!(tokens, [78, 77, 79]);
}

#[test]
fn next_steward_publishes_a_claimed_will_again() {
    let mut table = Table::new();
    table.claim("sensor", ME, true, Some(will(77, 0)));
    table.claim("sensor", OTHER, false, Some(will(78, 5)));
    table.claim("sensor", ME, false, None);
    assert_eq!(table.due(), [""; 0], "another node is the steward");
    table.now_s += 30;
    for _ in 0..2 {
        table.sessions.set_steward(true);
        assert_eq!(table.due(), ["claimed will 77"], "will 78 has a delay");
        table.sessions.set_steward(false);
    }
}

#[test]
fn will_that_is_due_is_published_although_its_client_is_back_before_that() {
    let mut table = Table::new();
    for (name, away_s) in [("late", 50), ("early", 20)] {
        let claim = table.claim(name, ME, true, Some(will(claim_token(&table), 30)));
        table.leave(name, claim, Some(will(claim, 30)));
        table.now_s += away_s;
        table.claim(name, OTHER, false, None);
    }
    table.sessions.set_steward(true);
    assert_eq!(
        table.due(),
        ["claimed will 1"],
        "the delay of the other is not over"
    );
}

/// The token of the next claim's will: the claim's offset.
fn claim_token(table: &Table) -> u64 {
    table.offset + 1
}

#[test]
fn refused_will_is_published_again_until_no_limit_refuses_it() {
    let mut table = Table::new();
    table.sessions.set_steward(true);
    let away = table.claim("away", ME, true, Some(will(77, 0)));
    table.leave("away", away, Some(will(77, 0)));
    for token in [78, 79] {
        table.claim("back", ME, true, Some(will(token, 0)));
    }
    table.claim("back", ME, true, None);
    let name = (
        xxh3_64_with_seed(b"away", table.world.seed) as u32,
        &b"away"[..],
    );
    let both = ["claimed will 78", "claimed will 79", "will 77 of away"];
    assert_eq!(table.due(), both);
    for _ in 0..2 {
        let now = table.now();
        assert!(table.sessions.keep_refused_will(name, 77, now));
        table.sessions.publish_retired_will_later(1, now);
        table.now_s += WILL_RETRY_S - 1;
        assert_eq!(table.due(), [""; 0]);
        table.now_s += 1;
        assert_eq!(table.due(), ["claimed will 79", "will 77 of away"]);
        table.now_s += WILL_RETRY_S;
        assert_eq!(table.due(), [""; 0], "neither was refused");
    }
    // The key of a will that is published later would be released too early.
    let now = table.now();
    assert!(table.sessions.keep_refused_will(name, 77, now));
    table.sessions.publish_retired_will_later(1, now);
    table.now_s += WILL_KEPT_S;
    let due = table.due();
    assert!(!due.contains(&"claimed will 79".into()), "{due:?}");
    assert!(!table.sessions.keep_refused_will(name, 77, table.now()));
}

#[test]
fn sessions_of_a_dead_node_are_released_in_pieces_and_count_as_released_at_once() {
    let mut table = Table::new();
    let names: Vec<String> = (0..1000).map(|n| format!("sensor-{n}")).collect();
    for name in &names {
        table.claim(name, OTHER, true, None);
    }
    table.sessions.release_writer(OTHER, table.now(), false);
    let held = |table: &Table| {
        let rows = (0..1000).filter(|id| table.sessions.is_held_somewhere(*id));
        rows.count()
    };
    assert_eq!(
        held(&table),
        1000,
        "nothing is visited in the turn of the death"
    );
    // The session has expired by now, so another one begins, although the row was not visited.
    table.now_s += 102;
    let (before, last) = (table.offset, names.last().expect("there are some"));
    table.claim(last, ME, false, None);
    let state = table.sessions.state_of(999);
    assert_eq!(token_of(state), before + 1);
    for _ in 0..2 {
        let before = held(&table);
        table.next_due();
        assert_eq!(before - held(&table), ROWS_PER_PIECE);
    }
    let pieces = 1 + (1000 / ROWS_PER_PIECE);
    assert!(table.due().len() >= pieces - 1);
    assert_eq!(held(&table), 1, "of the living node");
    table.sessions.release_writer(ME, table.now(), true);
    assert_eq!(held(&table), 0, "at once while the log is read");
}

#[test]
fn next_stewardship_ends_again_what_the_last_one_may_not_have_recorded() {
    let mut table = Table::new();
    for name in ["a", "b", "c"] {
        let claim = table.claim(name, ME, true, None);
        table.leave(name, claim, None);
    }
    table.now_s += 101;
    for ends in [["end of a", "end of b", "end of c"]; 2] {
        table.sessions.set_steward(true);
        assert_eq!(table.due(), ends);
        table.sessions.set_steward(false);
    }
    let claim = table.offset - 1;
    let by = ChangedBy::Steward;
    let fence = Some(Fence {
        claim,
        changed_by: by,
    });
    let end = SessionChange::End { token: claim };
    assert!(!table.apply("c", OTHER, end, fence).is_void);
    table.sessions.set_steward(true);
    assert_eq!(table.due(), ["end of a", "end of b"]);
    assert_eq!(table.due(), [""; 0]);
}

/// The next state of a session: one more subscription.
fn with_subscription(
    before: &StoredSession<'static>,
    filter: &'static str,
) -> StoredSession<'static> {
    let mut after = before.clone();
    after.subscriptions.push(StoredSubscription {
        filter: filter.as_bytes().into(),
        options: 1,
        identifier: 0,
        lacks_retained: false,
        positions: alloc::vec![5],
        starts: Vec::new(),
    });
    after
}

#[test]
fn patch_changes_a_session_unless_a_newer_claim_or_another_state_stands_before_it() {
    let mut table = Table::new();
    let claim = table.claim("sensor", ME, true, Some(will(77, 50)));
    let begun = StoredSession {
        token: claim,
        ..StoredSession::default()
    };
    let (one, two) = (
        with_subscription(&begun, "a"),
        with_subscription(&begun, "b"),
    );
    let both = with_subscription(&one, "b");
    let patch = |before: &StoredSession<'_>, after: &StoredSession<'_>| {
        Outline::from_session(before).patch(after, &Outline::from_session(after))
    };
    let mut apply = |claim, before, after, terms| {
        let patch = patch(before, after);
        let by = match terms {
            None => ChangedBy::Holder,
            Some(_) => ChangedBy::Closing,
        };
        let change = SessionChange::Patch(RecordedPatch::new(&patch, terms));
        let is_void = table
            .apply(
                "sensor",
                ME,
                change,
                Some(Fence {
                    claim,
                    changed_by: by,
                }),
            )
            .is_void;
        let away = table
            .sessions
            .states
            .rows
            .get(table.sessions.rows.get(0).holder);
        (is_void, away.expires_s, away.will.is_some())
    };
    assert_eq!(apply(claim, &begun, &one, None), (false, FOREVER_S, true));
    assert_eq!(apply(claim - 1, &one, &two, None), (true, FOREVER_S, true));
    let terms = Terms {
        owner: Client::NOBODY,
        is_held: false,
        expiry_s: 100,
        will: None,
    };
    assert_eq!(apply(claim, &one, &both, Some(terms)), (false, 1101, false));
    let state = table.sessions.copy_of_state(0);
    let state = StoredSession::decode(&state).expect("it is whole");
    assert_eq!(state.subscriptions, both.subscriptions);

    // The steward's record of a session without its will changes no subscription.
    let hash = table.sessions.rows.get(0).hash;
    let change = table
        .sessions
        .change_by_steward((hash, b"sensor"), 0, table.now());
    let (change, fence) = change.expect("it is away");
    assert!(!table.apply_at_home("sensor", OTHER, change, fence).is_void);
    assert_eq!(subscriptions(table.sessions.state_of(0)).count(), 2);

    let claim = table.claim("sensor", ME, false, None);
    let patch = patch(&one, &two);
    let change = SessionChange::Patch(RecordedPatch::new(&patch, None));
    let by = ChangedBy::Holder;
    table.apply(
        "sensor",
        ME,
        change,
        Some(Fence {
            claim,
            changed_by: by,
        }),
    );
    assert_eq!(table.sessions.len(), 0, "its state was another one");
}
