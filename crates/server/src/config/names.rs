//! The names of settings: what a key that is none was meant to be.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crore_broker::settings::Rule;

use crate::settings::access::{Access, Callback};
use crate::settings::file::{File, RuleEntry};

/// How alike two names are at least of which one is taken for the other (Jaro-Winkler, from 0 to 1).
const ALIKE: f64 = 0.8;

/// The paths of all settings that have a default; those of rules begin with `rule.`.
static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let access = Access {
        callback: Some(Callback::default()),
        ..Access::default()
    };
    let file = File {
        access: Some(access),
        rules: Vec::new(),
        ..File::default()
    };
    let mut paths = BTreeMap::new();
    let table = |value: Result<toml::Table, _>| value.expect("settings are plain TOML values");
    flatten("", table(toml::Table::try_from(&file)), &mut paths);
    let rule = RuleEntry(Rule::default());
    flatten("rule", table(toml::Table::try_from(&rule)), &mut paths);
    paths.into_keys().collect()
});

/// What is wrong with the key at `path`, of which serde says `` `key`, expected one of `a`, `b` ``.
pub fn unknown(path: &str, said: &str) -> String {
    let wrong = leaf(path);
    // Every second part stands between backticks; the first of them is the key itself.
    let expected: Vec<&str> = said.split('`').skip(1).step_by(2).skip(1).collect();
    let elsewhere = PATHS.iter().find(|known| leaf(known) == wrong);
    let alike = |name: &&str| (strsim::jaro_winkler(name, wrong) * 1e6) as u32;
    let nearest = expected.iter().copied().max_by_key(alike);
    let nearest = nearest.filter(|name| strsim::jaro_winkler(name, wrong) >= ALIKE);
    let meant = match (elsewhere, nearest) {
        (Some(known), _) => format!("; did you mean `{known}`?"),
        (None, Some(name)) => format!("; did you mean `{name}`?"),
        (None, None) => format!("; here stand `{}`.", expected.join("`, `")),
    };
    format!(
        "unknown setting{meant} Correct the name or remove the key (docs/SETTINGS.md lists all settings)"
    )
}

/// Values by key, as `limits.topic_bytes`; rules are one value.
pub fn flatten(path: &str, table: toml::Table, keys: &mut BTreeMap<String, toml::Value>) {
    for (key, value) in table {
        let path = match path {
            "" => key,
            path => format!("{path}.{key}"),
        };
        match value {
            toml::Value::Table(table) => flatten(&path, table, keys),
            value => drop(keys.insert(path, value)),
        }
    }
}

fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_key_is_recognised_and_so_is_one_in_the_wrong_table() {
        for (path, said, meant) in [
            (
                "shard",
                "`shard`, expected one of `listen`, `shards`",
                "`shards`",
            ),
            (
                "rules",
                "`rules`, expected one of `listen`, `rule`",
                "`rule`",
            ),
            (
                "deflate.message_bytes",
                "`message_bytes`, expected one of `min_bytes`, `level`",
                "`limits.message_bytes`",
            ),
            (
                "ttl_s",
                "`ttl_s`, expected one of `listen`, `tls`",
                "`rule.ttl_s`",
            ),
        ] {
            let text = unknown(path, said);
            assert!(text.contains(&format!("did you mean {meant}?")), "{text}");
        }
        let text = unknown("deflate.zebra", "`zebra`, expected `level` or `enabled`");
        assert!(text.contains("here stand `level`, `enabled`."), "{text}");
    }
}
