//! Describes the places where batches of a log were lost.

use std::fmt;

/// How batches were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The bytes between two intact groups are not those that were written.
    Bytes,
    /// The header of a segment is unreadable, so the whole segment is lost.
    Header,
    /// Segments before this one are missing.
    Missing,
    /// The group or segment names another previous group than the one found before it, so it is from another history of the log.
    Chain,
    /// The log ends here, but it was longer.
    End,
}

/// A place where batches were lost.
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
