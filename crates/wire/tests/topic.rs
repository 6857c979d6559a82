//! Tests topic names, filters over them, and queries.

use crore_wire::form;
use crore_wire::topic::{self, TopicError};
use proptest::prelude::*;

const MAX: usize = 64;

fn path(raw: &str) -> Result<String, TopicError> {
    let mut out = b"kept".to_vec();
    let verdict = topic::from_path(raw.as_bytes(), MAX, &mut out);
    assert!(out.starts_with(b"kept") && (verdict.is_ok() || out.len() == 4));
    verdict.map(|()| String::from_utf8(out.split_off(4)).expect("names are UTF-8"))
}

fn query(raw: &str) -> Result<String, TopicError> {
    let mut out = b"kept".to_vec();
    let verdict = topic::from_query(raw.as_bytes(), MAX, &mut out);
    assert!(out.starts_with(b"kept") && (verdict.is_ok() || out.len() == 4));
    verdict.map(|()| String::from_utf8(out.split_off(4)).expect("names are UTF-8"))
}

#[test]
fn a_path_names_a_topic() {
    for (raw, name) in [
        ("chat", "chat"),
        ("p/s1/-", "p/s1/-"),
        ("a%20b/%c3%A4", "a b/ä"),
        ("ä", "ä"),
        ("100%25", "100%"),
        ("%2525", "%25"),
        ("...", "..."),
        ("a.b/.c", "a.b/.c"),
        ("$SYS/x", "$SYS/x"),
    ] {
        assert_eq!(path(raw).as_deref(), Ok(name), "{raw}");
    }
    for (raw, error) in [
        ("", TopicError::Empty),
        ("/", TopicError::EmptyLevel),
        ("/a", TopicError::EmptyLevel),
        ("a/", TopicError::EmptyLevel),
        ("a//b", TopicError::EmptyLevel),
        ("a%2Fb", TopicError::EncodedSlash),
        ("a%2fb/c", TopicError::EncodedSlash),
        (".", TopicError::DotSegment),
        ("a/../b", TopicError::DotSegment),
        ("a/%2e%2E", TopicError::DotSegment),
        ("a/.%2e/b", TopicError::DotSegment),
        ("a%00", TopicError::Control),
        ("a%0d%0aB", TopicError::Control),
        ("%7f", TopicError::Control),
        ("%c2%85", TopicError::Control),
        ("%ff", TopicError::NotUtf8),
        ("%c0%af", TopicError::NotUtf8),
        ("a%", TopicError::BadEscape),
        ("a%4", TopicError::BadEscape),
        ("a%g0", TopicError::BadEscape),
        ("a%+1", TopicError::BadEscape),
        ("a/+", TopicError::Wildcard),
        ("a+b", TopicError::Wildcard),
        ("a/%23", TopicError::Wildcard),
    ] {
        assert_eq!(path(raw), Err(error), "{raw}");
    }
    assert_eq!(
        path(&"a".repeat(MAX + 1)),
        Err(TopicError::TooLong {
            len: MAX + 1,
            max: MAX
        })
    );
    assert!(
        path(&"%61".repeat(MAX)).is_ok(),
        "the limit counts decoded bytes"
    );
}

#[test]
fn a_query_names_a_topic_and_may_have_empty_levels() {
    for (raw, name) in [
        ("/p/s1/-", "/p/s1/-"),
        ("%2Fp%2F%2Fx/", "/p//x/"),
        ("a%26b", "a&b"),
        ("/", "/"),
    ] {
        assert_eq!(query(raw).as_deref(), Ok(name), "{raw}");
    }
    assert_eq!(query(""), Err(TopicError::Empty));
    assert_eq!(query("a%2F%2e%2e"), Err(TopicError::DotSegment));
    assert_eq!(
        query("a+b"),
        Err(TopicError::Wildcard),
        "a plus is a plus, not a space"
    );
    assert_eq!(query("a%0A"), Err(TopicError::Control));
    assert_eq!(query("%"), Err(TopicError::BadEscape));
}

#[test]
fn names_and_filters_are_checked() {
    assert_eq!(topic::check_name("/a//ä".as_bytes(), MAX), Ok(()));
    assert_eq!(topic::check_name(b"a/#", MAX), Err(TopicError::Wildcard));
    assert_eq!(topic::check_name(b"\xff", MAX), Err(TopicError::NotUtf8));
    assert_eq!(topic::check_name(b"", MAX), Err(TopicError::Empty));
    assert_eq!(
        topic::check_name("a\u{9f}".as_bytes(), MAX),
        Err(TopicError::Control)
    );
    assert!(topic::is_reserved(b"$SYS") && !topic::is_reserved(b"a$") && !topic::is_reserved(b""));

    for valid in ["#", "+", "a/+/#", "+/+", "/", "a//b", "/+", "+/a/#"] {
        assert_eq!(
            topic::check_filter(valid.as_bytes(), MAX),
            Ok(()),
            "{valid}"
        );
    }
    for invalid in ["#/a", "a#", "a/#/b", "a+", "+a/b", "##", "a/b#"] {
        assert_eq!(
            topic::check_filter(invalid.as_bytes(), MAX),
            Err(TopicError::Misplaced),
            "{invalid}"
        );
    }
    let long = TopicError::TooLong { len: 3, max: 2 };
    assert_eq!(topic::check_filter(b"a/b", 2), Err(long));
    assert_eq!(
        long.to_string(),
        "has 3 bytes, more than limits.topic_bytes allows (2)"
    );
}

/// The examples of MQTT 5.0 section 4.7.
#[test]
fn filters_match_as_in_mqtt() {
    for (filter, name, matches) in [
        ("sport/tennis/player1/#", "sport/tennis/player1", true),
        (
            "sport/tennis/player1/#",
            "sport/tennis/player1/ranking",
            true,
        ),
        (
            "sport/tennis/player1/#",
            "sport/tennis/player1/score/wimbledon",
            true,
        ),
        ("sport/tennis/player1/#", "sport/tennis/player10", false),
        ("sport/#", "sport", true),
        ("sport/tennis/+", "sport/tennis/player1", true),
        ("sport/tennis/+", "sport/tennis/player1/ranking", false),
        ("sport/+", "sport", false),
        ("sport/+", "sport/", true),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("+", "/finance", false),
        ("#", "$SYS/monitor", false),
        ("+/monitor/Clients", "$SYS/monitor/Clients", false),
        ("$SYS/#", "$SYS/monitor", true),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
        ("accounts", "Accounts", false),
    ] {
        assert_eq!(
            topic::matches(filter.as_bytes(), name.as_bytes()),
            matches,
            "{filter} {name}"
        );
    }
}

/// The hashes have these fixed values: a change would move every topic to another slot.
#[test]
fn hashes_never_change() {
    assert_eq!(topic::stable_hash(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(topic::stable_hash(b"a"), 0xe6c6_32b6_1e96_4e1f);
    assert_eq!(topic::stable_hash(b"abc"), 0x78af_5f94_892f_3950);
    assert_eq!((topic::slot(b""), topic::slot(b"abc")), (0x2d, 0x78));
}

#[test]
fn queries_are_split_into_raw_pairs() {
    let pairs: Vec<_> = form::pairs(b"a=b&&topic=x%3D=y&flag&=v").collect();
    let expected: [(&[u8], &[u8]); 4] = [
        (b"a", b"b"),
        (b"topic", b"x%3D=y"),
        (b"flag", b""),
        (b"", b"v"),
    ];
    assert_eq!(pairs, expected);
    assert_eq!(form::pairs(b"").count(), 0);
    let mut out = Vec::new();
    form::decode(b"a+b%2B%2525", &mut out).unwrap();
    assert_eq!(out, b"a+b+%25");
}

/// The rules of matching, written as simply as possible, for comparison.
fn oracle(filter: &[&str], name: &[&str]) -> bool {
    match (filter, name) {
        (["#"], _) => true,
        (["+", filter @ ..], [_, name @ ..]) => oracle(filter, name),
        ([level, filter @ ..], [first, name @ ..]) => level == first && oracle(filter, name),
        ([], name) => name.is_empty(),
        (_, []) => false,
    }
}

#[test]
fn filters_of_other_servers_are_recognised() {
    for (foreign, meant_by_it) in [
        ("news.>", "news/#"),
        ("news.*.x", "news/+/x"),
        ("news/*", "news/+"),
        ("news/**", "news/#"),
        ("*", "+"),
        (">", "#"),
        ("a.b/>", "a.b/#"),
    ] {
        let suggested = topic::suggested_filter(foreign.as_bytes());
        assert_eq!(suggested.as_deref(), Some(meant_by_it), "{foreign}");
    }
    for filter in ["news", "news/+", "#", "a.b", "a*", "x>y", "a.*x/b", "a/>/b"] {
        assert_eq!(topic::suggested_filter(filter.as_bytes()), None, "{filter}");
    }
    assert_eq!(topic::suggested_filter(b"\xff/*"), None);
}

fn percent_encode(bytes: &[u8], must_encode: impl Fn(u8) -> bool) -> String {
    bytes
        .iter()
        .map(|&b| {
            if must_encode(b) {
                format!("%{b:02X}")
            } else {
                char::from(b).to_string()
            }
        })
        .collect()
}

fn is_plain(level: &str) -> bool {
    level != "." && level != ".." && !level.contains(|c: char| c.is_control() || "+#/".contains(c))
}

proptest! {
    #[test]
    fn matching_agrees_with_the_oracle(
        filter in prop::collection::vec(prop::sample::select(vec!["a", "b", "", "+", "$a"]), 1..5),
        tail in any::<bool>(),
        name in prop::collection::vec(prop::sample::select(vec!["a", "b", "", "$a"]), 1..6),
    ) {
        let mut filter = filter;
        if tail {
            filter.push("#");
        }
        let hidden = name[0].starts_with('$') && matches!(filter[0], "+" | "#");
        let (f, n) = (filter.join("/"), name.join("/"));
        prop_assert_eq!(topic::matches(f.as_bytes(), n.as_bytes()), !hidden && oracle(&filter, &name), "{} {}", f, n);
        if !f.is_empty() {
            prop_assert_eq!(topic::check_filter(f.as_bytes(), MAX), Ok(()));
        }
    }

    #[test]
    fn names_survive_paths_and_queries(levels in prop::collection::vec("\\PC{1,6}".prop_filter("plain", |l| is_plain(l)), 1..4)) {
        let name = levels.join("/");
        let must_encode = |b: u8| !b.is_ascii_alphanumeric();
        let raw: Vec<String> = levels.iter().map(|l| percent_encode(l.as_bytes(), must_encode)).collect();
        let mut out = Vec::new();
        topic::from_path(raw.join("/").as_bytes(), 1000, &mut out).unwrap();
        prop_assert_eq!(&out[..], name.as_bytes());
        out.clear();
        topic::from_query(percent_encode(name.as_bytes(), must_encode).as_bytes(), 1000, &mut out).unwrap();
        prop_assert_eq!(&out[..], name.as_bytes());
        prop_assert_eq!(topic::check_name(&out, 1000), Ok(()));
    }

    #[test]
    fn decoded_path_is_clean(raw in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"%/.+#02fFeE$a".to_vec())], 0..24)) {
        for door in [topic::from_path, topic::from_query] {
            let mut out = Vec::new();
            if door(&raw, MAX, &mut out).is_ok() {
                prop_assert_eq!(topic::check_name(&out, MAX), Ok(()));
                prop_assert!(topic::matches(&out, &out), "a name is a filter that matches it");
            } else {
                prop_assert!(out.is_empty());
            }
        }
        let _ = topic::check_filter(&raw, MAX);
        let _ = topic::matches(&raw, &raw);
    }

    #[test]
    fn encoded_path_decodes_to_itself(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut out = Vec::new();
        form::decode(percent_encode(&bytes, |_| true).as_bytes(), &mut out).unwrap();
        prop_assert_eq!(out, bytes);
    }
}

/// All names of up to four of these levels. For any two different short filters, one of these names matches only one of them,
/// unless they mean the same, as `+/#` and `#` do.
fn names() -> Vec<String> {
    let levels = ["a", "b", "", "x"];
    let mut filters: Vec<String> = ["a", "b", "", "x", "$a"].map(String::from).to_vec();
    let mut last = filters.clone();
    for _ in 0..3 {
        last = last
            .iter()
            .flat_map(|name| levels.map(|level| format!("{name}/{level}")))
            .collect();
        filters.extend(last.iter().cloned());
    }
    filters
}

#[test]
fn covers_and_overlaps_of_filters_agree_with_their_matches() {
    let levels = ["a", "b", "", "+", "#"];
    let first = ["a", "", "+", "#", "$a"];
    let mut filters: Vec<String> = first.map(String::from).to_vec();
    for first_level in first {
        for second_level in levels {
            filters.push(format!("{first_level}/{second_level}"));
            filters.extend(
                levels.map(|third_level| format!("{first_level}/{second_level}/{third_level}")),
            );
        }
    }
    filters.retain(|filter| topic::check_filter(filter.as_bytes(), MAX).is_ok());
    let names = names();
    for granted in &filters {
        for filter in &filters {
            let (g, f) = (granted.as_bytes(), filter.as_bytes());
            let mut names_outside = names.iter().filter(|name| {
                topic::matches(f, name.as_bytes()) && !topic::matches(g, name.as_bytes())
            });
            let covers = names_outside.next().is_none();
            // `+/#` is another way to write `#`, but `covers` does not recognize that. So it grants too little, and never too much.
            if filter != "#" || granted != "+/#" {
                assert_eq!(topic::covers(g, f), covers, "{granted} covers {filter}");
            }
            let meet = names.iter().any(|name| {
                topic::matches(f, name.as_bytes()) && topic::matches(g, name.as_bytes())
            });
            assert_eq!(topic::overlaps(g, f), meet, "{granted} overlaps {filter}");
            let intersection = topic::intersection(g, f);
            for name in names.iter().map(String::as_bytes) {
                let is_in_both = topic::matches(g, name) && topic::matches(f, name);
                let is_covered = |filter: &Vec<u8>| topic::matches(filter, name);
                assert_eq!(
                    intersection.as_ref().is_some_and(is_covered),
                    is_in_both,
                    "{granted} and {filter}"
                );
            }
        }
    }
}
