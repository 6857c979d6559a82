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
pub enum Verdict {
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

impl Verdict {
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
    #[serde(rename = "state")]
    pub verdict: Verdict,
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
        matches!(self.verdict, Verdict::Change | Verdict::Advice)
    }

    pub(super) fn new(
        setting: impl Into<String>,
        value: Option<String>,
        recommended: impl Into<String>,
    ) -> Check {
        let verdict = if value.is_some() {
            Verdict::Fits
        } else {
            Verdict::Unknown
        };
        Check {
            setting: setting.into(),
            value,
            recommended: recommended.into(),
            why: String::new(),
            verdict,
            fixes: Vec::new(),
        }
    }

    /// Checks that a kernel setting is at least `minimum`. A lower value has the verdict `verdict`, and the fix sets it to `minimum`.
    pub(super) fn at_least_check(
        host: &Host,
        name: &'static str,
        minimum: u64,
        verdict: Verdict,
    ) -> Check {
        let value = host.number(name);
        let fix = sysctl_fix(name, minimum);
        Check::new(
            name,
            value.map(format_count),
            format!("at least {}", format_count(minimum)),
        )
        .change_unless(value.is_none_or(|value| value >= minimum), verdict, [fix])
    }

    pub(super) fn with_reason(mut self, reason: impl Into<String>) -> Check {
        self.why = reason.into();
        self
    }

    /// Sets `verdict` and the fixes if the value is bad (`is_good` is false). A value that is unknown stays unknown.
    pub(super) fn change_unless(
        mut self,
        is_good: bool,
        verdict: Verdict,
        fixes: impl IntoIterator<Item = String>,
    ) -> Check {
        if !is_good && self.verdict == Verdict::Fits {
            self.verdict = verdict;
            self.fixes = fixes.into_iter().collect();
        }
        self
    }

    /// Sets a verdict that does not depend on the value.
    pub(super) fn with_verdict(mut self, verdict: Verdict) -> Check {
        self.verdict = verdict;
        self
    }
}

/// The command that changes a kernel setting.
pub(super) fn sysctl_fix(name: &str, value: impl Display) -> String {
    format!("sysctl -w {name}='{value}'")
}

/// A fix that changes the server's settings file.
pub(super) fn settings_fix(line: String) -> String {
    line + " in the server's settings"
}
