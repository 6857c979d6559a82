//! Reads rights from the claims of a token or from the callback's answer, which have the same JSON members.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_broker::access::{GrantError, Grants, INFO_BYTES_MAX, Right};
use crore_wire::json::{MAX_DEPTH, is_json};
use serde_json::{Map, Value};

/// The member with what others are told of a client that is present.
const PRESENCE_INFO: &str = "presence_info";
/// The same in Centrifugo's tokens, as an object: text, or a list of text, is the right `info`.
const INFO: &str = "info";
/// The same in Centrifugo's tokens, as JSON in Base64.
const BASE64_INFO: &str = "b64info";

/// The user, the rights, and what others are told of the user, in these members.
///
/// # Errors
/// The first member of a wrong type, and its type.
pub fn grants(claims: &Map<String, Value>, user: &str) -> Result<Grants, String> {
    let name = match claims.get(user) {
        None | Some(Value::Null) => "",
        Some(Value::String(name)) => name,
        Some(other) => return Err(format!("`{user}` is {}, not text", json_type(other))),
    };
    let mut granted = Vec::new();
    for &right in Right::ALL {
        let name = right.name();
        if name == INFO && claims.get(INFO).is_some_and(Value::is_object) {
            continue;
        }
        for filter in filters(claims, name)? {
            granted.push((right, filter));
        }
    }
    let grants = Grants::new(name, granted).map_err(|error| match error {
        GrantError::User => format!("`{user}` has more than 255 bytes or a control character"),
        other => other.to_string(),
    })?;
    match info(claims)? {
        Some((name, info)) if info.len() > INFO_BYTES_MAX => {
            Err(format!("`{name}` has more than {INFO_BYTES_MAX} bytes"))
        }
        // Everything that may send the info to a client reads JSON as the wire does.
        Some((name, info)) if !is_json(info.as_bytes()) => {
            Err(format!("`{name}` nests deeper than {MAX_DEPTH} levels"))
        }
        Some((_, info)) => Ok(grants.with_info(&info)),
        None => Ok(grants),
    }
}

/// What others are told of the client, as JSON, and the member that has it. The more special member has precedence, as in Centrifugo `b64info` has.
fn info(claims: &Map<String, Value>) -> Result<Option<(&'static str, String)>, String> {
    if let Some(info) = claims.get(PRESENCE_INFO) {
        return Ok(Some((PRESENCE_INFO, info.to_string())));
    }
    match claims.get(BASE64_INFO) {
        None | Some(Value::Null) => {}
        Some(Value::String(base64)) if base64.is_empty() => {}
        Some(Value::String(base64)) => {
            let decoded = STANDARD.decode(base64).ok();
            let json = decoded.and_then(|it| serde_json::from_slice::<Value>(&it).ok());
            let json = json.ok_or_else(|| format!("`{BASE64_INFO}` is not Base64 of JSON"))?;
            return Ok(Some((BASE64_INFO, json.to_string())));
        }
        Some(other) => {
            return Err(format!("`{BASE64_INFO}` is {}, not text", json_type(other)));
        }
    }
    let info = claims.get(INFO).filter(|it| it.is_object());
    Ok(info.map(|info| (INFO, info.to_string())))
}

/// The filters of a right: a string, or a list of strings.
fn filters<'c>(claims: &'c Map<String, Value>, name: &str) -> Result<Vec<&'c str>, String> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(filter)) => Ok(vec![filter]),
        Some(Value::Array(list)) => {
            let filters = list.iter().enumerate().map(|(index, item)| {
                let wrong = || format!("`{name}[{index}]` is {}, not text", json_type(item));
                item.as_str().ok_or_else(wrong)
            });
            filters.collect()
        }
        Some(other) => Err(format!(
            "`{name}` is {}, not a list of text",
            json_type(other)
        )),
    }
}

/// A time in Unix seconds (RFC 7519 section 2, NumericDate), without its fraction.
///
/// # Errors
/// The value is not a number, or is before 1970.
pub fn unix_time(claims: &Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    match value.as_f64() {
        Some(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(Some(seconds as u64)),
        Some(_) => Err(format!("`{name}` is less than 0")),
        None => Err(format!("`{name}` is {}, not a number", json_type(value))),
    }
}

/// The type of a value, for messages. Messages do not show the value itself, since it may be long or a secret.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crore_broker::work::Steps;
    use serde_json::json;

    fn read(value: Value) -> Result<Grants, String> {
        grants(value.as_object().expect("an object"), "sub")
    }

    #[test]
    fn each_claim_grants_its_right_and_no_other() {
        let grants = read(json!({"sub": "ann", "publish": "a/#", "info": ["a/#", "b"]})).unwrap();
        assert_eq!(grants.user(), "ann");
        let covers = |right, topic| grants.covers(right, topic, &Steps::default());
        assert!(covers(Right::Publish, b"a/1") && covers(Right::Info, b"b"));
        assert!(!covers(Right::Subscribe, b"a/1") && !covers(Right::Publish, b"b"));
        assert!(read(json!({})).unwrap().is_empty());
        let info = json!({"sub": "ann", "presence_info": {"name": "Ann", "n": [1, 2]}});
        assert_eq!(read(info).unwrap().info(), br#"{"name":"Ann","n":[1,2]}"#);
    }

    #[test]
    fn info_of_centrifugos_tokens_is_what_others_are_told_and_no_right() {
        let ann = STANDARD.encode(r#"{"name": "Ann"}"#);
        for (claims, expected) in [
            (json!({"info": {"name": "Ann"}}), r#"{"name":"Ann"}"#),
            (json!({ "b64info": ann }), r#"{"name":"Ann"}"#),
            (
                json!({"b64info": ann, "info": {"n": 1}}),
                r#"{"name":"Ann"}"#,
            ),
            (json!({"b64info": "", "info": {"n": 1}}), r#"{"n":1}"#),
            (json!({"presence_info": 7, "info": {"n": 1}}), "7"),
            (json!({"info": "a"}), ""),
        ] {
            let grants = read(claims.clone()).expect("claims");
            assert_eq!(grants.info(), expected.as_bytes(), "{claims}");
            assert_eq!(grants.is_empty(), !claims["info"].is_string(), "{claims}");
        }
    }

    #[test]
    fn claims_of_another_form_are_refused_whole() {
        let long = "u".repeat(256);
        let nested = (0..65).fold(json!(1), |inner, _| json!([inner]));
        for (wrong, named) in [
            (json!({"publish": 1}), "`publish` is a number"),
            (json!({"publish": ["a", 1]}), "`publish[1]` is a number"),
            (json!({"info": [null]}), "`info[0]` is null"),
            (json!({"publish": {"a": 1}}), "`publish` is an object"),
            (json!({"publish": ["a/#/b"]}), "in `publish`: "),
            (json!({"subscribe": [""]}), "in `subscribe`: "),
            (json!({"sub": 7}), "`sub` is a number"),
            (json!({ "sub": long }), "`sub` has more than 255 bytes"),
            (json!({"b64info": 1}), "`b64info` is a number"),
            (json!({"b64info": "e"}), "`b64info` is not Base64 of JSON"),
            (
                json!({"b64info": "AQ=="}),
                "`b64info` is not Base64 of JSON",
            ),
            (
                json!({"info": {"i": "i".repeat(1_017)}}),
                "`info` has more than 1024 bytes",
            ),
            (
                json!({ "presence_info": "i".repeat(1_023) }),
                "`presence_info` has more than 1024 bytes",
            ),
            (
                json!({ "presence_info": nested }),
                "`presence_info` nests deeper than 64 levels",
            ),
        ] {
            let error = read(wrong.clone()).expect_err("it is of another form");
            assert!(error.starts_with(named), "{wrong}: {error}");
        }
    }

    #[test]
    fn moments_are_numbers_from_1970_on() {
        let read = |value: Value| unix_time(json!({ "exp": value }).as_object().unwrap(), "exp");
        assert_eq!(read(json!(12)), Ok(Some(12)));
        assert_eq!(read(json!(12.9)), Ok(Some(12)));
        assert_eq!(read(json!(1e30)), Ok(Some(u64::MAX)));
        for wrong in [json!("12"), json!(-1), json!(null), json!([])] {
            let error = read(wrong.clone()).expect_err("it is no moment");
            assert!(error.starts_with("`exp` is "), "{wrong}: {error}");
        }
        assert_eq!(unix_time(&Map::new(), "exp"), Ok(None));
    }
}
