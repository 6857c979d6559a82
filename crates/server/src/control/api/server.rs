//! Handlers that show the current rules and settings, without secrets.

use axum::Json;
use axum::extract::State;
use crore_broker::settings::Rule;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{Answer, ApiError};
use crate::config::EffectiveSettings;
use crate::control::state::AdminState;
use crate::settings::file::File;
use crate::settings::schema::SCHEMA;

/// Shown in place of a secret.
const HIDDEN: &str = "(secret)";
/// Keys whose values are secrets, in any section.
const SECRET_KEYS: &[&str] = &["token", "secret", "password"];

/// The rules of the settings, in their order, and the built-in one.
#[derive(Serialize, ToSchema)]
pub struct Rules {
    /// The rules, each in the form of a table `[[rule]]` of the settings file.
    #[schema(value_type = Vec<Object>)]
    rules: Value,
    /// The built-in rule, for topics that match no other rule.
    #[schema(value_type = Object)]
    default: Value,
}

/// The settings that the server uses.
#[derive(Serialize, ToSchema)]
pub struct Config {
    /// The path of the settings file; null if there is none.
    source: Option<String>,
    /// All settings in the form of a settings file; secrets are hidden.
    #[schema(value_type = Object)]
    config: Value,
    /// All settings that have one value each. Settings in lists of tables (`[[rule]]`) are in `config` only.
    settings: Vec<Setting>,
}

/// A setting and its value.
#[derive(Serialize, ToSchema)]
pub struct Setting {
    /// The key, such as `limits.topic_bytes`.
    name: String,
    /// The value in the form of a settings file; a secret is hidden.
    value: String,
    /// The origin of the value: `default`, `file`, the name of a variable or flag, or `host` (the server computes the value from memory and cores).
    source: &'static str,
    /// Whether a change needs a restart.
    restart: bool,
    /// The effect of the setting, in a sentence.
    help: String,
}

/// Each setting with its value and the origin of the value.
fn setting_rows(effective: &EffectiveSettings, values: &Value) -> Result<Vec<Setting>, ApiError> {
    let defaults = settings_json(&File::default())?;
    let found = SCHEMA.settings.iter().filter_map(|row| {
        let place = format!("/{}", row.path.replace('.', "/"));
        let value = values.pointer(&place)?;
        let given = effective.origins.get(&row.path).copied();
        let is_default = defaults.pointer(&place) == Some(value);
        Some(Setting {
            name: row.path.clone(),
            value: value.to_string(),
            source: given.unwrap_or(if is_default { "default" } else { "host" }),
            restart: row.needs_restart,
            help: row.short_help(),
        })
    });
    Ok(found.collect())
}

/// The settings as JSON, without the secrets.
fn settings_json(file: &File) -> Result<Value, ApiError> {
    let mut value = serde_json::to_value(SCHEMA.to_file(file)).map_err(|error| {
        let status = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
        ApiError::new(status, format!("the settings cannot be told: {error}"))
    })?;
    hide_secrets(&mut value);
    Ok(value)
}

/// Hides secrets. An empty value is not a secret.
fn hide_secrets(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if !text.is_empty() && is_secret(key, text) => {
                        *text = HIDDEN.to_string();
                    }
                    value => hide_secrets(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(hide_secrets),
        _ => {}
    }
}

/// Whether the value is a secret: its key says so, or the value is a URL, which may contain a password or a key.
fn is_secret(key: &str, text: &str) -> bool {
    SECRET_KEYS.contains(&key) || key == "url" && text.contains(['@', '?'])
}

/// Rules
#[utoipa::path(
    get,
    path = "/api/v1/rules",
    tag = "server",
    responses((status = 200, body = Rules))
)]
pub async fn rules(State(state): State<AdminState>) -> Answer<Rules> {
    let mut settings = settings_json(&state.effective_settings().file)?;
    let rules = settings.get_mut("rule").map(Value::take);
    let built_in = File {
        rules: vec![Rule::default()],
        ..File::default()
    };
    Ok(Json(Rules {
        rules: rules.unwrap_or_else(|| Value::Array(Vec::new())),
        default: settings_json(&built_in)?["rule"][0].take(),
    }))
}

/// Settings
#[utoipa::path(
    get,
    path = "/api/v1/config",
    tag = "server",
    responses((status = 200, body = Config))
)]
pub async fn config(State(state): State<AdminState>) -> Answer<Config> {
    let effective = state.effective_settings();
    let source = effective.file_path.as_ref();
    let config = settings_json(&effective.file)?;
    Ok(Json(Config {
        source: source.map(|path| path.display().to_string()),
        settings: setting_rows(&effective, &config)?,
        config,
    }))
}
