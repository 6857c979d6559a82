//! Limits the number of shapes of filters. A shape is the set of levels that are `+`. Each party may introduce a share of the shapes.
//!
//! Invariant: a shape with more than [`FREE_WILDCARDS`] `+` is recorded while a filter has this shape.
//!
//! A *party* is an address or a user.

use alloc::collections::BTreeMap;

use super::{LEVELS_MAX, levels};
use crate::base::reason::Reason;
use crate::budget::admission::shares;

/// Filters with at most this many `+` are accepted, whatever their shape. For filters of eight levels, there are 37 such shapes.
pub const FREE_WILDCARDS: u32 = 2;
/// The maximum number of shapes with more than `FREE_WILDCARDS` levels `+`. For these shapes, a publish visits at most this many nodes for
/// each level of its topic: 2,048 for eight levels.
pub const SHAPES_MAX: usize = 256;

/// Stands for no party. Filters with this party may use all shapes that are free, without a share.
pub const NO_PARTY: u64 = 0;
/// The party of filters that a planned restart restores. These filters are never refused for their shape.
pub const RESTORED: u64 = u64::MAX;

/// A recorded shape.
struct Shape {
    /// The number of filters with this shape.
    filters: u32,
    /// The party that introduced the shape.
    party: u64,
}

/// The recorded shapes. The key has a bit for each level that is `+`.
#[derive(Default)]
pub(super) struct Shapes(BTreeMap<u16, Shape>);

impl Shapes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a new filter of this party, unless its shape is refused.
    pub fn add(&mut self, filter: &[u8], party: u64) -> Result<(), Reason> {
        let shape = shape_of(filter).ok_or(Reason::FilterLevels)?;
        if shape.count_ones() > FREE_WILDCARDS {
            if !self.0.contains_key(&shape) && !self.may_introduce(party) {
                return Err(Reason::FilterShapes);
            }
            let shape_row = Shape { filters: 0, party };
            self.0.entry(shape).or_insert(shape_row).filters += 1;
        }
        Ok(())
    }

    /// Whether this party has introduced fewer shapes than its share.
    fn may_introduce(&self, party: u64) -> bool {
        let shapes = self.0.values();
        let of_party = shapes.filter(|shape| party != NO_PARTY && shape.party == party);
        let free = SHAPES_MAX.saturating_sub(self.0.len());
        party == RESTORED || shares::may_take(of_party.count(), free, shares::HALF)
    }

    /// Uncounts a filter that is closed.
    pub fn remove(&mut self, filter: &[u8]) {
        let shape = shape_of(filter).expect("the filter was counted");
        if let Some(known) = self.0.get_mut(&shape) {
            known.filters -= 1;
            if known.filters == 0 {
                self.0.remove(&shape);
            }
        }
    }
}

/// The shape of a filter: a bit for each level that is `+`. `None` if the filter has too many levels.
fn shape_of(filter: &[u8]) -> Option<u16> {
    let mut shape = 0;
    for (index, level) in levels(filter).enumerate() {
        if index == LEVELS_MAX {
            return None;
        }
        shape |= u16::from(level == b"+") << index;
    }
    Some(shape)
}
