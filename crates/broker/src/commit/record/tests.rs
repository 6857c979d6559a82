//! Records: what is written is read again, and nothing else is.

use proptest::prelude::*;

use super::*;

const SEED: u64 = 7;

fn encoded(fact: &Fact<'_>, behind: u32) -> Vec<u8> {
    let mut record = Vec::new();
    fact.encode(&mut record, behind);
    record
}

fn decoded<T>(record: &[u8], then: impl FnOnce(u32, &Fact<'_>) -> T) -> Result<T, Damaged> {
    Fact::decode(record, SEED, Client::NOBODY, then)
}

fn is_read(record: &[u8]) -> bool {
    decoded(record, |_, _| ()).is_ok()
}

fn change(change: Change, name: &[u8]) -> Fact<'_> {
    Fact::Topic {
        change,
        hash: xxh3_64_with_seed(name, SEED) as u32,
        name,
        client: Client::NOBODY,
    }
}

/// A written record reads as the same fact.
fn is_read_again(fact: &Fact<'_>, behind: u32) {
    let record = encoded(fact, behind);
    let is_same = decoded(&record, |place, again| (place, again) == (behind, fact));
    assert_eq!(is_same, Ok(true));
    for len in 0..record.len() {
        assert!(!is_read(&record[..len]), "{fact:?} cut to {len} bytes");
    }
    let longer = [&record[..], &[0]].concat();
    assert!(!is_read(&longer));
}

#[test]
fn all_kinds_are_read_again() {
    for kind in [
        Change::Create,
        Change::Delete,
        Change::Purge,
        Change::PurgeSome(u64::MAX, 4096),
        Change::ForgetLatest,
    ] {
        is_read_again(&change(kind, b"$SYS/x"), 4095);
    }
}

#[test]
fn an_unknown_kind_is_refused() {
    let mut record = encoded(&change(Change::Create, b"t"), 1);
    record[0] = 200;
    assert!(!is_read(&record));
}

proptest! {
    #[test]
    fn messages_are_read_again(
        fields in prop::array::uniform6(prop::collection::vec(any::<u8>(), 0..40)),
        qos in 0u8..3,
        flags in any::<[bool; 2]>(),
        ttl_s in any::<Option<u32>>(),
        retry in prop::option::of((prop::collection::vec(any::<u8>(), 1..20), any::<u64>())),
        behind in any::<u32>(),
    ) {
        let [name, data, content_type, event, key, attributes] = &fields;
        let message = Publish {
            hash: xxh3_64_with_seed(name, SEED) as u32,
            name,
            data,
            headers: Headers {
                content_type,
                event,
                key,
                attributes,
                ttl_s,
                qos,
                retain: flags[0],
                binary: flags[1],
            },
            retry: retry.as_ref().map(|(key, publisher)| Retry {
                key: &key[..],
                publisher: Party::from_number(*publisher),
            }),
            client: Client::NOBODY,
        };
        is_read_again(&Fact::Publish(&message), behind);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        _ = is_read(&bytes);
    }
}

#[test]
fn notes_are_read_again_and_a_sign_of_life_may_say_more() {
    let beat = Note::Beat(Beat {
        name: b"one",
        link: b"",
        connections: 300,
    });
    for note in [
        Note::Mark(1 << 40),
        beat,
        Note::Dead(7),
        Note::Steward(u64::MAX),
    ] {
        let mut record = Vec::new();
        note.encode(&mut record, 4095);
        assert_eq!(Note::decode(&record), Ok(Some((4095, note))));
        for len in 1..record.len() {
            assert!(
                Note::decode(&record[..len]).is_err(),
                "{note:?} cut to {len} bytes"
            );
        }
        record.push(0);
        assert_eq!(Note::decode(&record).is_ok(), note == beat);
        assert_eq!(unknown(&record), None);
    }
    assert_eq!(
        [unknown(&[100]), unknown(&[200])],
        [Some(false), Some(true)]
    );
}
