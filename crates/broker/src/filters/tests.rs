//! Tests of the trie. The expected matches come from a plain list of filters.

use super::*;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use proptest::prelude::*;

fn level() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a"),
        Just("b"),
        Just(""),
        Just("$x"),
        Just("longer-level")
    ]
    .prop_map(String::from)
}

fn name() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..6).prop_map(|levels| levels.join("/"))
}

fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![3 => level(), 2 => Just(String::from("+"))];
    (prop::collection::vec(level, 0..5), any::<bool>()).prop_filter_map(
        "no filter is empty",
        |(mut levels, has_multi_level)| {
            if has_multi_level {
                levels.push("#".into());
            }
            let text = levels.join("/");
            (!text.is_empty()).then_some(text)
        },
    )
}

fn matching_ids(filters: &Filters, topic: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    filters.matches(topic.as_bytes(), |id| ids.push(id));
    ids
}

proptest! {
    #[test]
    fn matches_of_a_topic_follow_filters_that_are_opened_and_closed(
        topic in name(),
        changed in prop::collection::vec(prop_oneof![filter(), Just(String::from("#"))], 1..60),
    ) {
        let mut filters = Filters::new(7, &Steps::default());
        let mut open = BTreeSet::new();
        for text in changed {
            match filters.find(text.as_bytes()) {
                Some(id) => filters.close(id),
                None => drop(filters.open(text.as_bytes(), NO_PARTY).unwrap()),
            }
            if !open.remove(&text) {
                open.insert(text);
            }
            let expected = open.iter().filter(|text| topic::matches(text.as_bytes(), topic.as_bytes()));
            let expected: BTreeSet<_> = expected.map(|text| text.clone().into_bytes()).collect();
            for _ in 0..2 {
                let found = matching_ids(&filters, &topic);
                prop_assert_eq!(found.len(), expected.len());
                let found: BTreeSet<_> = found.into_iter().map(|id| filters.name(id)).collect();
                prop_assert_eq!(&found, &expected);
            }
        }
    }

    #[test]
    fn each_matching_filter_is_found_once(
        opened in prop::collection::vec(filter(), 0..40),
        closed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        topics in prop::collection::vec(name(), 1..20),
    ) {
        let mut filters = Filters::new(7, &Steps::default());
        let mut open = BTreeSet::new();
        for text in &opened {
            let id = filters.open(text.as_bytes(), NO_PARTY).unwrap();
            prop_assert_eq!(filters.find(text.as_bytes()), Some(id));
            prop_assert_eq!(filters.name(id), text.as_bytes());
            open.insert(text);
        }
        for index in closed {
            if let Some(text) = opened.get(index.index(opened.len().max(1)))
                && open.remove(text)
            {
                filters.close(filters.find(text.as_bytes()).unwrap());
                prop_assert_eq!(filters.find(text.as_bytes()), None);
            }
        }
        prop_assert_eq!(filters.len() as usize, open.len());
        filters.prefetch(topics.iter().map(|topic| topic.as_bytes()));
        for topic in &topics {
            let mut found: Vec<_> =
                matching_ids(&filters, topic).into_iter().map(|id| filters.name(id)).collect();
            let mut expected: Vec<_> = open
                .iter()
                .filter(|text| topic::matches(text.as_bytes(), topic.as_bytes()))
                .map(|text| text.as_bytes().to_vec())
                .collect();
            found.sort();
            expected.sort();
            prop_assert_eq!(found, expected, "{}", topic);
        }
        for text in open {
            filters.close(filters.find(text.as_bytes()).unwrap());
        }
        prop_assert_eq!((filters.bytes(), filters.is_empty()), (0, true));
    }

    #[test]
    fn filters_that_match_a_common_topic_overlap(one in filter(), other in filter(), topic in name()) {
        let matches = |filter: &String| topic::matches(filter.as_bytes(), topic.as_bytes());
        if matches(&one) && matches(&other) {
            prop_assert!(overlap(one.as_bytes(), other.as_bytes()));
        }
    }
}

#[test]
fn filters_without_a_common_topic_do_not_overlap() {
    for (one, other) in [
        ("a/+", "b/+"),
        ("a", "a/b"),
        ("+/x", "+/y/#"),
        ("#", "$a"),
        ("+/a", "$s/a"),
        ("a/+/c", "a/b/d"),
    ] {
        assert!(!overlap(one.as_bytes(), other.as_bytes()), "{one} {other}");
        assert!(!overlap(other.as_bytes(), one.as_bytes()), "{other} {one}");
    }
    for (one, other) in [("a/#", "a"), ("+/#", "x"), ("a/+", "+/b"), ("$s/#", "$s/+")] {
        assert!(overlap(one.as_bytes(), other.as_bytes()), "{one} {other}");
    }
}

#[test]
fn values_stay_with_their_filters() {
    let mut filters = Filters::new(1, &Steps::default());
    let (one, other) = (
        filters.open(b"a/+", NO_PARTY).unwrap(),
        filters.open(b"a/+/b", NO_PARTY).unwrap(),
    );
    assert_eq!(filters.value(one), NONE);
    filters.set_value(one, 5);
    filters.set_value(other, 6);
    assert_eq!(filters.open(b"a/+", NO_PARTY), Ok(one));
    assert_eq!((filters.value(one), filters.value(other)), (5, 6));
    filters.close(one);
    let second = filters.open(b"a/+", NO_PARTY).unwrap();
    assert_eq!((filters.value(second), filters.value(other)), (NONE, 6));
}

#[test]
fn shapes_and_levels_are_limited_and_come_free_again() {
    let mut filters = Filters::new(1, &Steps::default());
    let deep = "a/".repeat(LEVELS_MAX - 1) + "a";
    assert!(filters.open(deep.as_bytes(), NO_PARTY).is_ok());
    assert_eq!(
        filters.open((deep + "/a").as_bytes(), NO_PARTY),
        Err(Reason::FilterLevels)
    );
    // Filters of all shapes of twelve levels: 79 shapes have at most two wildcards.
    let text = |shape: u32| -> String {
        let level = |n: u32| if shape >> n & 1 == 1 { "+" } else { "a" };
        (0..12).map(level).collect::<Vec<_>>().join("/")
    };
    let accepted: Vec<u32> = (0..1 << 12)
        .filter(|shape| filters.open(text(*shape).as_bytes(), NO_PARTY).is_ok())
        .collect();
    assert_eq!(accepted.len(), 79 + SHAPES_MAX);
    assert_eq!(
        filters.open(text(0xFFF).as_bytes(), NO_PARTY),
        Err(Reason::FilterShapes)
    );
    let accepted_shape = *accepted
        .iter()
        .find(|shape| shape.count_ones() == 3)
        .unwrap();
    let same_shape = format!("{}/other", text(accepted_shape));
    assert!(
        filters.open(same_shape.as_bytes(), NO_PARTY).is_ok(),
        "a shape that is used already needs no room"
    );
    filters.close(filters.find(same_shape.as_bytes()).unwrap());
    filters.close(filters.find(text(accepted_shape).as_bytes()).unwrap());
    assert!(filters.open(text(0xFFF).as_bytes(), NO_PARTY).is_ok());
}

#[test]
fn topic_that_is_matched_again_costs_its_matches_only() {
    let steps = Steps::default();
    let mut filters = Filters::new(1, &steps);
    let deep = ["a"; LEVELS_MAX].join("/");
    for shape in 0..LEVELS_MAX * LEVELS_MAX {
        let plus = [shape / LEVELS_MAX, shape % LEVELS_MAX];
        let level = |n| if plus.contains(&n) { "+" } else { "a" };
        let filter = (0..LEVELS_MAX).map(level).collect::<Vec<_>>().join("/");
        filters.open(filter.as_bytes(), NO_PARTY).unwrap();
    }
    let cost = |topic: &str| {
        let before = steps.count();
        (matching_ids(&filters, topic).len(), steps.count() - before)
    };
    let (first, second, other) = (cost(&deep), cost(&deep), cost("b"));
    assert_eq!((second.0, other.0), (first.0, 0));
    assert!(second.1 * 2 < first.1, "{second:?} after {first:?}");
    assert_eq!(cost(&deep), first);
}

#[test]
fn filter_that_is_opened_found_or_closed_costs_a_step_for_each_level() {
    let steps = Steps::default();
    let mut filters = Filters::new(1, &steps);
    let deep = ["a"; LEVELS_MAX].join("/");
    let levels = LEVELS_MAX as u64;
    let mut steps_before = 0;
    let mut cost = |steps_now| steps_now - core::mem::replace(&mut steps_before, steps_now);
    let id = filters.open(deep.as_bytes(), NO_PARTY).unwrap();
    assert!(cost(steps.count()) >= levels);
    assert_eq!(filters.find(deep.as_bytes()), Some(id));
    assert_eq!(cost(steps.count()), levels);
    filters.close(id);
    assert_eq!(cost(steps.count()), levels);
}

/// The bytes that a trie has reserved.
fn reserved_bytes(filters: &Filters) -> usize {
    filters.nodes.bytes() + filters.index.bytes() + filters.levels.reserved_bytes()
}

/// Opens many filters with levels of this length.
fn open_many(filters: &mut Filters, len: usize) -> Vec<u32> {
    let filter = |n: usize| format!("{n:0len$}/+").into_bytes();
    let mut open = |n| {
        filters
            .open(&filter(n), NO_PARTY)
            .expect("it has one wildcard")
    };
    (0..20_000).map(&mut open).collect()
}

#[test]
fn open_filter_does_not_keep_the_memory_of_closed_ones() {
    let mut filters = Filters::new(7, &Steps::default());
    for len in [40, 80, 120] {
        let ids = open_many(&mut filters, len);
        assert!(filters.bytes() >= 20_000 * (2 * 32 + len));
        for id in ids.into_iter().skip(1) {
            filters.close(id);
        }
        assert!(
            reserved_bytes(&filters) <= UNCHARGED_BYTES_MAX / 4,
            "{}",
            reserved_bytes(&filters)
        );
    }
    assert_eq!(filters.len(), 3);
    assert!(filters.bytes() < 1_000);
}

/// Tests that the memory of chunks that are nearly empty is counted: a few open filters can keep these chunks.
#[test]
fn memory_that_a_trie_cannot_free_is_counted() {
    let mut filters = Filters::new(7, &Steps::default());
    for len in [40, 80, 120, 160, 200, 240] {
        for (n, id) in open_many(&mut filters, len).into_iter().enumerate() {
            if n % 50 > 0 {
                filters.close(id);
            }
        }
        assert!(filters.bytes() + UNCHARGED_BYTES_MAX >= reserved_bytes(&filters));
    }
    let bytes_max = 4 * 20_000 * (2 * 36 + 256);
    assert!(
        reserved_bytes(&filters) <= bytes_max,
        "{}",
        reserved_bytes(&filters)
    );
}
