//! Shapes of filters (which of their levels are `+`), and the parties that brought them.
//!
//! Invariant: a shape stands in here exactly while a filter with more than [`FREE_WILDCARDS`] has it.

use alloc::collections::BTreeMap;

use super::{LEVELS_MAX, Refused, levels};
use crate::budget::admission::shares;

/// Filters with up to this many `+` are taken whatever their shape: with two, a name of eight levels has 37 shapes.
pub const FREE_WILDCARDS: u32 = 2;
/// Shapes of filters with more `+` than that, all together. A publish visits at most this many more nodes for each
/// level of its name: 2,048 in all for eight levels.
pub const SHAPES_MAX: usize = 256;

/// Nobody: not counted.
pub const NO_PARTY: u64 = 0;
/// For filters that a planned restart restores: they were taken before.
pub const RESTORED: u64 = u64::MAX;

/// A shape that filters have.
struct Shape {
    /// How many.
    filters: u32,
    /// The party that brought it.
    party: u64,
}

/// The levels that are `+`, of filters with more than [`FREE_WILDCARDS`] of them.
#[derive(Default)]
pub(super) struct Shapes(BTreeMap<u16, Shape>);

impl Shapes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// This party brings a filter.
    pub fn take(&mut self, filter: &[u8], party: u64) -> Result<(), Refused> {
        let shape = of(filter).ok_or(Refused::Levels)?;
        if shape.count_ones() > FREE_WILDCARDS {
            if !self.0.contains_key(&shape) && !self.may_bring(party) {
                return Err(Refused::Shapes);
            }
            let new = Shape { filters: 0, party };
            self.0.entry(shape).or_insert(new).filters += 1;
        }
        Ok(())
    }

    /// Whether this party may bring a new shape: nobody may take them all.
    fn may_bring(&self, party: u64) -> bool {
        let shapes = self.0.values();
        let own = shapes.filter(|shape| party != NO_PARTY && shape.party == party);
        let free = SHAPES_MAX.saturating_sub(self.0.len());
        party == RESTORED || shares::may_take(own.count(), free, shares::HALF)
    }

    /// A filter that was taken goes.
    pub fn forget(&mut self, filter: &[u8]) {
        let shape = of(filter).expect("it was taken");
        if let Some(known) = self.0.get_mut(&shape) {
            known.filters -= 1;
            if known.filters == 0 {
                self.0.remove(&shape);
            }
        }
    }
}

/// A bit for each level that is `+`; none if there are too many levels.
fn of(filter: &[u8]) -> Option<u16> {
    let mut shape = 0;
    for (n, level) in levels(filter).enumerate() {
        if n == LEVELS_MAX {
            return None;
        }
        shape |= u16::from(level == b"+") << n;
    }
    Some(shape)
}
