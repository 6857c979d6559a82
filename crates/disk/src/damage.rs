//! Describes the positions at which a log lost batches.

use std::fmt;

/// How batches were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The bytes between two intact groups are not the ones that were written.
    Bytes,
    /// The header of a segment is unreadable, so the whole segment is lost.
    Header,
    /// Segments before this one are missing.
    Missing,
    /// A group or segment refers to another previous group than the scan found. So it is from another history of the log.
    Chain,
    /// The log ends here, but it was longer.
    End,
}

/// A loss of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The kind of damage.
    pub kind: DamageKind,
    /// The segment in which the damage was found.
    pub segment: u64,
    /// The offset in the segment at which the damage begins.
    pub offset: u64,
    /// The number of lost batches; known if an intact group follows the damage.
    pub batches: Option<u64>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DamageKind::Bytes => "is damaged",
            DamageKind::Header => "has a damaged header",
            DamageKind::Missing => "comes after segments that are missing",
            DamageKind::Chain => "does not follow what stands before it",
            DamageKind::End => "is where the log ends now, and it was longer: its end is lost",
        };
        let Damage {
            segment, offset, ..
        } = self;
        if (self.kind, *segment) == (DamageKind::End, 0) {
            return f.write_str(
                "the log has none of the segments that count, and it had some: they are lost",
            );
        }
        write!(f, "segment {segment} of the log {what}, at byte {offset}")?;
        match self.batches {
            Some(batches) => write!(f, ", batches lost: {batches}"),
            None => Ok(()),
        }
    }
}
