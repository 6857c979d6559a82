//! Reads the rights from a token's claims, or from the answer of a callback: the same JSON members in both.

use crore_broker::access::{Grants, Refusal, Right};
use serde_json::{Map, Value};

/// The user and the filters that these members grant.
///
/// # Errors
/// [`Refusal::Claims`] where one is not of its form.
pub fn grants(claims: &Map<String, Value>, user: &str) -> Result<Grants, Refusal> {
    let user = match claims.get(user) {
        None | Some(Value::Null) => "",
        Some(Value::String(user)) => user,
        Some(_) => return Err(Refusal::Claims),
    };
    let mut granted = Vec::new();
    for right in Right::ALL {
        for filter in filters(claims.get(right.name()))? {
            granted.push((right, filter));
        }
    }
    Grants::new(user, granted).map_err(|_| Refusal::Claims)
}

/// One filter as a string, or several in a list.
fn filters(value: Option<&Value>) -> Result<Vec<&str>, Refusal> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(filter)) => Ok(vec![filter]),
        Some(Value::Array(list)) => {
            let filters = list.iter().map(|item| item.as_str().ok_or(Refusal::Claims));
            filters.collect()
        }
        Some(_) => Err(Refusal::Claims),
    }
}

/// A moment in Unix seconds (RFC 7519 section 2, NumericDate); fractions are cut.
///
/// # Errors
/// [`Refusal::Claims`] where it is no number, or before 1970.
pub fn moment(claims: &Map<String, Value>, name: &str) -> Result<Option<u64>, Refusal> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => {
            let seconds = value.as_f64().filter(|s| s.is_finite() && *s >= 0.0);
            seconds.map(|s| Some(s as u64)).ok_or(Refusal::Claims)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crore_broker::work::Steps;
    use serde_json::json;

    fn read(value: Value) -> Result<Grants, Refusal> {
        grants(value.as_object().expect("an object"), "sub")
    }

    #[test]
    fn each_claim_grants_its_right_and_no_other() {
        let grants = read(json!({"sub": "ann", "publish": "a/#", "info": ["a/#", "b"]})).unwrap();
        assert_eq!(grants.user(), "ann");
        let covers = |right, topic| grants.cover(right, topic, &Steps::default());
        assert!(covers(Right::Publish, b"a/1") && covers(Right::Info, b"b"));
        assert!(!covers(Right::Subscribe, b"a/1") && !covers(Right::Publish, b"b"));
        assert!(read(json!({})).unwrap().is_empty());
    }

    #[test]
    fn claims_of_another_form_are_refused_whole() {
        let long = "u".repeat(256);
        for wrong in [
            json!({"publish": 1}),
            json!({"publish": [1]}),
            json!({"publish": {"a": 1}}),
            json!({"publish": ["a/#/b"]}),
            json!({"publish": [""]}),
            json!({"sub": 7}),
            json!({ "sub": long }),
        ] {
            assert_eq!(read(wrong.clone()), Err(Refusal::Claims), "{wrong}");
        }
    }

    #[test]
    fn moments_are_numbers_from_1970_on() {
        let read = |value: Value| moment(json!({ "exp": value }).as_object().unwrap(), "exp");
        assert_eq!(read(json!(12)), Ok(Some(12)));
        assert_eq!(read(json!(12.9)), Ok(Some(12)));
        assert_eq!(read(json!(1e30)), Ok(Some(u64::MAX)));
        for wrong in [json!("12"), json!(-1), json!(null), json!([])] {
            assert_eq!(read(wrong.clone()), Err(Refusal::Claims), "{wrong}");
        }
        assert_eq!(moment(&Map::new(), "exp"), Ok(None));
    }
}
