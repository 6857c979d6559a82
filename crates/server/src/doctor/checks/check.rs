//! One check: a setting's value, the value that it should have, why, and how to change it.

use std::fmt::Display;

use crate::doctor::host::Host;
use crate::settings::numbers::count;
use serde::Serialize;
use strum::IntoStaticStr;

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, Serialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// The connections are not held.
    Change,
    /// They are held, but served worse than they could be.
    Advice,
    /// It cannot be read here.
    Unknown,
    /// It is as it should be.
    Fits,
    /// It does not matter to the server, and the text says to whom.
    Note,
    /// It does nothing any more.
    Obsolete,
}

impl State {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One setting and its finding. Its JSON has the fields in this order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Its name.
    pub setting: String,
    /// The verdict.
    pub state: State,
    /// Its value, if it can be read.
    pub is: Option<String>,
    /// The value that it should have.
    pub should: String,
    /// The formula, and what happens otherwise.
    pub why: String,
    /// How to change it, when it is not as it should be.
    #[serde(rename = "change")]
    pub fixes: Vec<String>,
}

impl Check {
    /// Whether it says to change something.
    pub fn is_told(&self) -> bool {
        matches!(self.state, State::Change | State::Advice)
    }

    pub(super) fn new(
        setting: impl Into<String>,
        is: Option<String>,
        should: impl Into<String>,
    ) -> Check {
        let state = if is.is_some() {
            State::Fits
        } else {
            State::Unknown
        };
        Check {
            setting: setting.into(),
            is,
            should: should.into(),
            why: String::new(),
            state,
            fixes: Vec::new(),
        }
    }

    /// A sysctl that is one number and should be at least `least`. `state` is what less than that comes to; the fix
    /// sets it to `least`.
    pub(super) fn at_least(host: &Host, name: &'static str, least: u64, state: State) -> Check {
        let is = host.number(name);
        let fix = sysctl(name, least);
        Check::new(name, is.map(count), format!("at least {}", count(least))).unless(
            is.is_none_or(|is| is >= least),
            state,
            [fix],
        )
    }

    pub(super) fn because(mut self, why: impl Into<String>) -> Check {
        self.why = why.into();
        self
    }

    /// Judges: `state` and the fixes, unless it is good or unknown.
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

    /// It does not matter to the server.
    pub(super) fn only(mut self, state: State) -> Check {
        self.state = state;
        self
    }
}

/// A change of a setting of the kernel.
pub(super) fn sysctl(name: &str, value: impl Display) -> String {
    format!("sysctl -w {name}='{value}'")
}

/// A change of the server's settings file.
pub(super) fn set_line(line: String) -> String {
    line + " in the server's settings"
}
