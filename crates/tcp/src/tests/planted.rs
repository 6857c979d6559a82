//! Switches on one planted fault at a time, and checks that a test finds it: streams with random seeds, a crowd of connections, or an attack.

use super::{attacks, crowd, seeds};
use crate::planted::{Fault, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether a check fails while a fault is on.
fn catches(fault: Fault, check: impl FnOnce() -> bool) -> bool {
    plant(Some(fault));
    let passed = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
    plant(None);
    !passed
}

#[test]
fn seeds_catch_faults_of_the_streams() {
    for fault in Fault::OF_STREAMS {
        let found = (0..200).find(|seed| catches(fault, || seeds::run(*seed).is_ok()));
        assert!(found.is_some(), "{fault:?} is not caught");
    }
}

#[test]
fn crowds_catch_a_cookie_that_is_accepted_again() {
    let found = (0..60).find(|seed| catches(Fault::SpentCookie, || crowd::run(*seed).is_ok()));
    assert!(found.is_some());
}

#[test]
fn attacks_catch_faults_of_the_checks() {
    let checks: [(Fault, fn()); 5] = [
        (
            Fault::LaterOverlapWins,
            attacks::later_contents_do_not_replace_earlier_ones,
        ),
        (Fault::BlindReset, attacks::blind_reset_ends_nothing),
        (
            Fault::AckOfUnsent,
            attacks::acknowledgement_of_what_was_never_sent_is_refused,
        ),
        (
            Fault::OldClock,
            attacks::segment_with_an_older_clock_is_dropped,
        ),
        (
            Fault::AnyCookie,
            attacks::flood_of_acknowledgements_opens_nothing,
        ),
    ];
    for (fault, check) in checks {
        let is_caught = catches(fault, || {
            check();
            true
        });
        assert!(is_caught, "{fault:?} is not caught");
    }
}
