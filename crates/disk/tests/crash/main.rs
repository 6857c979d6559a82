//! The log on a disk that loses power: whatever the moment, each batch that was answered comes back once and in order, and nothing
//! comes back that was not written. Each fault that is planted in the disk is found.

mod disk;

use crore_disk::{CommitError, Found, Identity, Log, Options};
use disk::{Disk, Fault, Rng};

const IDENTITY: Identity = Identity { log: 7, seed: 8 };
/// Small segments, so that a run has many.
const OPTIONS: Options = Options {
    segment_bytes: 4096 + 6000,
    bytes_max: u64::MAX,
};

/// Batches as a number and bytes that follow from it.
fn batch(number: u32, rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(20) {
        0 => rng.below(9000),
        _ => rng.below(700),
    };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

fn number_of(batch: &[u8]) -> u32 {
    let (number, rest) = batch.split_first_chunk().expect("a batch has a number");
    let number = u32::from_le_bytes(*number);
    assert!(rest.iter().all(|byte| *byte == number as u8), "{number}");
    number
}

/// The numbers of the batches in a log, and the places of its losses among them.
fn read(found: &mut Vec<u32>, losses: &mut usize) -> impl FnMut(Found<'_>) {
    |it| match it {
        Found::Batch(_, batch) => found.push(number_of(batch)),
        Found::Damage(_) => *losses += 1,
    }
}

/// One life of a disk: the power goes and returns, several times.
fn live(seed: u64, fault: Fault) -> Result<(), String> {
    let disk = Disk::new(seed, fault);
    let mut rng = Rng(seed ^ 0xc0ffee);
    // The batches in the log as far as is known: those that were answered, and those that came back.
    let mut known: Vec<u32> = Vec::new();
    // The batches of the group under way when the power went.
    let mut unanswered: Vec<u32> = Vec::new();
    let mut next = 0;
    for _ in 0..6 {
        let (mut found, mut losses) = (Vec::new(), 0);
        disk.power_goes_after(if rng.chance(10) {
            rng.below(20)
        } else {
            usize::MAX
        });
        let opened = Log::open(
            disk.clone(),
            OPTIONS,
            IDENTITY,
            read(&mut found, &mut losses),
        );
        let Ok((mut log, recovered)) = opened else {
            // The power went while the log was read.
            disk.power_returns();
            continue;
        };
        if losses > 0 || !recovered.damages.is_empty() {
            return Err(format!("a loss is told: {:?}", recovered.damages));
        }
        let whole = [&known[..], &unanswered].concat();
        if found != known && found != whole {
            return Err(format!(
                "{known:?} and perhaps {unanswered:?} became {found:?}"
            ));
        }
        known = found;
        unanswered.clear();
        disk.power_goes_after(rng.below(160));
        for _ in 0..60 {
            let group: Vec<u32> = (0..=rng.below(5) as u32).map(|n| next + n).collect();
            next += group.len() as u32;
            let bytes: Vec<Vec<u8>> = group.iter().map(|n| batch(*n, &mut rng)).collect();
            match log.commit(bytes.iter().map(Vec::as_slice)) {
                Ok(()) => known.extend(group),
                Err(CommitError::Full) => {}
                Err(CommitError::Failed(_)) => {
                    unanswered = group;
                    break;
                }
            }
        }
        drop(log);
        match rng.chance(40) {
            true => disk.process_restarts(),
            false => disk.power_returns(),
        }
    }
    Ok(())
}

#[test]
fn answered_batches_survive_any_kill_and_any_power_cut() {
    for seed in 0..1500 {
        if let Err(why) = live(seed, Fault::None) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn a_missing_sync_is_found() {
    for fault in [Fault::FileNotSynced, Fault::NamesNotSynced] {
        let found = (0..200).find(|seed| live(*seed, fault).is_err());
        assert!(found.is_some(), "{fault:?} was not found");
    }
}

/// A log of so many groups of one batch each.
fn filled(groups: u32) -> Disk {
    filled_with(0..groups)
}

fn filled_with(numbers: impl IntoIterator<Item = u32>) -> Disk {
    let disk = Disk::new(1, Fault::None);
    let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
    let (mut log, _) = opened.expect("an empty disk");
    for number in numbers {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(300, number as u8);
        log.commit([&bytes[..]]).expect("there is room");
    }
    disk
}

#[test]
fn damage_is_told_in_its_place_and_the_rest_comes_back() {
    // 18 groups of 328 bytes fit in a segment.
    for segment in 1..=3 {
        for at in (0..64).chain((4096..4096 + 18 * 328).step_by(7)) {
            let disk = filled(60);
            assert!(disk.damage(&format!("segment-{segment:010}.log"), at));
            let (mut found, mut losses) = (Vec::new(), 0);
            let read = read(&mut found, &mut losses);
            let opened = Log::open(disk, OPTIONS, IDENTITY, read);
            let (_, recovered) = opened.expect("damage is no reason to refuse");
            let lost = (0..60).filter(|n| !found.contains(n)).count();
            assert!(found.is_sorted(), "in order");
            let expected = if at < 64 { (18, 1) } else { (1, 1) };
            assert_eq!((lost, losses), expected, "byte {at} of segment {segment}");
            assert_eq!(recovered.damages.len(), losses);
        }
    }
}

#[test]
fn a_log_goes_on_behind_damage_and_tells_it_again() {
    let disk = filled(60);
    assert!(disk.damage("segment-0000000002.log", 5000));
    for round in 0..3 {
        let (mut found, mut losses) = (Vec::new(), 0);
        let read = read(&mut found, &mut losses);
        let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, read);
        let (mut log, _) = opened.expect("damage is no reason to refuse");
        assert_eq!((found.len(), losses), (59 + round, 1));
        log.commit([&[0; 4][..]]).expect("there is room");
    }
}

/// A segment from another history of the same log, as from a backup.
#[test]
fn a_segment_of_another_history_is_told() {
    let (disk, other) = (filled(60), filled_with((0..17).chain(1000..1043)));
    for segment in 2..=3 {
        disk.copy_from(&other, &format!("segment-{segment:010}.log"));
        let (mut found, mut losses) = (Vec::new(), 0);
        let read = read(&mut found, &mut losses);
        assert!(Log::open(disk.clone(), OPTIONS, IDENTITY, read).is_ok());
        // Where the other history begins, and where it ends.
        assert_eq!((found.len(), losses), (60, 2));
    }
}

#[test]
fn a_missing_or_empty_segment_is_told() {
    for (number, lost) in [(1, 18), (2, 18), (3, 18)] {
        let name = format!("segment-{number:010}.log");
        let disk = filled(60);
        disk.truncate(&name, 0);
        let (mut found, mut losses) = (Vec::new(), 0);
        let opened = Log::open(disk, OPTIONS, IDENTITY, read(&mut found, &mut losses));
        assert!(opened.is_ok());
        assert_eq!((found.len(), losses), (60 - lost, 1));
        let disk = filled(60);
        crore_disk::Storage::remove(&disk, &name).expect("it is there");
        let (mut found, mut losses) = (Vec::new(), 0);
        let opened = Log::open(disk, OPTIONS, IDENTITY, read(&mut found, &mut losses));
        assert!(opened.is_ok());
        assert_eq!((found.len(), losses), (60 - lost, 1));
    }
}

#[test]
fn a_full_disk_loses_nothing_and_goes_on_when_there_is_room() {
    let disk = Disk::new(1, Fault::None);
    disk.set_room(4 * OPTIONS.segment_bytes as usize);
    let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
    let (mut log, _) = opened.expect("an empty disk");
    let mut number: u32 = 0;
    let mut bytes = [0; 300];
    loop {
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..].fill(number as u8);
        let room = log.room_bytes();
        match log.commit([&bytes[..]]) {
            Ok(()) => number += 1,
            Err(CommitError::Full) => {
                assert!(room < 328, "{room} bytes were promised");
                break;
            }
            Err(CommitError::Failed(error)) => panic!("{error}"),
        }
    }
    assert_eq!(number, 4 * 18);
    disk.set_room(usize::MAX);
    log.commit([&bytes[..]]).expect("there is room again");
    let (mut found, mut losses) = (Vec::new(), 0);
    let opened = Log::open(disk, OPTIONS, IDENTITY, read(&mut found, &mut losses));
    assert!(opened.is_ok());
    assert_eq!((found, losses), ((0..=number).collect(), 0));
}
