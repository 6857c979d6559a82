//! The bars: bounds that the server's values should keep to, and the verdicts on them.

use std::fmt;

use serde_json::{Value, json};

use crate::subscribe::Protocol;

/// The value that a bar's number is a ratio to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The floor's value.
    Floor,
    /// Mosquitto's value, when it is in the pair.
    Mosquitto,
    /// Nothing: the number is the value itself.
    Nothing,
}

/// A bound that a value of the server should keep to.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    number: f64,
    is_least: bool,
    against: Against,
    long_poll: bool,
}

impl Bar {
    /// At least `number`.
    pub const fn least(number: f64, against: Against) -> Bar {
        Bar {
            number,
            is_least: true,
            against,
            long_poll: false,
        }
    }

    /// At most `number`.
    pub const fn most(number: f64, against: Against) -> Bar {
        Bar {
            is_least: false,
            ..Bar::least(number, against)
        }
    }

    /// The bar holds for long-poll too.
    pub const fn long_poll(self) -> Bar {
        Bar {
            long_poll: true,
            ..self
        }
    }

    /// Holds the server's value, subscribed to over `protocol`, against the others'.
    pub fn judge(
        self,
        protocol: Protocol,
        ours: f64,
        floor: f64,
        mosquitto: Option<f64>,
    ) -> Verdict {
        let reached = match self.against {
            Against::Floor => Some(ours / floor),
            Against::Mosquitto => mosquitto.map(|theirs| ours / theirs),
            Against::Nothing => Some(ours),
        };
        let applies = match protocol {
            Protocol::Ws | Protocol::Sse => true,
            Protocol::Poll => self.long_poll,
            // MQTT has rows of its own, whose bars all hold for it.
            Protocol::Mqtt | Protocol::MqttWs => true,
        };
        Verdict {
            bar: self,
            reached: reached.filter(|value| value.is_finite()),
            applies,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_least { ">=" } else { "<=" };
        let against = match self.against {
            Against::Floor => " of the floor's",
            Against::Mosquitto => " of Mosquitto's",
            Against::Nothing => "",
        };
        write!(f, "{sign} {}{against}", self.number)
    }
}

/// The verdict on a bar.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    bar: Bar,
    /// The number that was held against the bar's; none when it was not measured.
    reached: Option<f64>,
    applies: bool,
}

impl Verdict {
    /// Whether the bar was met; none when it does not apply or nothing was measured.
    pub fn met(&self) -> Option<bool> {
        let reached = self.reached.filter(|_| self.applies)?;
        Some(if self.bar.is_least {
            reached >= self.bar.number
        } else {
            reached <= self.bar.number
        })
    }

    /// For the result.
    pub fn json(&self) -> Value {
        json!({
            "bar": self.bar.to_string(),
            "applies": self.applies,
            "reached": self.reached,
            "met": self.met(),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.applies {
            return f.write_str("no bar over this protocol");
        }
        write!(f, "bar {}: ", self.bar)?;
        match (self.reached, self.met()) {
            (Some(reached), Some(true)) => write!(f, "{reached:.3}, met"),
            (Some(reached), _) => write!(f, "{reached:.3}, NOT met"),
            (None, _) => f.write_str("not measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_held_against_what_it_names() {
        let floor = Bar::least(0.9, Against::Floor);
        assert_eq!(
            floor.judge(Protocol::Ws, 95.0, 100.0, None).met(),
            Some(true)
        );
        assert_eq!(
            floor.judge(Protocol::Sse, 85.0, 100.0, None).met(),
            Some(false)
        );
        let peer = Bar::most(1.0, Against::Mosquitto);
        assert_eq!(
            peer.judge(Protocol::Ws, 2.0, 1.0, Some(3.0)).met(),
            Some(true)
        );
        assert_eq!(peer.judge(Protocol::Ws, 2.0, 1.0, None).met(), None);
        assert_eq!(
            peer.judge(Protocol::Ws, 2.0, 1.0, Some(f64::NAN)).met(),
            None
        );
        let own = Bar::most(300.0, Against::Nothing);
        assert_eq!(own.judge(Protocol::Ws, 301.0, 1.0, None).met(), Some(false));
    }

    #[test]
    fn long_poll_has_only_the_bars_that_are_marked() {
        let bar = Bar::most(1.1, Against::Floor);
        let verdict = bar.judge(Protocol::Poll, 2.0, 1.0, None);
        assert_eq!(verdict.met(), None);
        assert_eq!(verdict.to_string(), "no bar over this protocol");
        let bar = bar.long_poll();
        assert_eq!(bar.judge(Protocol::Poll, 2.0, 1.0, None).met(), Some(false));
    }
}
