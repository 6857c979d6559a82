//! Adds up the counters of several threads.

/// Adds the named counters of one value to those of another.
macro_rules! add_counters {
    ($mine:expr, $other:expr; $($counter:ident),+) => {
        $($mine.$counter += $other.$counter;)+
    };
}
pub(crate) use add_counters;
