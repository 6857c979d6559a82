//! One check of the doctor: a setting, its value, the recommended value, the reason, and how to change it.

use std::fmt::Display;

use crate::doctor::host::Host;
use crate::settings::numbers::format_count;
use serde::Serialize;
use strum::IntoStaticStr;

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, Serialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// The host cannot hold the connections without a change.
    Change,
    /// The host holds the connections, but serves them worse without a change.
    Advice,
    /// The value cannot be read.
    Unknown,
    /// The value is good.
    Fits,
    /// The value does not matter to the server. `Check::why` has the reason.
    Note,
    /// The setting has no effect any more.
    Obsolete,
}

impl State {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A setting and the verdict on it. The JSON has the fields in this order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The name of the setting.
    pub setting: String,
    /// The verdict.
    pub state: State,
    /// The value, if it can be read.
    #[serde(rename = "is")]
    pub value: Option<String>,
    /// The recommended value.
    #[serde(rename = "should")]
    pub recommended: String,
    /// The formula of the recommended value, and what happens if the value is worse.
    pub why: String,
    /// How to change the value, if the value is not good.
    #[serde(rename = "change")]
    pub fixes: Vec<String>,
}

impl Check {
    /// Whether the check demands or advises a change.
    pub fn has_change(&self) -> bool {
        matches!(self.state, State::Change | State::Advice)
    }

    pub(super) fn new(
        setting: impl Into<String>,
        value: Option<String>,
        recommended: impl Into<String>,
    ) -> Check {
        let state = if value.is_some() {
            State::Fits
        } else {
            State::Unknown
        };
        Check {
            setting: setting.into(),
            value,
            recommended: recommended.into(),
            why: String::new(),
            state,
            fixes: Vec::new(),
        }
    }

    /// Checks that a kernel setting is at least `least`. A lower value has the verdict `state`, and the fix sets it to `least`.
    pub(super) fn at_least(host: &Host, name: &'static str, least: u64, state: State) -> Check {
        let value = host.number(name);
        let fix = sysctl(name, least);
        Check::new(
            name,
            value.map(format_count),
            format!("at least {}", format_count(least)),
        )
        .unless(value.is_none_or(|value| value >= least), state, [fix])
    }

    pub(super) fn because(mut self, why: impl Into<String>) -> Check {
        self.why = why.into();
        self
    }

    /// Sets `state` and the fixes, unless the value is good or unknown.
    pub(super) fn unless(
        mut self,
        good: bool,
        state: State,
        fixes: impl IntoIterator<Item = String>,
    ) -> Check {
        if !good && self.state == State::Fits {
            self.state = state;
            self.fixes = fixes.into_iter().collect();
        }
        self
    }

    /// Sets a verdict that does not depend on the value.
    pub(super) fn with_state(mut self, state: State) -> Check {
        self.state = state;
        self
    }
}

/// The command that changes a kernel setting.
pub(super) fn sysctl(name: &str, value: impl Display) -> String {
    format!("sysctl -w {name}='{value}'")
}

/// A fix that changes the server's settings file.
pub(super) fn set_line(line: String) -> String {
    line + " in the server's settings"
}
