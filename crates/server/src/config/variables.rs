//! Settings in environment variables, for containers ([`Setting::variable`]): `CRORE_LIMITS_TOPIC_BYTES` for `limits.topic_bytes`.
//!
//! Variables override the file, and flags override variables. An empty variable counts as unset, since Compose sets one for `${NAME}`
//! without a value. An unknown name is no error, but a warning with the name that was probably meant: scripts may have names of their own,
//! and Kubernetes sets some for a Service called `crore`.

use std::ffi::OsString;

use toml::Value;

use crate::settings::schema::{SCHEMA, Setting, VARIABLE_PREFIX, most_similar};

/// Variables of the tools and of the tests, which are no settings.
const OTHERS: [&str; 9] = [
    "CRORE_ADMIN_URL",
    "CRORE_CA",
    "CRORE_CLIENT_TESTS",
    "CRORE_NATS_SERVER",
    "CRORE_PROFILE",
    "CRORE_SERVER",
    "CRORE_SHOTS",
    "CRORE_TOKEN",
    "CRORE_TOOLS",
];

/// The variables of one environment.
#[derive(Clone, Default)]
pub struct Variables {
    /// Each setting with the value of its variable; an error if the value is not UTF-8.
    given: Vec<(&'static Setting, Result<String, OsString>)>,
    /// A warning for each name with our prefix that is no setting.
    pub unknown: Vec<String>,
}

impl Variables {
    /// The variables of this process.
    pub fn here() -> Variables {
        let mut all: Vec<_> = std::env::vars_os().collect();
        all.sort();
        Variables::of(all)
    }

    fn of(all: impl IntoIterator<Item = (OsString, OsString)>) -> Variables {
        let mut variables = Variables::default();
        for (name, value) in all {
            let Some(name) = name
                .to_str()
                .filter(|name| name.starts_with(VARIABLE_PREFIX))
            else {
                continue;
            };
            let mut settings = SCHEMA.settings.iter();
            match settings.find(|setting| setting.variable.as_deref() == Some(name)) {
                _ if value.is_empty() => {}
                Some(setting) => variables.given.push((setting, value.into_string())),
                None if OTHERS.contains(&name) || is_of_kubernetes(name) => {}
                None => variables.unknown.push(unknown(name)),
            }
        }
        variables
    }

    /// Each setting with the name and the value of its variable; an error if the value is not UTF-8.
    pub fn settings(
        &self,
    ) -> impl Iterator<Item = (&'static Setting, &'static str, Result<Value, String>)> {
        self.given.iter().map(|(setting, value)| {
            let name = setting.variable.as_deref().unwrap_or_default();
            let value = match value {
                Ok(text) => Ok(setting.parse_variable(text)),
                Err(bytes) => Err(format!("{bytes:?} is not UTF-8")),
            };
            (*setting, name, value)
        })
    }
}

/// Whether Kubernetes sets this variable in pods for a Service called `crore` or `crore-…`.
fn is_of_kubernetes(name: &str) -> bool {
    let is_port = |rest: &str| rest.starts_with("_TCP") || rest.starts_with("_UDP");
    let (_, behind) = name.rsplit_once("_PORT").unwrap_or((name, "none"));
    let number = behind
        .trim_start_matches('_')
        .trim_start_matches(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || behind.is_empty()
        || is_port(number)
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = SCHEMA
        .settings
        .iter()
        .filter_map(|setting| setting.variable.as_deref())
        .chain(OTHERS)
        .collect();
    let meant =
        most_similar(&names, name).map_or(String::new(), |meant| format!("did you mean {meant}? "));
    format!(
        "{name}: no setting has this variable; {meant}CRORE_LIMITS_TOPIC_BYTES is that of limits.topic_bytes (docs/SETTINGS.md lists all settings)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Variables {
        Variables::of([(name.into(), value.into())])
    }

    #[test]
    fn variables_of_kubernetes_and_of_the_tools_are_no_settings() {
        for name in [
            "CRORE_SERVICE_HOST",
            "CRORE_SERVICE_PORT",
            "CRORE_SERVICE_PORT_CLIENTS",
            "CRORE_PORT",
            "CRORE_PORT_8800_TCP",
            "CRORE_PORT_8800_TCP_ADDR",
            "CRORE_HEADLESS_PORT_8800_UDP_PROTO",
            "CRORE_PROFILE",
            "CRORE_SERVER",
            "CRORE_TOKEN",
            "OTHER_LISTEN",
        ] {
            let none = of(name, "x");
            assert!(none.given.is_empty() && none.unknown.is_empty(), "{name}");
        }
        for name in [
            "CRORE_LISTN",
            "CRORE_REPORTS",
            "CRORE_PORTS_MAX",
            "CRORE_RULE_KEEP",
        ] {
            assert_eq!(of(name, "x").unknown.len(), 1, "{name}");
            assert!(of(name, "").unknown.is_empty(), "{name}");
        }
    }

    #[test]
    fn each_setting_has_a_variable_of_its_own_but_those_of_lists() {
        let mut names: Vec<&str> = SCHEMA
            .settings
            .iter()
            .filter_map(|setting| setting.variable.as_deref())
            .collect();
        let all = names.len();
        assert!(all > 90, "{all}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "two settings share a variable");
        assert!(
            !names
                .iter()
                .any(|name| OTHERS.contains(name) || is_of_kubernetes(name))
        );
        assert!(names.contains(&"CRORE_LISTEN") && names.contains(&"CRORE_LIMITS_TOPIC_BYTES"));
        assert!(!names.iter().any(|name| name.starts_with("CRORE_RULE_")));
        let settings = of("CRORE_LISTEN", "a:1, b:2");
        let (setting, name, value) = settings.settings().next().expect("a setting");
        assert_eq!((setting.path.as_str(), name), ("listen", "CRORE_LISTEN"));
        assert_eq!(value, Ok(Value::from(vec!["a:1", "b:2"])));
    }
}
