//! Tests the lines of a batch publish: a publisher's values are read back, only JSON is accepted, and every refusal has its reason.
//! `serde_json` decides what is JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::json::{Fault, write_base64, write_string};
use crore_wire::ndjson::{Line, LineError, MAX_DEPTH, Scratch, leading_topic, parse, split_line};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

fn error(line: impl AsRef<[u8]>) -> Option<LineError> {
    parse(line.as_ref(), &mut Scratch::default()).err()
}

/// The data of a line whose other parts are valid.
fn data(value: &str) -> Result<String, LineError> {
    let line = format!("{{\"topic\":\"t\",\"data\":{value}}}");
    let mut scratch = Scratch::default();
    let line = parse(line.as_bytes(), &mut scratch)?;
    Ok(String::from_utf8(line.data.to_vec()).expect("text is UTF-8"))
}

#[test]
fn a_plain_line_is_slices_of_the_input() {
    let text = b"{\"topic\":\"a/b\",\"data\":\"hello \xC3\xA4\"}\r\n";
    let mut scratch = Scratch::default();
    let line = parse(text, &mut scratch).unwrap();
    let expected = Line {
        topic: b"a/b",
        data: "hello ä".as_bytes(),
        binary: false,
        content_type: b"",
        event: b"",
        key: b"",
        idempotency_key: None,
        ttl_s: None,
    };
    assert_eq!(line, expected);
    let input = text.as_ptr_range();
    assert!(input.contains(&line.topic.as_ptr()) && input.contains(&line.data.as_ptr()));
}

#[test]
fn data_that_is_no_string_is_its_text() {
    for text in [
        "null",
        "true",
        "false",
        "0",
        "-0.10e+05",
        "1e999999",
        "123456789012345678901234567890.000",
        "[]",
        "{}",
        "[ [],{}, [[ ]] ]",
        "{ \"b\" : 1 ,\t\"a\":[ \"\\u00e4\\n\", -1.5e-9, {\"a\":null,\"a\":\"ä\"} ] }",
    ] {
        assert_eq!(data(text).as_deref(), Ok(text));
        assert_eq!(data(&format!(" \t{text}\r ")).as_deref(), Ok(text));
    }
}

#[test]
fn escapes_are_decoded() {
    for (text, meaning) in [
        (r#""""#, ""),
        (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r#""a\u0041\u00E4\u20ac\u0000z""#, "aAä€\0z"),
        (r#""\ud83d\ude00 \uDBFF\uDFFF""#, "😀 \u{10ffff}"),
        (
            r#""far from the next one: \n and then nothing at all for long\n""#,
            "far from the next one: \n and then nothing at all for long\n",
        ),
    ] {
        assert_eq!(data(text).as_deref(), Ok(meaning), "{text}");
    }
    let line = br#"{"\u0074opic":"\u0061","d\u0061ta_base64":"\/\/8=","event":"\t","content_type":"a\/b"}"#;
    let mut scratch = Scratch::default();
    let line = parse(line, &mut scratch).unwrap();
    let expected = Line {
        topic: b"a",
        data: b"\xff\xff",
        binary: true,
        content_type: b"a/b",
        event: b"\t",
        key: b"",
        idempotency_key: None,
        ttl_s: None,
    };
    assert_eq!(line, expected);
}

#[test]
fn invalid_json_is_refused_with_its_reason() {
    use Fault::*;
    use LineError::*;
    for (value, reason) in [
        ("", Json(ExpectedValue)),
        ("nul", Json(ExpectedValue)),
        ("True", Json(ExpectedValue)),
        ("'a'", Json(ExpectedValue)),
        ("nulll", Json(ExpectedComma)),
        ("\"a\" \"b\"", Json(ExpectedComma)),
        ("[1 2]", Json(ExpectedComma)),
        ("[1}", Json(ExpectedComma)),
        ("{\"a\":1]", Json(ExpectedComma)),
        ("[1,]", Json(ExpectedValue)),
        ("[,1]", Json(ExpectedValue)),
        ("{\"a\":1,}", Json(ExpectedKey)),
        ("{a:1}", Json(ExpectedKey)),
        ("{1:1}", Json(ExpectedKey)),
        ("{\"a\"1}", Json(ExpectedColon)),
        ("{\"a\":}", Json(ExpectedValue)),
        ("+1", Json(ExpectedValue)),
        (".5", Json(ExpectedValue)),
        ("01", Json(BadNumber)),
        ("-", Json(BadNumber)),
        ("-a", Json(BadNumber)),
        ("1.", Json(BadNumber)),
        ("1.e1", Json(BadNumber)),
        ("1e", Json(BadNumber)),
        ("1e+", Json(BadNumber)),
        ("0x1", Json(ExpectedComma)),
        ("\"\\x\"", Json(BadEscape)),
        ("[\"\\u12g4\"]", Json(BadEscape)),
        ("\"\\u123\"", Json(BadEscape)),
        ("\"\\u+123\"", Json(BadEscape)),
        ("\"\\ud800\"", Json(LoneSurrogate)),
        ("\"\\ude00\\ud83d\"", Json(LoneSurrogate)),
        ("[\"\\ud83d\\n\"]", Json(LoneSurrogate)),
        ("{\"\\ud83d\\ud83d\":1}", Json(LoneSurrogate)),
        ("\"a\tb\"", Json(Control)),
        ("\"\\n a\0b\"", Json(Control)),
        ("[\"a\nb\"]", Json(Control)),
        ("\"a", Json(Incomplete)),
        ("[\"a\\", Json(BadEscape)),
        ("[1", Json(ExpectedComma)),
    ] {
        assert_eq!(data(value), Err(reason), "{value}");
    }
    for (line, reason) in [
        (&b"{\"topic\":\"a\",\"data\":\"\xFF\"}"[..], Json(NotUtf8)),
        (
            b"{\"topic\":\"a\",\"data\":[\"\\n\xC0\xAF\"]}",
            Json(NotUtf8),
        ),
        (b"{\"topic\":\"\xED\xA0\x80\",\"data\":1}", Json(NotUtf8)),
        (b"\xEF\xBB\xBF{\"topic\":\"a\",\"data\":1}", NotObject),
        (b"{\"topic\":\"a\",\"data\":1\xC2\xA0}", Json(ExpectedComma)),
    ] {
        assert_eq!(error(line), Some(reason));
    }
}

#[test]
fn invalid_message_is_refused_with_its_reason() {
    use Fault::*;
    use LineError::*;
    use crore_wire::ndjson::Field::*;
    for (line, reason) in [
        ("", NotObject),
        (" \r\n", NotObject),
        ("[]", NotObject),
        ("\"topic\"", NotObject),
        ("{", Json(Incomplete)),
        ("{}", NoTopic),
        ("{,}", Json(ExpectedKey)),
        (r#"{"data":1}"#, NoTopic),
        (r#"{"topic":"a"}"#, NoData),
        (r#"{"topic":"a","data":1,"data_base64":""}"#, TwoData),
        (r#"{"topic":1,"data":1}"#, NotString(Topic)),
        (r#"{"topic":"a","data_base64":1}"#, NotString(DataBase64)),
        (r#"{"topic":"a","data":1,"event":true}"#, NotString(Event)),
        (r#"{"topic":null,"data":1}"#, NotString(Topic)),
        (r#"{"topic":"a","data_base64":null}"#, NoData),
        (r#"{"event":null,"event":"b"}"#, DuplicateField(Event)),
        (r#"{"event":nul}"#, Json(ExpectedValue)),
        (
            r#"{"topic":"a","data":1,"content_type":{}}"#,
            NotString(ContentType),
        ),
        (r#"{"topic":"a","data":1,"key":7}"#, NotString(Key)),
        (r#"{"idempotency_key":7}"#, NotString(IdempotencyKey)),
        (
            r#"{"topic":"a","data":1,"idempotency_keys":"7"}"#,
            UnknownField,
        ),
        (r#"{"topic":"a","data":1,"ttl_s":"7"}"#, BadTtl),
        (r#"{"topic":"a","data":1,"ttl_s":-1}"#, BadTtl),
        (r#"{"topic":"a","data":1,"ttl_s":1.0}"#, BadTtl),
        (r#"{"topic":"a","data":1,"ttl_s":1e3}"#, BadTtl),
        (r#"{"topic":"a","data":1,"ttl_s":01}"#, Json(BadNumber)),
        (r#"{"ttl_s":1,"ttl_s":1}"#, DuplicateField(TtlS)),
        (r#"{"topic":"a","topic":"a"}"#, DuplicateField(Topic)),
        (
            r#"{"topic":"a","data":1,"d\u0061ta":1}"#,
            DuplicateField(Data),
        ),
        (r#"{"topic":"a","data":1,"evnet":"x"}"#, UnknownField),
        (r#"{"topic":"a","data":1,"":"x"}"#, UnknownField),
        (r#"{"topic":"a","data":1,"event\"":"x"}"#, UnknownField),
        (r#"{"topic":"a","data":1,"even":"x"}"#, UnknownField),
        (r#"{"topic":"a","data":1,"Event":"x"}"#, UnknownField),
        (r#"{"topic":"a","data":1,"event\n":"x"}"#, UnknownField),
        (r#"{"topic":"a","data":1,}"#, Json(ExpectedKey)),
        (r#"{"topic":"a","data":1}}"#, Json(Trailing)),
        (r#"{"topic":"a","data":1} {"#, Json(Trailing)),
        (r#"{"topic":"a","data":1"#, Json(Incomplete)),
        (r#"{"topic""a"}"#, Json(ExpectedColon)),
    ] {
        assert_eq!(error(line), Some(reason), "{line}");
    }
    for base64 in ["A", "AA", "AA=", "AB==", "A A=", "-_8=", "AAAA=", "=", "ä"] {
        let line = format!(r#"{{"topic":"a","data_base64":"{base64}"}}"#);
        assert_eq!(error(line), Some(BadBase64), "{base64}");
    }
}

#[test]
fn a_time_to_live_past_32_bits_is_the_longest() {
    for (digits, meaning) in [
        ("0", 0),
        ("4294967295", u32::MAX),
        ("4294967296", u32::MAX),
        ("99999999999999999999999", u32::MAX),
    ] {
        let line = format!(r#"{{"topic":"a","data":1,"ttl_s":{digits} }}"#);
        let mut scratch = Scratch::default();
        let line = parse(line.as_bytes(), &mut scratch).unwrap();
        assert_eq!(line.ttl_s, Some(meaning));
    }
}

#[test]
fn data_may_nest_to_the_limit_only() {
    let depth = MAX_DEPTH as usize;
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[0,{\"a\":[", "]}]")] {
        let levels = close.len();
        let nested = |times: usize| format!("{}1{}", open.repeat(times), close.repeat(times));
        let deepest = nested(depth / levels);
        assert_eq!(data(&deepest).as_ref(), Ok(&deepest));
        assert_eq!(
            data(&nested(depth / levels + 1)),
            Err(LineError::Json(Fault::TooDeep))
        );
    }
    let empty = format!("{}{}", "[".repeat(depth + 1), "]".repeat(depth + 1));
    assert_eq!(data(&empty), Err(LineError::Json(Fault::TooDeep)));
}

#[test]
fn a_scratch_serves_line_after_line() {
    let mut scratch = Scratch::default();
    for text in ["long \\n and escaped", "\\t", "plain"] {
        for field in ["data", "data_base64"] {
            let value = if field == "data" { text } else { "AQID" };
            let line = format!(r#"{{"{field}":"{value}","topic":"\u0061{text}"}}"#);
            let line = parse(line.as_bytes(), &mut scratch).unwrap();
            let meaning = text.replace("\\n", "\n").replace("\\t", "\t");
            let data = if line.binary {
                b"\x01\x02\x03"
            } else {
                meaning.as_bytes()
            };
            assert_eq!(line.data, data);
            assert_eq!(line.topic, format!("a{meaning}").as_bytes());
        }
        assert!(parse(b"{\"topic\":\"\\u0061\\", &mut scratch).is_err());
    }
}

#[derive(Clone, Debug)]
enum Data {
    Json(Value),
    Bytes(Vec<u8>),
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Text with all characters that need an escape, or may have one, close together and far apart.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ -~]{0,40}",
        any::<String>(),
        select(vec![
            "\"", "\\", "/", "\n", "\0", "\u{7f}", "ä", "😀", "\u{2028}", "\\u"
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// The JSON string of a text: with as few escapes as possible, or with more, or all.
fn escaped(text: &str, escape: &[bool]) -> String {
    if escape.is_empty() {
        return serde_json::to_string(text).unwrap();
    }
    let mut out = String::from("\"");
    for (at, c) in text.chars().enumerate() {
        if escape[at % escape.len()] || c < ' ' || c == '"' || c == '\\' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let upper = at % 2 == 0;
                out += &if upper {
                    format!("\\u{unit:04X}")
                } else {
                    format!("\\u{unit:04x}")
                };
            }
        } else {
            out.push(c);
        }
    }
    out + "\""
}

/// The pieces of one line, in order, to be joined with white space.
fn pieces(fields: &[(String, String)]) -> Vec<String> {
    let mut pieces = vec!["{".to_owned()];
    for (name, value) in fields {
        pieces.extend([name.clone(), ":".to_owned(), value.clone(), ",".to_owned()]);
    }
    pieces.pop();
    pieces.push("}".to_owned());
    pieces
}

/// Whether a line that is valid JSON may be refused with this error.
const fn is_no_message(reason: LineError) -> bool {
    use Fault::*;
    use LineError::*;
    matches!(
        reason,
        NotObject
            | NoTopic
            | NotString(_)
            | BadTtl
            | NoData
            | TwoData
            | BadBase64
            | UnknownField
            | DuplicateField(_)
            | Json(TooDeep)
    )
}

/// Checks that accepted lines are JSON, and that JSON is refused only because it is not a valid message.
fn assert_same_as_serde(line: &[u8]) -> Result<(), TestCaseError> {
    let error = error(line);
    match (serde_json::from_slice::<Value>(line), error) {
        (Ok(_), Some(reason)) => prop_assert!(is_no_message(reason), "{reason:?}"),
        // JSON's grammar sets no limit for numbers, but `serde_json` refuses numbers that are too large for a double.
        (Err(theirs), None) => {
            prop_assert!(theirs.to_string().contains("out of range"), "{theirs}")
        }
        _ => {}
    }
    Ok(())
}

proptest! {
    #[test]
    fn line_is_read_as_it_was_written(
        topic in text(),
        data in prop_oneof![
            text().prop_map(|text| Data::Json(text.into())),
            json().prop_map(Data::Json),
            any::<Vec<u8>>().prop_map(Data::Bytes),
        ],
        others in [prop::option::of(text()), prop::option::of(text()), prop::option::of(text()), prop::option::of(text())],
        ttl_s in prop::option::of(any::<u32>()),
        escape in prop::collection::vec(any::<bool>(), 0..4),
        escape_names in any::<bool>(),
        (pretty, nulls) in any::<(bool, bool)>(),
        space in prop::collection::vec("[ \t\r\n]{0,3}", 1..5),
        order in Just([0, 1, 2, 3, 4, 5, 6, 7]).prop_shuffle(),
    ) {
        let name = |name: &str| escaped(name, if escape_names { &escape } else { &[] });
        // An absent field is left out, or is null.
        let null = || nulls.then(|| "null".to_owned());
        let optional = |field: &str, value: Option<String>| value.or_else(null).map(|value| (name(field), value));
        let (data_name, value, meaning) = match &data {
            Data::Json(Value::String(text)) => ("data", escaped(text, &escape), text.clone().into_bytes()),
            Data::Json(value) => {
                let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
                let text = text.unwrap();
                ("data", text.clone(), text.into_bytes())
            }
            Data::Bytes(bytes) => ("data_base64", escaped(&STANDARD.encode(bytes), &escape), bytes.clone()),
        };
        let mut fields = vec![(name("topic"), escaped(&topic, &escape)), (name(data_name), value)];
        for (field, text) in ["content_type", "event", "key", "idempotency_key"].into_iter().zip(&others) {
            fields.extend(optional(field, text.as_ref().map(|text| escaped(text, &escape))));
        }
        fields.extend(optional("ttl_s", ttl_s.map(|ttl_s| ttl_s.to_string())));
        fields.extend(matches!(data, Data::Json(_)).then(|| optional("data_base64", None)).flatten());
        let fields: Vec<_> = order.iter().filter_map(|&at: &usize| fields.get(at).cloned()).collect();
        let mut line = space[0].clone();
        for (piece, space) in pieces(&fields).iter().zip(space.iter().cycle()) {
            line += piece;
            line += space;
        }
        let mut scratch = Scratch::default();
        let read = parse(line.as_bytes(), &mut scratch);
        let other = |at: usize| others[at].as_deref().unwrap_or("").as_bytes();
        let expected = Line {
            topic: topic.as_bytes(),
            data: &meaning,
            binary: matches!(data, Data::Bytes(_)),
            content_type: other(0),
            event: other(1),
            key: other(2),
            idempotency_key: others[3].as_deref().map(str::as_bytes),
            ttl_s,
        };
        prop_assert_eq!(read, Ok(expected), "{}", line);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(line in any::<Vec<u8>>()) {
        assert_same_as_serde(&line)?;
    }

    #[test]
    fn damaged_line_is_judged_as_by_a_json_parser(
        value in json(),
        cuts in prop::collection::vec((any::<Index>(), 0..3_usize, prop::option::of(prop_oneof![
            any::<u8>(),
            select(b"{}[]:,\"\\u0eE+-. ntf\x1f\x80\xC3\n".to_vec()),
        ])), 0..4),
    ) {
        let mut line = format!("{{\"topic\":\"t\",\"data\":{value},\"event\":\"\\ud83d\\ude00\"}}").into_bytes();
        for (at, removed, added) in cuts {
            let at = at.index(line.len() + 1);
            let end = line.len().min(at + removed);
            line.splice(at..end, added);
        }
        assert_same_as_serde(&line)?;
    }

    #[test]
    fn random_tokens_are_judged_as_by_a_json_parser(tokens in prop::collection::vec(select(vec![
        "{", "}", "[", "]", ":", ",", " ", "\"a\"", "\"", "\\", "\\u", "d83d", "\\n", "0", "1", "-", "+", ".", "e", "E",
        "null", "true", "fals", "\t", "ä",
    ]), 0..9)) {
        let value = tokens.concat();
        assert_same_as_serde(format!("{{\"topic\":\"t\",\"data\":{value}}}").as_bytes())?;
        match serde_json::from_str::<Value>(&value) {
            Ok(Value::String(text)) => prop_assert_eq!(data(&value), Ok(text)),
            Ok(_) => prop_assert_eq!(data(&value), Ok(value.trim().to_owned())),
            Err(_) => {}
        }
    }

    #[test]
    fn strings_are_written_as_serde_json_does(text in text()) {
        let mut out = b"kept".to_vec();
        write_string(&mut out, text.as_bytes());
        prop_assert_eq!(out, format!("kept{}", serde_json::to_string(&text).unwrap()).into_bytes());
    }

    #[test]
    fn bytes_written_as_base64_read_back(bytes in any::<Vec<u8>>()) {
        let mut line = b"{\"topic\":\"t\",\"data_base64\":".to_vec();
        write_base64(&mut line, &bytes);
        line.push(b'}');
        let mut scratch = Scratch::default();
        prop_assert_eq!(parse(&line, &mut scratch).map(|line| line.data), Ok(&bytes[..]));
    }

    #[test]
    fn the_leading_topic_is_the_topic_of_a_plain_line(topic in "[a-z/ä]{1,20}", data in text()) {
        let line = serde_json::json!({ "topic": topic, "zdata": 0 }).to_string().replace("\"zdata\":0", &format!("\"data\":{}", Value::String(data)));
        let mut scratch = Scratch::default();
        let parsed = parse(line.as_bytes(), &mut scratch).map(|line| line.topic);
        prop_assert_eq!(leading_topic(line.as_bytes()), parsed.ok());
    }

    #[test]
    fn lines_are_split_at_line_ends(lines in prop::collection::vec("[a-z ]{0,9}", 0..6), ended in any::<bool>()) {
        let mut body = lines.join("\n");
        if ended {
            body.push('\n');
        }
        let (mut rest, mut lines) = (body.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let (line, remaining) = split_line(rest);
            lines.push(line);
            rest = remaining;
        }
        let expected: Vec<&[u8]> = body.lines().map(|line| line.as_bytes().trim_ascii()).collect();
        prop_assert_eq!(lines, expected);
    }
}
