//! The checks: each setting, what it is, what it should be, why, and what changes it.
//!
//! Pure functions of the host and the need. A check *demands* a change when the connections would not be held without it,
//! and *advises* one when they would be served worse. What cannot be read is said to be unknown, and is no reason to
//! refuse the host. Settings that old guides name are here too, obsolete ones marked as such.

mod buffers;
mod descriptors;
mod machine;
mod memory;
mod queues;
mod tracking;

use super::host::Host;
use super::need::Need;
use super::words::count;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        match self {
            State::Change => "change",
            State::Advice => "advice",
            State::Unknown => "unknown",
            State::Fits => "fits",
            State::Note => "note",
            State::Obsolete => "obsolete",
        }
    }
}

/// What changes a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Fix {
    /// A value for `sysctl`.
    Sysctl {
        /// Its name.
        name: &'static str,
        /// What it shall be.
        value: String,
    },
    /// The limit of descriptors, of logins and of the service.
    Descriptors(u64),
    /// A file of the kernel's that takes a value and forgets it at the next start.
    Write {
        /// The file.
        path: String,
        /// What is written.
        value: String,
    },
    /// A line of the server's settings file.
    Setting(String),
    /// What a program cannot do for the operator.
    ByHand(String),
}

/// One setting and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Its name.
    pub setting: String,
    /// What it is, if it can be read.
    pub is: Option<String>,
    /// What it should be.
    pub should: String,
    /// The formula, and what happens otherwise.
    pub why: String,
    /// What came of it.
    pub state: State,
    /// What changes it, when it is not as it should be.
    pub fixes: Vec<Fix>,
}

impl Check {
    fn new(setting: impl Into<String>, is: Option<String>, should: impl Into<String>) -> Check {
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
    fn at_least(host: &Host, name: &'static str, least: u64, state: State) -> Check {
        let is = host.number(name);
        let fix = Fix::Sysctl {
            name,
            value: least.to_string(),
        };
        Check::new(name, is.map(count), format!("at least {}", count(least))).unless(
            is.is_none_or(|is| is >= least),
            state,
            [fix],
        )
    }

    fn because(mut self, why: impl Into<String>) -> Check {
        self.why = why.into();
        self
    }

    /// Judges: `state` and the fixes, unless it is good or unknown.
    fn unless(mut self, good: bool, state: State, fixes: impl IntoIterator<Item = Fix>) -> Check {
        if !good && self.state == State::Fits {
            self.state = state;
            self.fixes = fixes.into_iter().collect();
        }
        self
    }

    /// It does not matter to the server, whatever it is.
    fn only(mut self, state: State) -> Check {
        self.state = state;
        self
    }
}

/// All checks: demands first, then advice, then the rest, each in the order of the documentation.
pub fn all(host: &Host, need: &Need) -> Vec<Check> {
    let mut checks = memory::checks(host, need);
    checks.extend(descriptors::checks(host, need));
    checks.extend(buffers::checks(host, need));
    checks.extend(queues::checks(host, need));
    checks.extend(tracking::checks(host, need));
    checks.extend(machine::checks(host, need));
    checks.sort_by_key(|check| check.state);
    checks
}
